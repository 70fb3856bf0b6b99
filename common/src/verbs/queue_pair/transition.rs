//! From state to state.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::mem;

use rdma_sys::{ibv_access_flags, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_state};

use super::{Connected, Error, Init, Kind, QueuePair, Rc, ReadyToReceive, ReadyToSend, Reset, State, Uc, Ud};
use crate::verbs::error::{VerbError, check};
use crate::verbs::path::Path;

/// What a peer may do through a queue pair. Memory has to allow it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteRights {
    /// SEND only.
    None,
    /// READ.
    Read,
    /// READ and WRITE.
    ReadWrite,
}

impl RemoteRights {
    pub(in crate::verbs) fn flags(self) -> u32 {
        let (read, write) =
            (ibv_access_flags::IBV_ACCESS_REMOTE_READ, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE);
        match self {
            RemoteRights::None => 0,
            RemoteRights::Read => read.0,
            RemoteRights::ReadWrite => read.0 | write.0,
        }
    }
}

const STATE: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_STATE;

/// Attributes with only a state in them.
fn attributes(state: u32) -> ibv_qp_attr {
    // SAFETY: every field is an integer or a struct or union of integers, for which zero is a value.
    let mut attributes: ibv_qp_attr = unsafe { mem::zeroed() };
    attributes.qp_state = state;
    attributes
}

impl<K: Kind, S: State> QueuePair<K, S> {
    /// Changes attributes of the device's object, and the type.
    pub(in crate::verbs) fn modify<T: State>(
        self,
        mut attributes: ibv_qp_attr,
        mask: ibv_qp_attr_mask,
        subject: impl FnOnce() -> String,
    ) -> Result<QueuePair<K, T>, VerbError> {
        // SAFETY: the queue pair lives; the attributes are valid and the mask names those that were set.
        let returned =
            unsafe { rdma_sys::ibv_modify_qp(self.as_ptr(), &mut attributes, mask.0.cast_signed()) };
        check("ibv_modify_qp", returned, || format!("{} {:#x}, {}", K::NAME, self.number(), subject()))?;
        Ok(QueuePair::from_inner(self.inner))
    }

    /// The type follows a step that the kernel made or will make, before the queue pair is handed out.
    pub(in crate::verbs) fn assume_moved<T: State>(self) -> QueuePair<K, T> {
        QueuePair::from_inner(self.inner)
    }

    /// Drives it to the error state: everything posted and everything that will be posted completes as flushed. Buffers are
    /// free when their completions were taken. The last request posted after this completes last: post a marker to know
    /// that the send queue is empty.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn into_error(self) -> Result<QueuePair<K, Error>, VerbError> {
        self.modify(attributes(ibv_qp_state::IBV_QPS_ERR), STATE, || "to the error state".into())
    }

    /// The state that the device says it is in, as the number of verbs: 3 is ready to send, 6 is the error state.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn device_state(&self) -> Result<u32, VerbError> {
        let mut found = attributes(0);
        // SAFETY: every field is an integer, a pointer, or a struct of these, for which zero is a value.
        let mut made_with: ibv_qp_init_attr = unsafe { mem::zeroed() };
        // SAFETY: the queue pair lives; both places are valid.
        let returned = unsafe {
            rdma_sys::ibv_query_qp(self.as_ptr(), &mut found, STATE.0.cast_signed(), &mut made_with)
        };
        check("ibv_query_qp", returned, || format!("{} {:#x}", K::NAME, self.number()))?;
        Ok(found.qp_state)
    }
}

impl<K: Connected> QueuePair<K, Reset> {
    /// Ties it to a port and says what the peer may do.
    ///
    /// # Errors
    /// If there is no such port.
    pub fn initialize(self, port: u8, rights: RemoteRights) -> Result<QueuePair<K, Init>, VerbError> {
        let mut to = attributes(ibv_qp_state::IBV_QPS_INIT);
        to.port_num = port;
        to.qp_access_flags = rights.flags();
        let mask = STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        self.modify(to, mask, || format!("to port {port}"))
    }
}

/// What both kinds of connection have to know about the peer, and its mask.
fn towards(path: &Path) -> (ibv_qp_attr, ibv_qp_attr_mask) {
    let mut to = attributes(ibv_qp_state::IBV_QPS_RTR);
    to.ah_attr = path.to_raw();
    to.path_mtu = u32::from(path.mtu.code());
    to.dest_qp_num = path.remote_queue_pair;
    to.rq_psn = path.remote_sequence;
    let mask = STATE
        | ibv_qp_attr_mask::IBV_QP_AV
        | ibv_qp_attr_mask::IBV_QP_PATH_MTU
        | ibv_qp_attr_mask::IBV_QP_DEST_QPN
        | ibv_qp_attr_mask::IBV_QP_RQ_PSN;
    (to, mask)
}

