//! Who is at the other end of a Unix socket, as the kernel says.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The process that called `connect` (for the server) or `listen` (for the client), at that time (unix(7), SO_PEERCRED).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its process; `None` if it cannot be seen from here (another container).
    pub pid: Option<u32>,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

impl PeerCredentials {
    /// The credentials of the peer of the connected socket `socket`.
    ///
    /// # Errors
    /// What the kernel said, for instance that it is no Unix socket.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
        // rustix has this call with a process number that must not be 0, which it is for a peer in another container.
        let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the descriptor is open while it is borrowed; `found` and `len` are valid for writes, and `len` is the
        // size of `found`, more than which the kernel does not write.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut len,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let pid = u32::try_from(found.pid).ok().filter(|&pid| pid != 0);
        Ok(PeerCredentials { pid, uid: found.uid, gid: found.gid })
    }
}
