//! Completions of work requests.
#![allow(unsafe_code, reason = "reads a union of libibverbs")]

use rdma_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode};

use super::status::CompletionStatus;

/// One work request that is done or has failed.
#[derive(Clone, Copy)]
pub struct Completion<'room>(&'room ibv_wc);

/// What a successful completion was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// A SEND.
    Send,
    /// A WRITE, with or without immediate.
    Write,
    /// A READ: its bytes are there.
    Read,
    /// A RECV of a SEND.
    Receive {
        /// Bytes of the message, the 40 bytes of a datagram's header included.
        len_bytes: u32,
        /// The number that came with it.
        immediate: Option<u32>,
    },
    /// A RECV that a WRITE with immediate used up.
    ReceiveWrite {
        /// Bytes that were written.
        len_bytes: u32,
        /// The number that came with it.
        immediate: u32,
    },
    /// Another number of `enum ibv_wc_opcode`.
    Other(u32),
}

/// A work request that failed. Its queue pair is in the error state, unless it is unreliable and the request was a SEND
/// or WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("queue pair {queue_pair:#x}, vendor error {vendor_error:#x}: {status}")]
pub struct CompletionError {
    /// What went wrong.
    pub status: CompletionStatus,
    /// What the adapter adds; only its vendor knows the meaning.
    pub vendor_error: u32,
    /// Number of the queue pair.
    pub queue_pair: u32,
}

impl<'room> Completion<'room> {
    pub(super) fn new(raw: &'room ibv_wc) -> Completion<'room> {
        Completion(raw)
    }

    /// The number that the request was posted with.
    #[inline]
    pub fn id(self) -> u64 {
        self.0.wr_id
    }

    /// Number of the queue pair on this side.
    #[inline]
    pub fn queue_pair(self) -> u32 {
        self.0.qp_num
    }

    /// Number of the queue pair that a datagram came from.
    pub fn source_queue_pair(self) -> u32 {
        self.0.src_qp
    }

    /// What was done.
    ///
    /// # Errors
    /// If the request failed; then nothing else is known but its id and its queue pair.
    #[inline]
    pub fn result(self) -> Result<Completed, CompletionError> {
        match CompletionStatus::from_code(self.0.status) {
            None => Ok(self.completed()),
            Some(status) => {
                Err(CompletionError { status, vendor_error: self.0.vendor_err, queue_pair: self.0.qp_num })
            }
        }
    }

    fn completed(self) -> Completed {
        match self.0.opcode {
            ibv_wc_opcode::IBV_WC_SEND => Completed::Send,
            ibv_wc_opcode::IBV_WC_RDMA_WRITE => Completed::Write,
            ibv_wc_opcode::IBV_WC_RDMA_READ => Completed::Read,
            ibv_wc_opcode::IBV_WC_RECV => {
                let has_immediate = self.0.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
                Completed::Receive {
                    len_bytes: self.0.byte_len,
                    immediate: has_immediate.then(|| self.immediate()),
                }
            }
            ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => {
                Completed::ReceiveWrite { len_bytes: self.0.byte_len, immediate: self.immediate() }
            }
            other => Completed::Other(other),
        }
    }

    fn immediate(self) -> u32 {
        // SAFETY: both fields of the union are 32-bit integers, and all of it was written.
        u32::from_be(unsafe { self.0.imm_data_invalidated_rkey_union.imm_data })
    }
}
