//! Submit and poll for stores that answer at once: an operation is done when it is submitted, and its completion
//! waits in a queue.

use std::collections::VecDeque;

use super::{Completion, Outcome, Request, Store};

/// Names an operation by how many came before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

/// Completions that have not been asked for.
#[derive(Debug, Default)]
pub struct Deferred {
    next: u64,
    done: VecDeque<(Completion<Ticket>, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

impl Deferred {
    /// Does `request` on `store` now and keeps its completion. `queue` says where the store keeps its `Deferred`.
    pub fn submit<S: Store>(
        store: &mut S,
        request: Request<'_>,
        queue: impl Fn(&mut S) -> &mut Self,
    ) -> Ticket {
        let mut value = queue(store).spare.pop().unwrap_or_default();
        let outcome = match request {
            Request::Read(key) => store
                .read(key, &mut value)
                .map(|found| if found { Outcome::Found } else { Outcome::NotFound }),
            Request::Write(key, bytes) => store.write(key, bytes).map(|()| Outcome::Written),
        };
        let queue = queue(store);
        let ticket = Ticket(queue.next);
        queue.next += 1;
        queue.done.push_back((Completion { ticket, outcome }, value));
        ticket
    }

    /// The oldest completion; its value, if it found one, is swapped into `value`.
    pub fn complete(&mut self, value: &mut Vec<u8>) -> Option<Completion<Ticket>> {
        let (completion, mut found) = self.done.pop_front()?;
        if completion.outcome == Ok(Outcome::Found) {
            std::mem::swap(value, &mut found);
        }
        self.spare.push(found);
        Some(completion)
    }
}

/// The pipelined half of [`Store`] for a store with a field `deferred`.
macro_rules! pipelined_by_deferring {
    () => {
        type Ticket = $crate::store::deferred::Ticket;

        fn submit(&mut self, request: $crate::store::Request<'_>) -> Result<Self::Ticket, StoreError> {
            Ok($crate::store::deferred::Deferred::submit(self, request, |store| &mut store.deferred))
        }

        fn complete(
            &mut self,
            _wait: bool,
            value: &mut Vec<u8>,
        ) -> Result<Option<$crate::store::Completion<Self::Ticket>>, StoreError> {
            Ok(self.deferred.complete(value))
        }
    };
}

/// One read after the other: `multi_read` for a store that cannot overlap them. Needs a field `scratch`.
macro_rules! batch_one_by_one {
    () => {
        fn multi_read(
            &mut self,
            keys: &[&[u8]],
            mut each: impl FnMut(usize, Result<Option<&[u8]>, StoreError>),
        ) -> Result<(), StoreError> {
            let mut value = std::mem::take(&mut self.scratch);
            for (index, key) in keys.iter().enumerate() {
                match self.read(key, &mut value) {
                    Ok(found) => each(index, Ok(found.then_some(value.as_slice()))),
                    Err(error) => each(index, Err(error)),
                }
            }
            self.scratch = value;
            Ok(())
        }
    };
}

pub(crate) use {batch_one_by_one, pipelined_by_deferring};