impl QueuePair<Rc, Init> {
    /// Tells it its peer. From now on what the peer sends is received.
    ///
    /// # Errors
    /// If the peer's address cannot be resolved.
    pub fn ready_to_receive(self, path: &Path) -> Result<QueuePair<Rc, ReadyToReceive>, VerbError> {
        let (mut to, mask) = towards(path);
        to.max_dest_rd_atomic = path.reads_served_max;
        to.min_rnr_timer = path.retry.receiver_timer;
        let mask =
            mask | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(to, mask, || format!("ready to receive: {path}"))
    }

    /// Both steps: for a side that knows that the peer is ready to receive, or does not send before it knows.
    ///
    /// # Errors
    /// As the two steps.
    pub fn connect(self, path: &Path) -> Result<QueuePair<Rc, ReadyToSend>, VerbError> {
        self.ready_to_receive(path)?.ready_to_send(path)
    }
}

impl QueuePair<Rc, ReadyToReceive> {
    /// Lets it send.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn ready_to_send(self, path: &Path) -> Result<QueuePair<Rc, ReadyToSend>, VerbError> {
        let mut to = attributes(ibv_qp_state::IBV_QPS_RTS);
        to.sq_psn = path.local_sequence;
        to.timeout = path.retry.timeout_exponent;
        to.retry_cnt = path.retry.retries;
        to.rnr_retry = path.retry.receiver_retries;
        to.max_rd_atomic = path.reads_started_max;
        let mask = STATE
            | ibv_qp_attr_mask::IBV_QP_SQ_PSN
            | ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
            | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(to, mask, || format!("ready to send: {path}"))
    }
}

impl QueuePair<Uc, Init> {
    /// Tells it its peer. From now on what the peer sends is received.
    ///
    /// # Errors
    /// If the peer's address cannot be resolved.
    pub fn ready_to_receive(self, path: &Path) -> Result<QueuePair<Uc, ReadyToReceive>, VerbError> {
        let (to, mask) = towards(path);
        self.modify(to, mask, || format!("ready to receive: {path}"))
    }

    /// Both steps.
    ///
    /// # Errors
    /// As the two steps.
    pub fn connect(self, path: &Path) -> Result<QueuePair<Uc, ReadyToSend>, VerbError> {
        self.ready_to_receive(path)?.ready_to_send(path)
    }
}

impl QueuePair<Uc, ReadyToReceive> {
    /// Lets it send.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn ready_to_send(self, path: &Path) -> Result<QueuePair<Uc, ReadyToSend>, VerbError> {
        let mut to = attributes(ibv_qp_state::IBV_QPS_RTS);
        to.sq_psn = path.local_sequence;
        self.modify(to, STATE | ibv_qp_attr_mask::IBV_QP_SQ_PSN, || format!("ready to send: {path}"))
    }
}

impl QueuePair<Ud, Reset> {
    /// Ties it to a port; datagrams to it must carry `key`. It can send at once, its first packet with number `sequence`.
    ///
    /// # Errors
    /// If there is no such port.
    pub fn open(self, port: u8, key: u32, sequence: u32) -> Result<QueuePair<Ud, ReadyToSend>, VerbError> {
        let mut to = attributes(ibv_qp_state::IBV_QPS_INIT);
        to.port_num = port;
        to.qkey = key;
        let mask = STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_QKEY;
        let pair: QueuePair<Ud, Init> = self.modify(to, mask, || format!("to port {port}"))?;
        let pair: QueuePair<Ud, ReadyToReceive> =
            pair.modify(attributes(ibv_qp_state::IBV_QPS_RTR), STATE, || "ready to receive".into())?;
        let mut to = attributes(ibv_qp_state::IBV_QPS_RTS);
        to.sq_psn = sequence;
        pair.modify(to, STATE | ibv_qp_attr_mask::IBV_QP_SQ_PSN, || "ready to send".into())
    }
}

impl<K: Kind> QueuePair<K, Error> {
    /// Forgets everything, so that it can be connected again. Requests that have not completed never will: take all
    /// completions first.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn reset(self) -> Result<QueuePair<K, Reset>, VerbError> {
        self.modify(attributes(ibv_qp_state::IBV_QPS_RESET), STATE, || "to reset".into())
    }
}
