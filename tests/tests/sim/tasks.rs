//! Tasks of one thread: straight code that can be suspended anywhere below a call of [`pause`].
#![allow(unsafe_code)] // One pointer to the coroutine that runs; see `pause`.

use std::cell::Cell;
use std::ptr;

use corosensei::{Coroutine, CoroutineResult, Yielder};

type Suspender = Yielder<(), ()>;

thread_local! {
    static CURRENT: Cell<*const Suspender> = const { Cell::new(ptr::null()) };
}

/// A task. Dropped before its end, it unwinds from where it is suspended: so a server is killed.
pub(crate) struct Task(Coroutine<(), (), ()>);

impl Task {
    /// A task that has not begun.
    pub(crate) fn new(body: impl FnOnce() + 'static) -> Task {
        Task(Coroutine::new(|suspender: &Suspender, ()| {
            CURRENT.set(suspender);
            body();
        }))
    }

    /// Lets it run until it pauses. True once it is at its end. A panic of the task goes on here.
    pub(crate) fn run(&mut self) -> bool {
        assert!(CURRENT.get().is_null(), "tasks do not run inside tasks");
        let result = self.0.resume(());
        CURRENT.set(ptr::null());
        matches!(result, CoroutineResult::Return(()))
    }
}

/// Suspends the task that runs; does nothing outside of tasks, and while one unwinds.
pub(crate) fn pause() {
    let suspender = CURRENT.get();
    if suspender.is_null() || std::thread::panicking() {
        return;
    }
    // SAFETY: the pointer was set by the coroutine that runs now, from a reference that lives as long as its stack, and
    // is cleared or replaced whenever another context runs.
    unsafe { &*suspender }.suspend(());
    CURRENT.set(suspender);
}

/// Forgets the task that ran, after a panic came out of it.
pub(crate) fn leave() {
    CURRENT.set(ptr::null());
}
