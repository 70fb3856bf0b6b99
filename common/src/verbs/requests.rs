//! Requests of the send queue, collected and then posted with one doorbell.
#![allow(unsafe_code, reason = "builds the structs of libibverbs")]

use std::marker::PhantomData;
use std::sync::Arc;
use std::{mem, ptr};

use rdma_sys::{ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};

use super::access::{Access, ReadTarget};
use super::address_handle::AddressHandle;
use super::error::VerbError;
use super::memory::{LocalRange, RemoteRange};
use super::queue_pair::{Connected, Kind, Rc, Ud, Writes};

/// Requests to be posted together, in this order. It is reused: posting empties it and keeps its memory.
pub struct SendBatch<K: Kind> {
    entries: Vec<Entry>,
    /// Bytes of inline requests, one after the other.
    inline_bytes: Vec<u8>,
    /// Address handles that the entries point to.
    pub(super) handles: Vec<Arc<AddressHandle>>,
    capacity: usize,
    _kind: PhantomData<K>,
}

struct Entry {
    request: ibv_send_wr,
    segment: ibv_sge,
    /// Where its bytes are in `inline_bytes`, if it is inline; its length is the segment's.
    inline_at: Option<usize>,
}

// SAFETY: the pointers in the requests are null, or point to address handles that `handles` keeps, until the batch is posted;
// then they are set and used within one call that borrows the batch exclusively.
unsafe impl<K: Kind> Send for SendBatch<K> {}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// No room.
    #[error("the batch holds {capacity} requests; post it first")]
    Full {
        /// Its capacity.
        capacity: usize,
    },
    /// The two ranges have different lengths.
    #[error("the local range has {local_bytes} bytes and the remote one {remote_bytes}; they must be equal")]
    Lengths {
        /// Bytes here.
        local_bytes: u32,
        /// Bytes there.
        remote_bytes: u32,
    },
    /// iWARP asks for more.
    #[error("on iWARP a READ can only end in memory that peers may write to: register it as ReadSink")]
    NotASink,
    /// More bytes than a request can have.
    #[error("{len_bytes} bytes are too many for an inline request")]
    InlineTooLong {
        /// Bytes.
        len_bytes: usize,
    },
}

/// Why a batch was not posted, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// An inline request is longer than the queue pair allows.
    #[error(
        "an inline request has {len_bytes} bytes and the queue pair takes {capacity_bytes}; send it from registered memory"
    )]
    Inline {
        /// Its length.
        len_bytes: u32,
        /// What the queue pair takes.
        capacity_bytes: u32,
    },
    /// An address handle of another protection domain.
    #[error(
        "an address handle belongs to another protection domain than the queue pair; make one in this domain"
    )]
    ForeignAddress,
    /// Receives belong elsewhere.
    #[error("this queue pair takes its receives from a shared receive queue; post them there")]
    SharedReceive,
    /// The verb failed. The first `posted` requests were taken; the others are still in the batch.
    #[error("{posted} requests were posted, the next one was not: {source}")]
    Verb {
        /// Requests that were taken.
        posted: usize,
        /// What the verb said.
        source: VerbError,
    },
}

impl PostError {
    /// True if the queue had no room: take completions and post again.
    pub fn is_full(&self) -> bool {
        matches!(self, PostError::Verb { source, .. } if source.errno() == Some(libc::ENOMEM))
    }
}

/// The request just added: sets what is not the default.
pub struct Request<'batch>(&'batch mut ibv_send_wr);

