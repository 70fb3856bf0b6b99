//! Identifiers of rdma_cm: one end of a connection that is made, or made already.
#![allow(unsafe_code, reason = "calls librdmacm")]

use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{
    ibv_access_flags, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, rdma_cm_id, rdma_conn_param,
    rdma_port_space,
};

use super::address::RawAddress;
use super::channel::EventChannel;
use super::{CmError, CmOptions};
use crate::verbs::device::text;
use crate::verbs::error::{VerbError, check};
use crate::verbs::queue_pair::{
    Init, QueuePair, Rc, ReadyToReceive, ReadyToSend, RemoteRights, Reset, State,
};

/// An identifier and the channel that its events come by.
pub(super) struct Id {
    raw: NonNull<rdma_cm_id>,
    /// Dropped after the identifier is destroyed.
    pub(super) channel: Arc<EventChannel>,
}

// SAFETY: librdmacm may be called from any thread.
unsafe impl Send for Id {}
// SAFETY: what takes `&self` calls functions of the library, which lock what they change, or reads fields that only change
// in calls of the thread that resolves or binds, before the identifier is given to others.
unsafe impl Sync for Id {}

impl Id {
    pub(super) fn create(channel: Arc<EventChannel>) -> Result<Id, VerbError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel lives, and there is a place for the identifier.
        let returned = unsafe {
            rdma_sys::rdma_create_id(
                channel.as_ptr(),
                &mut raw,
                ptr::null_mut(),
                rdma_port_space::RDMA_PS_TCP,
            )
        };
        check("rdma_create_id", returned, || "a connection".into())?;
        let raw =
            NonNull::new(raw).ok_or_else(|| VerbError::from_errno("rdma_create_id", "", libc::ENOMEM))?;
        Ok(Id { raw, channel })
    }

    /// Takes over an identifier that came with a request by `channel`.
    pub(super) fn of_request(raw: NonNull<rdma_cm_id>, channel: &Arc<EventChannel>) -> Id {
        Id { raw, channel: Arc::clone(channel) }
    }

    pub(super) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }

    /// The device that it was bound to by resolving or by a request, and the port.
    pub(super) fn device(&self) -> Option<(String, u8)> {
        // SAFETY: the identifier lives; its device, once there, lives as long as the library.
        let (verbs, port) = unsafe { (self.raw.as_ref().verbs, self.raw.as_ref().port_num) };
        if verbs.is_null() {
            return None;
        }
        // SAFETY: not null, see above; an opened device has a description.
        Some((text(unsafe { &(*(*verbs).device).name }), port))
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier lives. All fields of the union are socket addresses that begin with their family, and the
        // largest of them is read by its family alone.
        RawAddress::read(unsafe { &self.raw.as_ref().route.addr.dst_addr_union.dst_storage })
    }

    pub(super) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: as for `peer`.
        RawAddress::read(unsafe { &self.raw.as_ref().route.addr.src_addr_union.src_storage })
    }

    /// Asks rdma_cm what a queue pair has to be told to get to `state`, corrects it, and tells it.
    fn step<T: State>(
        &self,
        pair: QueuePair<Rc, impl State>,
        state: u32,
        rights: RemoteRights,
        correct: impl FnOnce(&mut ibv_qp_attr),
    ) -> Result<QueuePair<Rc, T>, VerbError> {
        // SAFETY: every field is an integer or a struct or union of integers, for which zero is a value.
        let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = state;
        let mut mask = 0;
        // SAFETY: the identifier lives, and both places are valid.
        let returned = unsafe { rdma_sys::rdma_init_qp_attr(self.as_ptr(), &mut attributes, &mut mask) };
        check("rdma_init_qp_attr", returned, || format!("queue pair state {state}"))?;
        attributes.qp_access_flags = rights.flags();
        if pair.domain().context().is_iwarp() {
            // There the answers to this side's READs come as writes, which some adapters have to be allowed.
            attributes.qp_access_flags |= ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        }
        correct(&mut attributes);
        // Bits above those of verbs are the kernel's own.
        let known = ibv_qp_attr_mask::IBV_QP_DEST_QPN.0 * 2 - 1;
        let mask = ibv_qp_attr_mask(mask.cast_unsigned() & known);
        pair.modify(attributes, mask, || format!("state {state}, as rdma_cm says"))
    }

    /// To the state in which receives can be posted, on the port of the route.
    pub(super) fn initialize(
        &self,
        pair: QueuePair<Rc, Reset>,
        rights: RemoteRights,
    ) -> Result<QueuePair<Rc, Init>, CmError> {
        let (route, _) = self.device().unwrap_or_default();
        let queue_pair = pair.domain().context().device().name.clone();
        if route != queue_pair {
            return Err(CmError::WrongDevice { route, queue_pair });
        }
        Ok(self.step(pair, ibv_qp_state::IBV_QPS_INIT, rights, |_| {})?)
    }

    /// To the state in which it can send. On iWARP the kernel has done or will do that itself.
    pub(super) fn ready(
        &self,
        pair: QueuePair<Rc, Init>,
        options: &CmOptions,
        reads_served_max: u8,
        reads_started_max: u8,
    ) -> Result<QueuePair<Rc, ReadyToSend>, VerbError> {
        let retry = options.retry.bounded();
        if pair.domain().context().is_iwarp() {
            return Ok(pair.assume_moved());
        }
        let mtu_max = u32::from(options.mtu_max.code());
        let pair: QueuePair<Rc, ReadyToReceive> =
            self.step(pair, ibv_qp_state::IBV_QPS_RTR, options.rights, |attributes| {
                attributes.path_mtu = attributes.path_mtu.min(mtu_max);
                attributes.max_dest_rd_atomic = reads_served_max;
                attributes.min_rnr_timer = retry.receiver_timer;
            })?;
        self.step(pair, ibv_qp_state::IBV_QPS_RTS, options.rights, |attributes| {
            attributes.max_rd_atomic = reads_started_max;
            attributes.timeout = retry.timeout_exponent;
            attributes.retry_cnt = retry.retries;
            attributes.rnr_retry = retry.receiver_retries;
        })
    }
}

