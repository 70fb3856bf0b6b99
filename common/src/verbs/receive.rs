//! Receives, collected and then posted with one doorbell, to a queue pair or to a shared receive queue.
#![allow(unsafe_code, reason = "builds the structs of libibverbs")]

use std::ptr;

use rdma_sys::{ibv_recv_wr, ibv_sge};

use super::access::Writable;
use super::error::VerbError;
use super::memory::LocalRange;
use super::requests::{BatchError, PostError};

/// Receives to be posted together. It is reused: posting empties it and keeps its memory.
pub struct ReceiveBatch {
    entries: Vec<(ibv_recv_wr, ibv_sge)>,
    capacity: usize,
}

// SAFETY: the pointers in the requests are null until the batch is posted; then they are set and used within one call that
// borrows the batch exclusively.
unsafe impl Send for ReceiveBatch {}

impl ReceiveBatch {
    /// Room for `capacity` receives.
    pub fn with_capacity(capacity: usize) -> ReceiveBatch {
        ReceiveBatch { entries: Vec::with_capacity(capacity), capacity }
    }

    /// Receives in it.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds one into `buffer`. Messages that are longer break the connection.
    ///
    /// # Errors
    /// If there is no room.
    ///
    /// The device must be able to write there:
    /// ```compile_fail,E0277
    /// use kv_common::verbs::{LocalRange, ReceiveBatch, SendOnly};
    /// fn receive(batch: &mut ReceiveBatch, buffer: LocalRange<SendOnly>) {
    ///     batch.push(1, buffer).unwrap();
    /// }
    /// ```
    /// ```
    /// use kv_common::verbs::{Local, LocalRange, ReceiveBatch};
    /// fn receive(batch: &mut ReceiveBatch, buffer: LocalRange<Local>) {
    ///     batch.push(1, buffer).unwrap();
    /// }
    /// ```
    pub fn push<A: Writable>(&mut self, id: u64, buffer: LocalRange<A>) -> Result<(), BatchError> {
        if self.entries.len() == self.capacity {
            return Err(BatchError::Full { capacity: self.capacity });
        }
        let segment = ibv_sge { addr: buffer.address, length: buffer.len_bytes, lkey: buffer.lkey };
        let request = ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 1 };
        self.entries.push((request, segment));
        Ok(())
    }

    /// Posts all by `post`, which is given the first of the linked requests and a place for the first that was not taken.
    pub(super) fn post(
        &mut self,
        verb: &'static str,
        post: impl FnOnce(*mut ibv_recv_wr, &mut *mut ibv_recv_wr) -> i32,
    ) -> Result<(), PostError> {
        let mut first = ptr::null_mut();
        for (request, segment) in self.entries.iter_mut().rev() {
            request.sg_list = segment;
            request.next = first;
            first = request;
        }
        if first.is_null() {
            return Ok(());
        }
        let mut refused = ptr::null_mut();
        let returned = post(first, &mut refused);
        if returned == 0 {
            self.entries.clear();
            return Ok(());
        }
        let found = self.entries.iter().position(|(request, _)| ptr::eq(request, refused));
        let posted = found.unwrap_or(0);
        self.entries.drain(..posted);
        let source = VerbError::from_errno(
            verb,
            format!("{} receives", self.entries.len() + posted),
            returned.saturating_abs(),
        );
        Err(PostError::Verb { posted, source })
    }
}