impl Request<'_> {
    #[inline]
    fn flag(self, flag: ibv_send_flags) -> Self {
        self.0.send_flags |= flag.0;
        self
    }

    /// It has a completion also if it succeeds. Of a queue pair's requests, one must be signalled each time that the send
    /// queue is half used, or it fills up for ever.
    pub fn signalled(self) -> Self {
        self.flag(ibv_send_flags::IBV_SEND_SIGNALED)
    }

    /// Its receiver's completion queue, armed for solicited events only, reports an event.
    pub fn solicited(self) -> Self {
        self.flag(ibv_send_flags::IBV_SEND_SOLICITED)
    }

    /// It starts after all READs before it are done.
    pub fn fenced(self) -> Self {
        self.flag(ibv_send_flags::IBV_SEND_FENCE)
    }

    /// Sends a number along with a SEND.
    fn immediate(self, opcode: u32, immediate: u32) -> Self {
        self.0.opcode = opcode;
        self.0.imm_data_invalidated_rkey_union.imm_data = network_order(immediate);
        self
    }
}

/// Immediate data crosses the wire in network byte order.
fn network_order(number: u32) -> u32 {
    number.to_be()
}

impl<K: Kind> SendBatch<K> {
    /// Room for `capacity` requests.
    pub fn with_capacity(capacity: usize) -> SendBatch<K> {
        SendBatch {
            entries: Vec::with_capacity(capacity),
            inline_bytes: Vec::new(),
            handles: Vec::new(),
            capacity,
            _kind: PhantomData,
        }
    }

    /// Requests in it.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Requests that it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Has the last request signalled; its completion then stands for all before it.
    #[inline]
    pub fn signal_last(&mut self) {
        if let Some(entry) = self.entries.last_mut() {
            entry.request.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
    }

    /// Forgets all requests.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.inline_bytes.clear();
        self.handles.clear();
    }

    fn push(&mut self, id: u64, opcode: u32, segment: ibv_sge) -> Result<&mut Entry, BatchError> {
        if self.entries.len() == self.capacity {
            return Err(BatchError::Full { capacity: self.capacity });
        }
        // SAFETY: every field of the request is an integer, a pointer, or a union of these, for which zero is a value.
        let mut request: ibv_send_wr = unsafe { mem::zeroed() };
        request.wr_id = id;
        request.opcode = opcode;
        request.num_sge = 1;
        self.entries.push(Entry { request, segment, inline_at: None });
        Ok(self.entries.last_mut().expect("just pushed"))
    }

    fn push_inline(&mut self, id: u64, opcode: u32, bytes: &[u8]) -> Result<&mut Entry, BatchError> {
        // Adapters take some hundred bytes; the queue pair's own limit is checked when it is posted.
        let len_bytes =
            u16::try_from(bytes.len()).map_err(|_| BatchError::InlineTooLong { len_bytes: bytes.len() })?;
        let at = self.inline_bytes.len();
        let entry = self.push(id, opcode, ibv_sge { addr: 0, length: u32::from(len_bytes), lkey: 0 })?;
        entry.inline_at = Some(at);
        entry.request.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        self.inline_bytes.extend_from_slice(bytes);
        Ok(self.entries.last_mut().expect("just pushed"))
    }

