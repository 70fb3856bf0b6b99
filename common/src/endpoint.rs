//! Where a server is found: the default socket, and the URLs that name one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub use crate::transport::shm::socket::PATH_MAX_BYTES as SOCKET_PATH_MAX_BYTES;

/// The socket that server and clients use unless told otherwise: `$XDG_RUNTIME_DIR/kv.sock`, or `/tmp/kv-<uid>.sock`
/// where that variable is not set.
pub fn default_socket() -> PathBuf {
    default_socket_of(std::env::var_os("XDG_RUNTIME_DIR").as_deref(), rustix::process::geteuid().as_raw())
}

fn default_socket_of(runtime_dir: Option<&OsStr>, uid: u32) -> PathBuf {
    match runtime_dir {
        Some(dir) if Path::new(dir).is_absolute() => Path::new(dir).join("kv.sock"),
        _ => PathBuf::from(format!("/tmp/kv-{uid}.sock")),
    }
}

/// Where a server is, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// On this host, through shared memory; the descriptors come from this Unix socket.
    Shm {
        /// Path of the socket.
        socket: PathBuf,
    },
}

/// Why a URL names no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The URL has a scheme that this program has no transport for.
    #[error("no transport for {scheme:?}; expected kv+shm:///path/of/socket")]
    Scheme {
        /// What stands before `://`.
        scheme: String,
    },
    /// There is no scheme and it is no path.
    #[error("{url:?} is no URL of a server; expected kv+shm:///path/of/socket, or the path of a socket")]
    NoScheme {
        /// The URL.
        url: String,
    },
    /// The path is not absolute.
    #[error(
        "the socket path {path:?} is not absolute; a URL has three slashes before it: kv+shm:///path/of/socket"
    )]
    NotAbsolute {
        /// The path.
        path: PathBuf,
    },
    /// The path is longer than a Unix socket's can be.
    #[error(
        "the socket path has {found_bytes} bytes, at most {SOCKET_PATH_MAX_BYTES} are possible: {path:?}; use a \
         shorter one"
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its bytes.
        found_bytes: usize,
    },
    /// The path holds a zero byte.
    #[error("the socket path {path:?} holds a zero byte")]
    PathWithZero {
        /// The path.
        path: PathBuf,
    },
}

impl Endpoint {
    /// The endpoint of the default socket.
    pub fn default_local() -> Endpoint {
        Endpoint::Shm { socket: default_socket() }
    }

    /// The endpoint that `url` names: `kv+shm:///path`, or a path with a slash in it. The path is taken as it stands,
    /// with no escapes.
    ///
    /// # Errors
    /// [`EndpointError`] says what was expected.
    pub fn parse(url: &str) -> Result<Endpoint, EndpointError> {
        let socket = match url.split_once("://") {
            Some(("kv+shm", path)) if path.starts_with('/') => PathBuf::from(path),
            Some(("kv+shm", path)) => return Err(EndpointError::NotAbsolute { path: path.into() }),
            Some((scheme, _)) => return Err(EndpointError::Scheme { scheme: scheme.to_owned() }),
            None if url.contains('/') => PathBuf::from(url),
            None => return Err(EndpointError::NoScheme { url: url.to_owned() }),
        };
        check_socket_path(&socket)?;
        Ok(Endpoint::Shm { socket })
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Endpoint::Shm { socket } = self;
        write!(f, "kv+shm://{}", socket.display())
    }
}

/// Checks that a Unix socket can have this path.
///
/// # Errors
/// [`EndpointError::PathTooLong`] or [`EndpointError::PathWithZero`].
pub fn check_socket_path(path: &Path) -> Result<(), EndpointError> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() > SOCKET_PATH_MAX_BYTES {
        return Err(EndpointError::PathTooLong { path: path.to_owned(), found_bytes: bytes.len() });
    }
    if bytes.contains(&0) {
        return Err(EndpointError::PathWithZero { path: path.to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shm(path: &str) -> Endpoint {
        Endpoint::Shm { socket: path.into() }
    }

    #[test]
    fn urls_and_paths_name_sockets() {
        for url in ["kv+shm:///run/kv.sock", "/run/kv.sock"] {
            assert_eq!(Endpoint::parse(url), Ok(shm("/run/kv.sock")));
        }
        assert_eq!(Endpoint::parse("./kv.sock"), Ok(shm("./kv.sock")));
        assert_eq!(shm("/run/kv.sock").to_string(), "kv+shm:///run/kv.sock");
    }

    #[test]
    fn what_is_no_endpoint_says_why() {
        let error = |url: &str| Endpoint::parse(url).unwrap_err();
        assert!(matches!(error("kv+shm://run/kv.sock"), EndpointError::NotAbsolute { .. }));
        assert!(matches!(error("kv+carrier-pigeon://loft"), EndpointError::Scheme { .. }));
        assert!(matches!(error("kv.sock"), EndpointError::NoScheme { .. }));
        assert!(matches!(error("/a\0b"), EndpointError::PathWithZero { .. }));
        let longest = format!("/{}", "x".repeat(SOCKET_PATH_MAX_BYTES - 1));
        assert_eq!(Endpoint::parse(&longest), Ok(shm(&longest)));
        assert!(matches!(error(&format!("{longest}x")), EndpointError::PathTooLong { found_bytes: 108, .. }));
    }

    #[test]
    fn the_default_follows_the_runtime_directory() {
        assert_eq!(default_socket_of(Some(OsStr::new("/run/user/7")), 7), Path::new("/run/user/7/kv.sock"));
        for unusable in [None, Some(OsStr::new("")), Some(OsStr::new("relative"))] {
            assert_eq!(default_socket_of(unusable, 7), Path::new("/tmp/kv-7.sock"));
        }
    }
}
