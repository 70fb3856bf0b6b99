//! Queue pairs whose session is over.
//!
//! A queue pair that is destroyed may take a shared receive with it. So it goes to the error state first, and stays until
//! the device says that it has taken its last receive, or, from devices that do not say so, for a while: then whatever it
//! had comes back as flushed. Until it is destroyed, its device may store what it READs: the run of pages that it was filling
//! stays with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kv_common::verbs::cm::CmConnection;
use kv_common::verbs::{Error, QueuePair, Rc, ReadyToSend};

use super::{Queues, Rdma};
use crate::table::AbandonedRun;

/// How long a queue pair in the error state has for giving back what it had.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(250);

/// A queue pair in the error state.
pub(super) struct Closing {
    pair: QueuePair<Rc, Error>,
    cm: Option<CmConnection>,
    queues: Arc<Queues>,
    until: Instant,
    has_taken_last: bool,
    kept: Option<AbandonedRun>,
}

impl Rdma {
    /// Takes a queue pair whose session is over.
    pub(super) fn close(
        &self,
        pair: QueuePair<Rc, ReadyToSend>,
        cm: Option<CmConnection>,
        queues: &Arc<Queues>,
        kept: Option<AbandonedRun>,
    ) {
        let number = pair.number();
        match pair.into_error() {
            Ok(pair) => {
                queues.note_closing(number);
                let until = Instant::now() + CLOSE_TIMEOUT;
                let queues = Arc::clone(queues);
                let closing = Closing { pair, cm, queues, until, has_taken_last: false, kept };
                self.closing.lock().push(closing);
                self.waker.wake();
            }
            // It was destroyed.
            Err(_) => queues.forget(number),
        }
    }

    /// When the next is to be ended.
    pub(crate) fn closing_due(&self) -> Option<Instant> {
        self.closing.lock().iter().map(Closing::due).min()
    }

    /// Ends those whose time has come.
    pub(crate) fn end_closing(&self) {
        let now = Instant::now();
        let due: Vec<Closing> = self.closing.lock().extract_if(.., |closing| closing.due() <= now).collect();
        for Closing { pair, cm, queues, kept, .. } in due {
            let number = pair.number();
            // Before, because destroying removes completions from some devices' queues; after, because not from others'.
            queues.collect();
            drop(pair);
            drop(kept);
            drop(cm);
            queues.forget(number);
        }
    }

    pub(super) fn note_last_receive(&self, number: u32) {
        let mut closing = self.closing.lock();
        closing
            .iter_mut()
            .filter(|closing| closing.pair.number() == number)
            .for_each(|closing| closing.has_taken_last = true);
    }
}

impl Closing {
    fn due(&self) -> Instant {
        // What was flushed before the event is in the completion queue already.
        if self.has_taken_last { self.until - CLOSE_TIMEOUT } else { self.until }
    }
}
