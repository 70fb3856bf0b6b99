//! The RDMA devices of this host, and why there may be none.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::{fs, ptr};

use rdma_sys::{ibv_device, ibv_node_type, ibv_transport_type};

use super::error::VerbError;

/// Where the kernel lists RDMA devices.
const SYSFS: &str = "/sys/class/infiniband";
/// Where their device files are.
const DEV: &str = "/dev/infiniband";

/// What kind of adapter a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeType {
    /// A channel adapter: InfiniBand or RoCE.
    ChannelAdapter,
    /// An iWARP adapter.
    Rnic,
    /// Something else, by its number in `enum ibv_node_type`.
    Other(i32),
}

/// Which protocol family a device speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand packets, on an InfiniBand link or (RoCE) on Ethernet.
    InfiniBand,
    /// iWARP: connections are made by rdma_cm only, and the sink of a READ needs remote write access.
    Iwarp,
    /// Something else, by its number in `enum ibv_transport_type`.
    Other(i32),
}

/// One RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name, as `rdma link` shows it.
    pub name: String,
    /// What it is.
    pub node_type: NodeType,
    /// What it speaks.
    pub transport: Transport,
    /// Its globally unique identifier.
    pub guid: u64,
    /// Its directory in sysfs.
    pub sysfs: PathBuf,
}

/// Why a host shows no usable device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absence {
    /// The kernel knows of no RDMA at all.
    #[error(
        "the kernel has no RDMA device ({SYSFS} is missing): load the adapter's module (mlx5_ib, irdma, bnxt_re, ...), \
         or make a software one: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0"
    )]
    NoSubsystem,
    /// RDMA is there, a device is not.
    #[error(
        "the kernel's list of RDMA devices is empty ({SYSFS}): is the adapter's module loaded (lspci, lsmod), and in a \
         container: does this network namespace own the device (rdma system)?"
    )]
    NoDevice,
    /// The device files are not there.
    #[error(
        "there are RDMA devices but no device files ({DEV}/uverbs*): modprobe ib_uverbs; in a container pass them: \
         docker run --device=/dev/infiniband --cap-add=IPC_LOCK, in Kubernetes a resource such as rdma/hca: 1"
    )]
    NoDeviceFiles,
    /// The library cannot drive it.
    #[error(
        "there are RDMA devices and device files, but libibverbs has no provider for them: install ibverbs-providers \
         (Debian, Ubuntu) or the vendor's package"
    )]
    NoProvider,
}

/// Says why [`devices`] is empty on this host.
pub fn absence() -> Absence {
    absence_below(Path::new("/"))
}

fn absence_below(root: &Path) -> Absence {
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    let Ok(mut listed) = fs::read_dir(below(SYSFS)) else { return Absence::NoSubsystem };
    if listed.next().is_none() {
        return Absence::NoDevice;
    }
    let has_files = fs::read_dir(below(DEV)).is_ok_and(|files| {
        files.flatten().any(|file| file.file_name().as_encoded_bytes().starts_with(b"uverbs"))
    });
    if has_files { Absence::NoProvider } else { Absence::NoDeviceFiles }
}

/// All RDMA devices, in the library's order.
///
/// # Errors
/// If the library cannot list them. A host without RDMA has an empty list: [`absence`] says why.
pub fn devices() -> Result<Vec<Device>, VerbError> {
    let list = DeviceList::get()?;
    Ok(list.raw().iter().map(|&device| list.describe(device)).collect())
}

/// The library's list; its pointers are valid for as long as this lives.
pub(super) struct DeviceList {
    list: *mut *mut ibv_device,
    len: usize,
}

impl DeviceList {
    pub(super) fn get() -> Result<DeviceList, VerbError> {
        let mut len = 0;
        // SAFETY: `len` is a valid place for the number of devices; the result is checked for null.
        let list = unsafe { rdma_sys::ibv_get_device_list(&mut len) };
        if list.is_null() {
            let error = VerbError::last("ibv_get_device_list", "all devices");
            return match error.errno() {
                // The kernel has no RDMA: that is an empty list, not a failure.
                Some(libc::ENOSYS | libc::ENOENT) => Ok(DeviceList { list: ptr::null_mut(), len: 0 }),
                _ => Err(error),
            };
        }
        Ok(DeviceList { list, len: usize::try_from(len).unwrap_or(0) })
    }

    pub(super) fn raw(&self) -> &[*mut ibv_device] {
        if self.list.is_null() {
            return &[];
        }
        // SAFETY: the library returned an array of `len` pointers at `list`, which nobody writes to and which lives until
        // `ibv_free_device_list` in `drop`; the slice borrows `self`.
        unsafe { std::slice::from_raw_parts(self.list, self.len) }
    }

    /// What `device`, an element of this list, is.
    pub(super) fn describe(&self, device: *mut ibv_device) -> Device {
        // SAFETY: pointers of the list are valid while it lives, and the library does not change what they point to.
        let raw = unsafe { &*device };
        // SAFETY: as above; the function only reads the device's attribute in sysfs.
        let guid = u64::from_be(unsafe { rdma_sys::ibv_get_device_guid(device) });
        Device {
            name: text(&raw.name),
            node_type: match raw.node_type {
                ibv_node_type::IBV_NODE_CA => NodeType::ChannelAdapter,
                ibv_node_type::IBV_NODE_RNIC => NodeType::Rnic,
                other => NodeType::Other(other),
            },
            transport: match raw.transport_type {
                ibv_transport_type::IBV_TRANSPORT_IB => Transport::InfiniBand,
                ibv_transport_type::IBV_TRANSPORT_IWARP => Transport::Iwarp,
                other => Transport::Other(other),
            },
            guid,
            sysfs: PathBuf::from(text(&raw.ibdev_path)),
        }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if !self.list.is_null() {
            // SAFETY: the list came from `ibv_get_device_list` and is freed once; opened devices keep their own reference.
            unsafe { rdma_sys::ibv_free_device_list(self.list) };
        }
    }
}

/// The text in a zero-terminated array; all of it if there is no zero.
pub(super) fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|&c| c.cast_unsigned()).collect();
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_that_is_missing_has_its_own_reason() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        assert_eq!(absence_below(root.path()), Absence::NoSubsystem);
        fs::create_dir_all(at("sys/class/infiniband")).unwrap();
        assert_eq!(absence_below(root.path()), Absence::NoDevice);
        fs::create_dir(at("sys/class/infiniband/mlx5_0")).unwrap();
        assert_eq!(absence_below(root.path()), Absence::NoDeviceFiles);
        fs::create_dir_all(at("dev/infiniband")).unwrap();
        fs::write(at("dev/infiniband/rdma_cm"), "").unwrap();
        assert_eq!(absence_below(root.path()), Absence::NoDeviceFiles, "rdma_cm alone opens no device");
        fs::write(at("dev/infiniband/uverbs0"), "").unwrap();
        assert_eq!(absence_below(root.path()), Absence::NoProvider);
    }

    #[test]
    fn text_ends_at_the_first_zero_or_at_the_end() {
        assert_eq!(text(&[b'r', b'x', 0, b'y'].map(u8::cast_signed)), "rx");
        assert_eq!(text(&[b'r', b'x'].map(u8::cast_signed)), "rx");
    }
}
