//! The word by which clients see that the server's process is gone.
//!
//! A client's mapping outlives the server, and reading on would mean reading a table that has a successor. So one 32-bit
//! word of the region holds the number of a thread of the server, and the kernel sets `FUTEX_OWNER_DIED` in it when that
//! thread ends, for whatever reason: exit, SIGKILL, exec. This is what robust futexes do (set_robust_list(2)), used here
//! without a mutex. In the kernel's order of events a dying process marks its words before it closes its files, so
//! whoever sees the listening socket refuse also sees the mark.

#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use crate::region::{ReadWords, Words};

/// What the word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// No server has taken the region yet.
    Unowned,
    /// The server lives.
    Alive,
    /// The server is gone for good.
    Died,
}

impl OwnerState {
    /// What the owner word `word` says.
    #[inline]
    pub fn of(word: u32) -> OwnerState {
        if word & libc::FUTEX_OWNER_DIED != 0 {
            OwnerState::Died
        } else if word & libc::FUTEX_TID_MASK == 0 {
            OwnerState::Unowned
        } else {
            OwnerState::Alive
        }
    }

    /// What the owner word at byte `at_byte` of `region` says now.
    #[inline]
    pub fn load(region: &ReadWords, at_byte: usize) -> OwnerState {
        OwnerState::of(region.load_futex(at_byte))
    }
}

/// Why the word cannot be kept.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} the thread that marks this process's end: {source}")]
pub struct OwnerError {
    step: &'static str,
    source: io::Error,
}

/// Keeps the owner word of a region while it lives. The word says [`OwnerState::Died`] when this was dropped, or when the
/// process ended in whatever way.
pub struct OwnerKeeper {
    /// Dropped to end the thread.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<Held>>,
}

/// What the kernel looks at when the thread ends: it must be there until then.
struct Held {
    _list: Box<RobustList>,
    _region: Words,
}

impl OwnerKeeper {
    /// Marks the region as owned, in the 32-bit word at byte `at_byte`, which is used for nothing else.
    ///
    /// # Errors
    /// [`OwnerError`] if no thread can be started or the kernel has no robust futexes.
    ///
    /// # Panics
    /// Panics if `at_byte` is not a multiple of 4 within the region.
    pub fn start(region: &Words, at_byte: usize) -> Result<OwnerKeeper, OwnerError> {
        assert!(
            at_byte.is_multiple_of(4) && at_byte / 8 < region.len_words(),
            "no owner word at byte {at_byte}"
        );
        let region = region.clone();
        let (stop, stopped) = mpsc::channel();
        let (ready, started) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("kv-owner".into())
            .spawn(move || keep(region, at_byte, &ready, &stopped))
            .map_err(|source| OwnerError { step: "start", source })?;
        let keeper = OwnerKeeper { stop: Some(stop), thread: Some(thread) };
        match started.recv() {
            Ok(Ok(())) => Ok(keeper),
            Ok(Err(source)) => Err(OwnerError { step: "register", source }),
            Err(gone) => Err(OwnerError { step: "start", source: io::Error::other(gone) }),
        }
    }
}

impl Drop for OwnerKeeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The kernel marks the word before it lets a join return. What it looked at is freed only after that.
            drop(thread.join());
        }
    }
}

/// The thread: what it returns stays where it is until it is joined.
fn keep(
    region: Words,
    at_byte: usize,
    ready: &mpsc::Sender<io::Result<()>>,
    stopped: &mpsc::Receiver<()>,
) -> Held {
    let list = RobustList::of_one(region.address_of(at_byte));
    let registered = list.register();
    if registered.is_ok() {
        region.store_futex(at_byte, rustix::thread::gettid().as_raw_nonzero().get() as u32);
    }
    let keeps = registered.is_ok();
    // The starter waits for it.
    let _ = ready.send(registered);
    if keeps {
        // Nothing is ever sent: this returns when the other end is dropped.
        let _ = stopped.recv();
    }
    Held { _list: list, _region: region }
}

/// `struct robust_list_head` and one entry (linux/futex.h), as addresses: only the kernel follows them.
#[repr(C)]
struct RobustList {
    /// Address of the first entry.
    first: usize,
    /// From an entry to its futex word.
    futex_offset: isize,
    /// No lock is ever half taken.
    pending: usize,
    /// The one entry: the address of the next, which is the head, the end of the list.
    entry: usize,
}

/// What the kernel takes for a head; it refuses any other size.
const HEAD_BYTES: usize = 3 * size_of::<usize>();
const _: () = assert!(std::mem::offset_of!(RobustList, entry) == HEAD_BYTES);

impl RobustList {
    /// A list whose only futex is at `futex_address`. It is at its final address.
    fn of_one(futex_address: usize) -> Box<RobustList> {
        let mut list = Box::new(RobustList { first: 0, futex_offset: 0, pending: 0, entry: 0 });
        let head_address = &raw const *list as usize;
        let entry_address = &raw const list.entry as usize;
        list.first = entry_address;
        list.futex_offset = futex_address.wrapping_sub(entry_address) as isize;
        list.entry = head_address;
        list
    }

    /// Makes this the calling thread's list. It replaces the C library's, which serves robust mutexes of that library; a
    /// thread of our own that takes none does not miss it.
    fn register(&self) -> io::Result<()> {
        // SAFETY: the kernel reads the list when the thread ends; the thread's result keeps it until it was joined, or
        // for good. It then changes the futex word with an atomic operation, if the word holds this thread's number.
        let result = unsafe { libc::syscall(libc::SYS_set_robust_list, &raw const *self, HEAD_BYTES) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_follows_the_keeper() {
        let region = Words::zeroed(4);
        assert_eq!(OwnerState::load(&region, 12), OwnerState::Unowned);
        let keeper = OwnerKeeper::start(&region, 12).unwrap();
        assert_eq!(OwnerState::load(&region, 12), OwnerState::Alive);
        drop(keeper);
        assert_eq!(OwnerState::load(&region, 12), OwnerState::Died);
        // The other half of that word, and its neighbours, are not touched.
        assert_eq!([8, 16, 0].map(|at_byte| region.load_futex(at_byte)), [0; 3]);
    }
}
