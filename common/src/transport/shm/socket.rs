//! The Unix socket by which clients come: one server per path, and who is at the other end.
//!
//! A server holds a lock on `PATH.lock` for its life. So of two servers on one path one is refused, a socket file that a
//! killed server left behind can be removed safely, and no moment exists at which a third party's file is removed.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::credentials::PeerCredentials;

/// Most bytes of a socket's path: `sun_path` has 108 with the zero at the end (unix(7)).
pub const PATH_MAX_BYTES: usize = 107;

/// Who may connect unless told otherwise: the server's own user.
pub const DEFAULT_MODE: u32 = 0o600;

/// Connections that wait for `accept`.
const BACKLOG: i32 = 1024;

/// Another server may remove its lock file just when we open it; more often than this it does not happen by chance.
const LOCK_ATTEMPTS: usize = 16;

/// A path that can be no socket's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Nothing.
    #[error("the socket's path is empty")]
    Empty,
    /// The kernel has no room for it.
    #[error(
        "the socket's path has {found_bytes} bytes, and at most {limit_bytes} are possible; choose a shorter one"
    )]
    TooLong {
        /// Most bytes of a path.
        limit_bytes: usize,
        /// Bytes of the path.
        found_bytes: usize,
    },
    /// A zero byte within.
    #[error("the socket's path contains a zero byte")]
    ZeroByte,
}

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The path itself.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The directory is not there.
    #[error("the directory {} does not exist or is none; create it first", .directory.display())]
    MissingDirectory {
        /// The directory.
        directory: PathBuf,
    },
    /// This process may not do that there.
    #[error("permission denied at {}; check the owner and mode of it and its directory", .path.display())]
    PermissionDenied {
        /// What could not be opened, made or removed.
        path: PathBuf,
    },
    /// Somebody serves this path.
    #[error("another server is running on {}{}; stop it or choose another path", .path.display(), pid_note(*.pid))]
    AnotherServer {
        /// The socket's path.
        path: PathBuf,
        /// Its process, if it told.
        pid: Option<u32>,
    },
    /// The path is a file that no server left there.
    #[error("{} exists and is not a socket; remove it or choose another path", .path.display())]
    NotASocket {
        /// The socket's path.
        path: PathBuf,
    },
    /// The kernel refused a step.
    #[error("cannot {step} {}: {source}", .path.display())]
    Os {
        /// The step.
        step: &'static str,
        /// At what.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

fn pid_note(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

/// Why a client cannot connect.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The path itself.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Nobody listens.
    #[error("no server at {}: {}; start kv-server or check the path", .path.display(), if *.stale { "nobody listens on this socket any more" } else { "no such socket" })]
    NoServer {
        /// The socket's path.
        path: PathBuf,
        /// True if a socket file is there that nobody listens on.
        stale: bool,
    },
    /// This process may not connect.
    #[error("permission denied at {}; the server's socket mode decides who may connect", .path.display())]
    PermissionDenied {
        /// The socket's path.
        path: PathBuf,
    },
    /// The path is something else.
    #[error("{} is not a server's socket", .path.display())]
    NotASocket {
        /// The socket's path.
        path: PathBuf,
    },
    /// The server's queue of new connections stayed full.
    #[error("the server at {} did not take the connection in time; is it stopped?", .path.display())]
    Timeout {
        /// The socket's path.
        path: PathBuf,
    },
    /// The kernel refused.
    #[error("cannot connect to {}: {source}", .path.display())]
    Os {
        /// The socket's path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A listening socket and the right to its path. Dropping it removes both files.
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
    /// Dropped last: the path is ours until the socket is gone.
    _lock: PathLock,
}

/// A connection that was accepted. It does not block.
pub struct Accepted {
    /// The connection.
    pub stream: UnixStream,
    /// Who is at the other end.
    pub peer: PeerCredentials,
}

impl Listener {
    /// Listens on `path`, which whoever `mode` (permission bits) allows may connect to.
    ///
    /// A socket file that a dead server left there is replaced.
    ///
    /// # Errors
    /// [`BindError`]; then nothing was changed, a stale socket perhaps removed.
    pub fn bind(path: &Path, mode: u32) -> Result<Listener, BindError> {
        check_path(path)?;
        let lock = PathLock::take(path)?;
        remove_stale(path)?;
        let listener = listen(path, mode).map_err(|(step, errno)| match errno {
            Errno::ADDRINUSE => BindError::AnotherServer { path: path.into(), pid: None },
            errno => bind_error(step, path, errno.into()),
        })?;
        Ok(Listener { listener, path: path.into(), _lock: lock })
    }

    /// The next connection; `None` if none waits.
    ///
    /// # Errors
    /// What the kernel said; out of descriptors for instance. Later calls may succeed.
    pub fn accept(&self) -> io::Result<Option<Accepted>> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if is_nobody(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(true)?;
        let peer = PeerCredentials::of(stream.as_fd())?;
        Ok(Some(Accepted { stream, peer }))
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Nobody else may have put something here while the lock is held.
        let _ = fs::remove_file(&self.path);
    }
}

/// Nobody waits, or nobody any more.
fn is_nobody(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted)
}

/// Connects to the server on `path`. The stream does not block.
///
/// # Errors
/// [`ConnectError`], by the deadline.
pub fn connect(path: &Path, deadline: Instant) -> Result<UnixStream, ConnectError> {
    check_path(path)?;
    let address = SocketAddrUnix::new(path).map_err(|errno| connect_error(path, errno))?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ConnectError::Timeout { path: path.into() });
        }
        let socket = new_socket(SocketFlags::CLOEXEC).map_err(|errno| connect_error(path, errno))?;
        // A non-blocking connect to a full queue fails at once and cannot be waited for; a blocking one obeys this.
        set_socket_timeout(&socket, Timeout::Send, Some(left.max(Duration::from_millis(1))))
            .map_err(|errno| connect_error(path, errno))?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => {
                let stream = UnixStream::from(socket);
                return match stream.set_nonblocking(true) {
                    Ok(()) => Ok(stream),
                    Err(source) => Err(ConnectError::Os { path: path.into(), source }),
                };
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(connect_error(path, errno)),
        }
    }
}