    fn push_remote<A: Access>(
        &mut self,
        id: u64,
        opcode: u32,
        local: LocalRange<A>,
        remote: RemoteRange,
    ) -> Result<Request<'_>, BatchError> {
        if local.len_bytes != remote.len_bytes {
            return Err(BatchError::Lengths { local_bytes: local.len_bytes, remote_bytes: remote.len_bytes });
        }
        let request = &mut self.push(id, opcode, segment(local))?.request;
        request.wr.rdma = rdma_sys::rdma_t { remote_addr: remote.address, rkey: remote.rkey };
        Ok(Request(request))
    }

    /// Bytes of the longest inline request.
    pub(super) fn inline_max_bytes(&self) -> u32 {
        let inline = self.entries.iter().filter(|entry| entry.inline_at.is_some());
        inline.map(|entry| entry.segment.length).max().unwrap_or(0)
    }

    /// Has everything that is no READ wait for the READs before it.
    pub(super) fn fence(&mut self) {
        for entry in
            self.entries.iter_mut().filter(|entry| entry.request.opcode != ibv_wr_opcode::IBV_WR_RDMA_READ)
        {
            entry.request.send_flags |= ibv_send_flags::IBV_SEND_FENCE.0;
        }
    }

    /// Links the requests and gives the first one; null if there is none. The pointers are valid until the batch is changed
    /// or moved.
    pub(super) fn link(&mut self) -> *mut ibv_send_wr {
        let inline_base = self.inline_bytes.as_ptr();
        let mut next = ptr::null_mut();
        for entry in self.entries.iter_mut().rev() {
            if let Some(at) = entry.inline_at {
                entry.segment.addr = inline_base.wrapping_add(at) as u64;
            }
            entry.request.sg_list = &raw mut entry.segment;
            entry.request.next = next;
            next = &raw mut entry.request;
        }
        next
    }

    /// How many requests come before `request`, which is one of them; all if it is none of them.
    pub(super) fn position(&self, request: *const ibv_send_wr) -> usize {
        let found = self.entries.iter().position(|entry| ptr::eq(&raw const entry.request, request));
        found.unwrap_or(self.entries.len())
    }

    /// Forgets the first `posted` requests.
    pub(super) fn remove_posted(&mut self, posted: usize) {
        if posted == self.entries.len() {
            self.clear();
        } else {
            self.entries.drain(..posted);
        }
    }
}

fn segment<A: Access>(range: LocalRange<A>) -> ibv_sge {
    ibv_sge { addr: range.address, length: range.len_bytes, lkey: range.lkey }
}

impl SendBatch<Rc> {
    /// A READ of `remote` into `sink`.
    ///
    /// # Errors
    /// If there is no room or the ranges do not fit each other.
    ///
    /// Only reliable connections can READ, and only into memory that the device may write to:
    /// ```compile_fail,E0599
    /// use kv_common::verbs::{LocalRange, ReadSink, RemoteRange, SendBatch, Uc};
    /// fn read(batch: &mut SendBatch<Uc>, sink: LocalRange<ReadSink>, remote: RemoteRange) {
    ///     batch.read(1, sink, remote).unwrap();
    /// }
    /// ```
    /// ```compile_fail,E0277
    /// use kv_common::verbs::{LocalRange, Rc, RemoteRange, SendBatch, SendOnly};
    /// fn read(batch: &mut SendBatch<Rc>, sink: LocalRange<SendOnly>, remote: RemoteRange) {
    ///     batch.read(1, sink, remote).unwrap();
    /// }
    /// ```
    /// ```
    /// use kv_common::verbs::{LocalRange, Rc, ReadSink, RemoteRange, SendBatch};
    /// fn read(batch: &mut SendBatch<Rc>, sink: LocalRange<ReadSink>, remote: RemoteRange) {
    ///     batch.read(1, sink, remote).unwrap().signalled();
    /// }
    /// ```
    #[inline]
    pub fn read<A: ReadTarget>(
        &mut self,
        id: u64,
        sink: LocalRange<A>,
        remote: RemoteRange,
    ) -> Result<Request<'_>, BatchError> {
        if !sink.is_read_sink {
            return Err(BatchError::NotASink);
        }
        self.push_remote(id, ibv_wr_opcode::IBV_WR_RDMA_READ, sink, remote)
    }
}

