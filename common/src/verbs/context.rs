//! An opened device.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{ibv_context, ibv_device_attr, ibv_port_attr};
use rustix::fs::OFlags;

use super::device::{Absence, Device, DeviceList, Transport, absence, text};
use super::error::{VerbError, check};
use super::gid::{self, GidEntry};
use super::port::PortAttributes;

/// An opened device; everything else is made from it.
pub struct Context {
    raw: NonNull<ibv_context>,
    device: Device,
}

// SAFETY: all functions of libibverbs may be called from any thread, also at once on one object (libibverbs' README and
// rdma-core's Documentation/libibverbs.md), and nothing in `Context` changes after it was made.
unsafe impl Send for Context {}
// SAFETY: as for `Send`.
unsafe impl Sync for Context {}

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no device at all.
    #[error("no RDMA device: {0}")]
    None(Absence),
    /// There is none of that name. Another one is never taken instead.
    #[error("there is no RDMA device {wanted:?}; there are: {}", found.join(", "))]
    NoSuchDevice {
        /// The name asked for.
        wanted: String,
        /// The names that there are.
        found: Vec<String>,
    },
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

/// What a device can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Version of the firmware.
    pub firmware: String,
    /// Bytes of the largest memory region.
    pub memory_region_max_bytes: u64,
    /// Memory regions.
    pub memory_regions_max: u32,
    /// Queue pairs.
    pub queue_pairs_max: u32,
    /// Outstanding requests of one queue.
    pub requests_per_queue_max: u32,
    /// Segments of one request.
    pub segments_max: u32,
    /// Completion queues.
    pub completion_queues_max: u32,
    /// Entries of one completion queue.
    pub completions_max: u32,
    /// Shared receive queues.
    pub shared_receive_queues_max: u32,
    /// Outstanding requests of one shared receive queue.
    pub shared_receive_requests_max: u32,
    /// READs in flight that a queue pair can serve for its peer.
    pub reads_served_max: u8,
    /// READs in flight that a queue pair can have itself.
    pub reads_started_max: u8,
    /// Ports, numbered from 1.
    pub ports: u8,
    /// Vendor, as in PCI.
    pub vendor: u32,
    /// The vendor's number of the part.
    pub part: u32,
}

impl Context {
    /// Opens the device called `name`, or the first one if there is no name.
    ///
    /// # Errors
    /// If there is no such device or it cannot be opened.
    pub fn open(name: Option<&str>) -> Result<Arc<Context>, OpenError> {
        let list = DeviceList::get()?;
        if list.raw().is_empty() {
            return Err(OpenError::None(absence()));
        }
        let all: Vec<Device> = list.raw().iter().map(|&device| list.describe(device)).collect();
        let Some(at) = all.iter().position(|device| name.is_none_or(|name| device.name == name)) else {
            return Err(OpenError::NoSuchDevice {
                wanted: name.unwrap_or_default().to_owned(),
                found: all.into_iter().map(|device| device.name).collect(),
            });
        };
        // SAFETY: the pointer is an element of the list, which is alive; an opened device outlives the list.
        let raw = unsafe { rdma_sys::ibv_open_device(list.raw()[at]) };
        let raw =
            NonNull::new(raw).ok_or_else(|| VerbError::last("ibv_open_device", all[at].name.clone()))?;
        let context = Context { raw, device: all[at].clone() };
        context.make_events_nonblocking()?;
        Ok(Arc::new(context))
    }

    fn make_events_nonblocking(&self) -> Result<(), VerbError> {
        nonblocking(self.async_fd()).map_err(|source| VerbError {
            verb: "fcntl",
            subject: format!("events of {}", self.device.name),
            source,
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// True if it is an iWARP device: connections by rdma_cm only, and READ sinks need remote write access.
    pub fn is_iwarp(&self) -> bool {
        self.device.transport == Transport::Iwarp
    }

    /// Completion vectors: interrupts that completion queues can be spread over.
    pub fn completion_vectors(&self) -> u32 {
        // SAFETY: the context is open, and the field does not change.
        u32::try_from(unsafe { self.raw.as_ref() }.num_comp_vectors).unwrap_or(1)
    }

    /// The descriptor that becomes readable when [`Context::next_event`] has something.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and the field does not change.
        let fd = unsafe { self.raw.as_ref() }.async_fd;
        // SAFETY: the library closes it in `ibv_close_device`, which is in `drop`; the result borrows `self`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// What the device can do.
    ///
    /// # Errors
    /// If the device does not answer.
    pub fn attributes(&self) -> Result<DeviceAttributes, VerbError> {
        let mut raw = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open and `raw` is a place for the attributes.
        let returned = unsafe { rdma_sys::ibv_query_device(self.as_ptr(), raw.as_mut_ptr()) };
        check("ibv_query_device", returned, || self.device.name.clone())?;
        // SAFETY: all fields are integers, for which the zeroes that were there before are values too.
        let raw = unsafe { raw.assume_init() };
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        let depth = |value: i32| u8::try_from(value.max(0)).unwrap_or(u8::MAX);
        Ok(DeviceAttributes {
            firmware: text(&raw.fw_ver),
            memory_region_max_bytes: raw.max_mr_size,
            memory_regions_max: count(raw.max_mr),
            queue_pairs_max: count(raw.max_qp),
            requests_per_queue_max: count(raw.max_qp_wr),
            segments_max: count(raw.max_sge),
            completion_queues_max: count(raw.max_cq),
            completions_max: count(raw.max_cqe),
            shared_receive_queues_max: count(raw.max_srq),
            shared_receive_requests_max: count(raw.max_srq_wr),
            reads_served_max: depth(raw.max_qp_rd_atom),
            reads_started_max: depth(raw.max_qp_init_rd_atom),
            ports: raw.phys_port_cnt,
            vendor: raw.vendor_id,
            part: raw.vendor_part_id,
        })
    }

    /// State and limits of port `port`; they are numbered from 1.
    ///
    /// # Errors
    /// If there is no such port.
    pub fn port(&self, port: u8) -> Result<PortAttributes, VerbError> {
        let mut raw = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the context is open and `raw` is a place for the attributes, zeroed as the C wrapper does.
        let returned = unsafe { rdma_sys::___ibv_query_port(self.as_ptr(), port, raw.as_mut_ptr()) };
        check("ibv_query_port", returned, || format!("{}:{port}", self.device.name))?;
        // SAFETY: all fields are integers, for which the zeroes that were there before are values too.
        Ok(PortAttributes::from_raw(&unsafe { raw.assume_init() }))
    }

    /// The GIDs of a port, empty entries left out.
    ///
    /// # Errors
    /// If sysfs does not show them.
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbError> {
        let directory = self.device.sysfs.join("ports").join(port.to_string());
        gid::read_table(&directory, self.device.transport).map_err(|source| VerbError {
            verb: "reading the GID table",
            subject: directory.display().to_string(),
            source,
        })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything made from this context keeps an `Arc` of it, so nothing of it is left; closed once.
        if unsafe { rdma_sys::ibv_close_device(self.raw.as_ptr()) } != 0 {
            tracing::error!(device = self.device.name, "the device could not be closed");
        }
    }
}

/// Makes reads of a descriptor that belongs to the library return instead of wait.
pub(super) fn nonblocking(fd: BorrowedFd<'_>) -> std::io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd.as_fd())?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}