/// What is sent to the peer with a request or a reply. The private data must live until it was used.
pub(super) fn parameters(
    options: &CmOptions,
    pair: &QueuePair<Rc, impl State>,
    reads_served_max: u8,
    reads_started_max: u8,
) -> rdma_conn_param {
    let retry = options.retry.bounded();
    rdma_conn_param {
        private_data: options.private_data.as_ptr().cast(),
        // The caller has compared it with a limit below 256.
        private_data_len: options.private_data.len() as u8,
        responder_resources: reads_served_max,
        initiator_depth: reads_started_max,
        flow_control: 1,
        retry_count: retry.retries,
        rnr_retry_count: retry.receiver_retries,
        srq: u8::from(pair.uses_shared_receive()),
        qp_num: pair.number(),
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: events are acknowledged when they are taken, so this waits at most for the moment in which another thread
        // takes one; destroyed once, and before its channel. No queue pair was made through it.
        if unsafe { rdma_sys::rdma_destroy_id(self.as_ptr()) } != 0 {
            tracing::error!("an identifier of rdma_cm could not be destroyed");
        }
    }
}

/// A connection that rdma_cm made. Dropping it tells the peer's rdma_cm that it is over; the queue pair is not touched, and
/// is better brought to the error state before.
pub struct CmConnection {
    pub(super) id: Id,
    pub(super) reads_started_max: u8,
    pub(super) reads_served_max: u8,
}

impl CmConnection {
    /// READs that this side may have in flight.
    pub fn reads_started_max(&self) -> u8 {
        self.reads_started_max
    }

    /// READs of the peer that this side serves at once.
    pub fn reads_served_max(&self) -> u8 {
        self.reads_served_max
    }

    /// The peer's address.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.id.peer()
    }
}