impl<K: Writes> SendBatch<K> {
    /// A WRITE of `source` to `remote`.
    ///
    /// # Errors
    /// If there is no room or the ranges do not fit each other.
    ///
    /// Datagrams cannot WRITE:
    /// ```compile_fail,E0599
    /// use kv_common::verbs::{LocalRange, RemoteRange, SendBatch, SendOnly, Ud};
    /// fn write(batch: &mut SendBatch<Ud>, source: LocalRange<SendOnly>, remote: RemoteRange) {
    ///     batch.write(1, source, remote).unwrap();
    /// }
    /// ```
    /// ```
    /// use kv_common::verbs::{LocalRange, RemoteRange, SendBatch, SendOnly, Uc};
    /// fn write(batch: &mut SendBatch<Uc>, source: LocalRange<SendOnly>, remote: RemoteRange) {
    ///     batch.write(1, source, remote).unwrap();
    /// }
    /// ```
    pub fn write<A: Access>(
        &mut self,
        id: u64,
        source: LocalRange<A>,
        remote: RemoteRange,
    ) -> Result<Request<'_>, BatchError> {
        self.push_remote(id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, source, remote)
    }

    /// A WRITE that also uses up one of the peer's receives and tells it `immediate`.
    ///
    /// # Errors
    /// As [`SendBatch::write`].
    pub fn write_with_immediate<A: Access>(
        &mut self,
        id: u64,
        source: LocalRange<A>,
        remote: RemoteRange,
        immediate: u32,
    ) -> Result<Request<'_>, BatchError> {
        let opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
        Ok(self.push_remote(id, opcode, source, remote)?.immediate(opcode, immediate))
    }

    /// A WRITE of bytes that are copied when it is posted.
    ///
    /// # Errors
    /// As [`SendBatch::write`].
    pub fn write_inline(
        &mut self,
        id: u64,
        bytes: &[u8],
        remote: RemoteRange,
    ) -> Result<Request<'_>, BatchError> {
        if bytes.len() as u64 != u64::from(remote.len_bytes) {
            let local_bytes = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            return Err(BatchError::Lengths { local_bytes, remote_bytes: remote.len_bytes });
        }
        let request = &mut self.push_inline(id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, bytes)?.request;
        request.wr.rdma = rdma_sys::rdma_t { remote_addr: remote.address, rkey: remote.rkey };
        Ok(Request(request))
    }
}

impl<K: Connected> SendBatch<K> {
    /// A SEND of `source`.
    ///
    /// # Errors
    /// If there is no room.
    pub fn send<A: Access>(&mut self, id: u64, source: LocalRange<A>) -> Result<Request<'_>, BatchError> {
        Ok(Request(&mut self.push(id, ibv_wr_opcode::IBV_WR_SEND, segment(source))?.request))
    }

    /// A SEND that tells the peer `immediate` beside its bytes.
    ///
    /// # Errors
    /// If there is no room.
    pub fn send_with_immediate<A: Access>(
        &mut self,
        id: u64,
        source: LocalRange<A>,
        immediate: u32,
    ) -> Result<Request<'_>, BatchError> {
        Ok(self.send(id, source)?.immediate(ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, immediate))
    }

    /// A SEND of bytes that are copied when it is posted: they need no registered memory, and the device fetches none.
    ///
    /// # Errors
    /// If there is no room.
    pub fn send_inline(&mut self, id: u64, bytes: &[u8]) -> Result<Request<'_>, BatchError> {
        Ok(Request(&mut self.push_inline(id, ibv_wr_opcode::IBV_WR_SEND, bytes)?.request))
    }
}

impl SendBatch<Ud> {
    /// A datagram of `source` to queue pair `queue_pair` behind `to`, which must have been given this `key`.
    ///
    /// # Errors
    /// If there is no room.
    pub fn send_to<A: Access>(
        &mut self,
        id: u64,
        source: LocalRange<A>,
        to: &Arc<AddressHandle>,
        queue_pair: u32,
        key: u32,
    ) -> Result<Request<'_>, BatchError> {
        let entry = self.push(id, ibv_wr_opcode::IBV_WR_SEND, segment(source))?;
        entry.request.wr.ud = rdma_sys::ud_t { ah: to.as_ptr(), remote_qpn: queue_pair, remote_qkey: key };
        if !self.handles.iter().any(|handle| Arc::ptr_eq(handle, to)) {
            self.handles.push(Arc::clone(to));
        }
        Ok(Request(&mut self.entries.last_mut().expect("just pushed").request))
    }
}
