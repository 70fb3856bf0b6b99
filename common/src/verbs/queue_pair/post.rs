//! Posting.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::ptr;
use std::sync::Arc;

use super::{Kind, Posts, QueuePair, Receives};
use crate::verbs::error::VerbError;
use crate::verbs::receive::ReceiveBatch;
use crate::verbs::requests::{PostError, SendBatch};

impl<K: Kind, S: Posts> QueuePair<K, S> {
    /// Posts all requests with one doorbell and empties the batch. Completions come in the same order, for those that are
    /// signalled or fail.
    ///
    /// # Errors
    /// If the send queue is full ([`PostError::is_full`]) or a request does not fit. What was not taken stays in the batch.
    ///
    /// Only a queue pair that is ready to send takes requests:
    /// ```compile_fail,E0599
    /// use kv_common::verbs::{Init, QueuePair, Rc, SendBatch};
    /// fn post(pair: &mut QueuePair<Rc, Init>, batch: &mut SendBatch<Rc>) {
    ///     pair.post_send(batch).unwrap();
    /// }
    /// ```
    /// ```compile_fail,E0308
    /// use kv_common::verbs::{QueuePair, Rc, ReadyToSend, SendBatch, Uc};
    /// fn post(pair: &mut QueuePair<Uc, ReadyToSend>, batch: &mut SendBatch<Rc>) {
    ///     pair.post_send(batch).unwrap();
    /// }
    /// ```
    /// ```
    /// use kv_common::verbs::{QueuePair, Rc, ReadyToSend, SendBatch};
    /// fn post(pair: &mut QueuePair<Rc, ReadyToSend>, batch: &mut SendBatch<Rc>) {
    ///     pair.post_send(batch).unwrap();
    /// }
    /// ```
    #[inline]
    pub fn post_send(&mut self, batch: &mut SendBatch<K>) -> Result<(), PostError> {
        let (len_bytes, capacity_bytes) = (batch.inline_max_bytes(), self.inner.capacity.inline_bytes);
        if len_bytes > capacity_bytes {
            return Err(PostError::Inline { len_bytes, capacity_bytes });
        }
        // Each provider reads its own kind of handle, so one of another device must not reach it.
        if batch.handles.iter().any(|handle| !Arc::ptr_eq(handle.domain(), &self.inner.domain)) {
            return Err(PostError::ForeignAddress);
        }
        if self.inner.domain.context().is_iwarp() {
            // There a SEND may complete before a READ that was posted earlier: software iWARP does it.
            batch.fence();
        }
        let first = batch.link();
        if first.is_null() {
            return Ok(());
        }
        self.keep_handles(batch);
        let mut refused = ptr::null_mut();
        // SAFETY: the queue pair lives and is in a state that takes requests. `first` is a list of valid requests, linked just
        // now and borrowed exclusively: their segments are in the batch, inline bytes too (and are copied in this call),
        // address handles are kept. Ranges were made from registered memory; if it is so no more, the device refuses.
        let returned = unsafe { rdma_sys::ibv_post_send(self.as_ptr(), first, &mut refused) };
        if returned == 0 {
            batch.clear();
            return Ok(());
        }
        let posted = if refused.is_null() { 0 } else { batch.position(refused) };
        let subject = format!("{} requests on {} {:#x}", batch.len(), K::NAME, self.number());
        batch.remove_posted(posted);
        let source = VerbError::from_errno("ibv_post_send", subject, returned.saturating_abs());
        Err(PostError::Verb { posted, source })
    }

    /// Datagrams are sent after this call: their addresses live as long as the queue pair.
    fn keep_handles(&mut self, batch: &SendBatch<K>) {
        for handle in &batch.handles {
            if !self.inner.handles.iter().any(|kept| Arc::ptr_eq(kept, handle)) {
                self.inner.handles.push(Arc::clone(handle));
            }
        }
    }
}

impl<K: Kind, S: Receives> QueuePair<K, S> {
    /// Posts receives and empties the batch.
    ///
    /// # Errors
    /// If the receive queue is full or this queue pair uses a shared one. What was not taken stays in the batch.
    pub fn post_receive(&mut self, batch: &mut ReceiveBatch) -> Result<(), PostError> {
        if self.inner.uses_shared_receive {
            return Err(PostError::SharedReceive);
        }
        let pair = self.as_ptr();
        batch.post("ibv_post_recv", |first, refused: &mut *mut _| {
            // SAFETY: the queue pair lives and has a receive queue of its own; `first` is a list of valid requests that nobody
            // else uses during this call. Their ranges were made from memory that is registered for local writes; if it is so
            // no more, the device refuses.
            unsafe { rdma_sys::ibv_post_recv(pair, first, ptr::from_mut(refused)) }
        })
    }
}
