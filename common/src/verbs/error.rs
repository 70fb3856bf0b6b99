//! Errors of verbs: which one, on what, errno, and what to do.

use std::io;

/// A verb that the library or the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("{verb} ({subject}): {source}{}", remedy(verb, source))]
pub struct VerbError {
    /// The function of libibverbs or librdmacm.
    pub verb: &'static str,
    /// What it was called for.
    pub subject: String,
    /// Its errno.
    pub source: io::Error,
}

impl VerbError {
    /// The error number, for callers that treat some of them on their own.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    pub(crate) fn from_errno(verb: &'static str, subject: impl Into<String>, errno: i32) -> VerbError {
        VerbError { verb, subject: subject.into(), source: io::Error::from_raw_os_error(errno) }
    }

    /// The error of a verb that just returned a null pointer or -1 and has set errno.
    pub(crate) fn last(verb: &'static str, subject: impl Into<String>) -> VerbError {
        VerbError { verb, subject: subject.into(), source: io::Error::last_os_error() }
    }
}

/// Turns what a verb returned into a result. Most return an errno, some -1 and set errno, a few a negated errno.
pub(crate) fn check(
    verb: &'static str,
    returned: i32,
    subject: impl FnOnce() -> String,
) -> Result<(), VerbError> {
    match returned {
        0 => Ok(()),
        -1 => Err(VerbError::last(verb, subject())),
        errno => Err(VerbError::from_errno(verb, subject(), errno.saturating_abs())),
    }
}

fn remedy(verb: &str, source: &io::Error) -> &'static str {
    let Some(errno) = source.raw_os_error() else { return "" };
    match errno {
        libc::EACCES | libc::EPERM => {
            "; the device files /dev/infiniband/uverbs* and rdma_cm must be readable and writable by this user \
             (udev rules of rdma-core, group rdma; in a container --device=/dev/infiniband)"
        }
        libc::ENODEV | libc::ENXIO => "; the device or its module is gone: check `rdma link` and dmesg",
        libc::ENOENT if verb.starts_with("rdma_") => "; the module rdma_ucm is not loaded: modprobe rdma_ucm",
        libc::ENOSYS | libc::EOPNOTSUPP => "; this device or its provider library does not support it",
        libc::ENOMEM if verb == "ibv_post_send" || verb.ends_with("recv") => {
            "; the queue is full: take completions before posting more"
        }
        libc::ENOMEM => {
            "; out of memory, of a resource of the device, or of what may be locked: `ulimit -l`, `rdma resource`"
        }
        libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH if verb == "ibv_modify_qp" => {
            "; the peer's GID does not answer from the chosen one: ping the peer's address from this interface, \
             and check that both sides use the same GID type"
        }
        libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => {
            "; the peer is not reachable through an RDMA device: check its address, the route, and the link"
        }
        libc::EADDRNOTAVAIL | libc::EADDRINUSE => {
            "; the address is in use, or is on no interface that has an RDMA device"
        }
        libc::EINVAL => {
            "; a value is beyond what the device can do, or does not fit its state: see `kv devices`"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_verb_subject_errno_and_remedy() {
        let text = VerbError::from_errno("ibv_open_device", "mlx5_0", libc::EACCES).to_string();
        for part in ["ibv_open_device", "mlx5_0", "os error 13", "/dev/infiniband"] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
    }

    #[test]
    fn a_full_queue_is_not_taken_for_missing_memory() {
        let post = VerbError::from_errno("ibv_post_send", "", libc::ENOMEM).to_string();
        assert!(post.contains("the queue is full"), "{post}");
        let create = VerbError::from_errno("ibv_create_cq", "", libc::ENOMEM).to_string();
        assert!(create.contains("ulimit -l"), "{create}");
    }

    #[test]
    fn all_ways_to_return_an_error_are_understood() {
        assert!(check("v", 0, String::new).is_ok());
        assert_eq!(check("v", libc::EINVAL, String::new).unwrap_err().errno(), Some(libc::EINVAL));
        assert_eq!(check("v", -libc::EINVAL, String::new).unwrap_err().errno(), Some(libc::EINVAL));
    }
}