fn connect_error(path: &Path, errno: Errno) -> ConnectError {
    let path_buf = path.to_path_buf();
    match errno {
        Errno::NOENT | Errno::NOTDIR => ConnectError::NoServer { path: path_buf, stale: false },
        Errno::CONNREFUSED if is_socket(path) == Some(false) => ConnectError::NotASocket { path: path_buf },
        Errno::CONNREFUSED => ConnectError::NoServer { path: path_buf, stale: true },
        Errno::PROTOTYPE => ConnectError::NotASocket { path: path_buf },
        Errno::ACCESS | Errno::PERM => ConnectError::PermissionDenied { path: path_buf },
        errno => ConnectError::Os { path: path_buf, source: errno.into() },
    }
}

fn check_path(path: &Path) -> Result<(), PathError> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.is_empty() {
        return Err(PathError::Empty);
    }
    if bytes.contains(&0) {
        return Err(PathError::ZeroByte);
    }
    if bytes.len() > PATH_MAX_BYTES {
        return Err(PathError::TooLong { limit_bytes: PATH_MAX_BYTES, found_bytes: bytes.len() });
    }
    Ok(())
}

/// Whether `path`, followed through links, is a socket; `None` if it cannot be looked at.
fn is_socket(path: &Path) -> Option<bool> {
    fs::metadata(path).ok().map(|found| found.file_type().is_socket())
}

fn new_socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Binds a fresh socket to `path` and listens; names the step that failed.
fn listen(path: &Path, mode: u32) -> Result<UnixListener, (&'static str, Errno)> {
    let mode = Mode::from_raw_mode(mode & 0o777);
    let socket = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        .map_err(|errno| ("make a socket for", errno))?;
    let address = SocketAddrUnix::new(path).map_err(|errno| ("bind", errno))?;
    // The file takes the socket's mode, less the umask: so it is never open to more than `mode`, not for a moment, and
    // the umask, which belongs to all threads, is left alone.
    rustix::fs::fchmod(&socket, mode).map_err(|errno| ("set the mode of", errno))?;
    rustix::net::bind(&socket, &address).map_err(|errno| ("bind", errno))?;
    let listening = rustix::fs::chmod(path, mode)
        .map_err(|errno| ("set the mode of", errno))
        .and_then(|()| rustix::net::listen(&socket, BACKLOG).map_err(|errno| ("listen on", errno)));
    match listening {
        Ok(()) => Ok(UnixListener::from(socket)),
        Err(failed) => {
            let _ = fs::remove_file(path);
            Err(failed)
        }
    }
}

/// Removes the socket of a server that is gone. The caller holds the path's lock.
fn remove_stale(path: &Path) -> Result<(), BindError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(bind_error("look at", path, error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(BindError::NotASocket { path: path.into() });
        }
        Ok(_) => {}
    }
    // Somebody who knows nothing of our locks may listen on it.
    let probe = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        .and_then(|socket| rustix::net::connect(&socket, &SocketAddrUnix::new(path)?));
    match probe {
        Err(Errno::CONNREFUSED) => {
            fs::remove_file(path).map_err(|error| bind_error("remove the stale socket", path, error))
        }
        Err(Errno::NOENT) => Ok(()),
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => {
            Err(BindError::AnotherServer { path: path.into(), pid: None })
        }
        Err(errno) => Err(bind_error("look at", path, errno.into())),
    }
}

fn bind_error(step: &'static str, path: &Path, source: io::Error) -> BindError {
    match source.kind() {
        io::ErrorKind::PermissionDenied => BindError::PermissionDenied { path: path.into() },
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            BindError::MissingDirectory { directory: directory_of(path) }
        }
        _ => BindError::Os { step, path: path.into(), source },
    }
}

fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.into(),
        _ => PathBuf::from("."),
    }
}

/// The lock on a socket's path, and its file.
struct PathLock {
    file: File,
    path: PathBuf,
}

impl PathLock {
    fn take(socket_path: &Path) -> Result<PathLock, BindError> {
        let mut path = socket_path.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        for _ in 0..LOCK_ATTEMPTS {
            let mut file = open_lock(&path).map_err(|error| bind_error("open", &path, error))?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    return Err(BindError::AnotherServer {
                        path: socket_path.into(),
                        pid: read_pid(&mut file),
                    });
                }
                Err(errno) => return Err(bind_error("lock", &path, errno.into())),
            }
            if is_still_at(&file, &path) {
                write_pid(&mut file).map_err(|error| bind_error("write", &path, error))?;
                return Ok(PathLock { file, path });
            }
        }
        let source = io::Error::other("the lock file is replaced again and again");
        Err(BindError::Os { step: "lock", path, source })
    }
}

impl Drop for PathLock {
    fn drop(&mut self) {
        // Removed while locked: who has it open already sees that it is no longer at its path, and starts over.
        if is_still_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    // Not through a link that somebody put there, and no waiting for the other end of a pipe.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)
}

fn is_still_at(file: &File, path: &Path) -> bool {
    let (Ok(opened), Ok(found)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    (opened.dev(), opened.ino()) == (found.dev(), found.ino())
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    writeln!(file, "{}", std::process::id())
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
