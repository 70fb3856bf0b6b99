//! Where a server is found: the default socket, and the URLs that name one.

mod address;
mod rdma;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub use address::{Address, AddressError, DEFAULT_PORT};
pub use rdma::{ConnectBy, RdmaOptionError, RdmaOptions};

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
    /// By TCP.
    Tcp {
        /// Where it listens.
        address: Address,
    },
    /// By RDMA; the hello goes by TCP.
    Rdma {
        /// Where it listens.
        address: Address,
        /// Device and ways.
        options: RdmaOptions,
    },
    /// By the best of these that client and server both have.
    Best {
        /// Where it listens.
        address: Address,
    },
}

/// The forms that a URL can have.
const FORMS: &str = "kv://host:port, kv+tcp://host:port, kv+rdma://host:port or kv+shm:///path/of/socket";

/// Why a URL names no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The URL has a scheme that this program has no transport for.
    #[error("no transport for {scheme:?}; expected {FORMS}")]
    Scheme {
        /// What stands before `://`.
        scheme: String,
    },
    /// There is no scheme and it is no path.
    #[error("{url:?} is no URL of a server; expected {FORMS}, or the path of a socket")]
    NoScheme {
        /// The URL.
        url: String,
    },
    /// Host and port.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// What stands behind the question mark.
    #[error(transparent)]
    RdmaOption(#[from] RdmaOptionError),
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

    /// The endpoint that `url` names: `kv+shm:///path`, or a path with a slash in it, taken as it stands, with no escapes;
    /// `kv+tcp://host[:port]`; `kv+rdma://host[:port][?device=..&port=..&gid=..&cm=tcp|rdma]`; or `kv://host[:port]`, which
    /// leaves the choice to the client.
    ///
    /// # Errors
    /// [`EndpointError`] says what was expected.
    pub fn parse(url: &str) -> Result<Endpoint, EndpointError> {
        let address = |text: &str| Address::parse(text.strip_suffix('/').unwrap_or(text));
        let socket = match url.split_once("://") {
            Some(("kv", rest)) => return Ok(Endpoint::Best { address: address(rest)? }),
            Some(("kv+tcp", rest)) => return Ok(Endpoint::Tcp { address: address(rest)? }),
            Some(("kv+rdma", rest)) => {
                let (rest, options) = match rest.split_once('?') {
                    Some((rest, query)) => (rest, RdmaOptions::parse(query)?),
                    None => (rest, RdmaOptions::default()),
                };
                return Ok(Endpoint::Rdma { address: address(rest)?, options });
            }
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
        match self {
            Endpoint::Shm { socket } => write!(f, "kv+shm://{}", socket.display()),
            Endpoint::Tcp { address } => write!(f, "kv+tcp://{address}"),
            Endpoint::Rdma { address, options } => write!(f, "kv+rdma://{address}{options}"),
            Endpoint::Best { address } => write!(f, "kv://{address}"),
        }
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
    fn urls_name_hosts() {
        let address = Address { host: "kv.example".into(), port: 9 };
        let options = RdmaOptions::parse("device=mlx5_0&gid=3").unwrap();
        for (url, endpoint) in [
            ("kv://kv.example:9", Endpoint::Best { address: address.clone() }),
            ("kv+tcp://kv.example:9", Endpoint::Tcp { address: address.clone() }),
            (
                "kv+rdma://kv.example:9",
                Endpoint::Rdma { address: address.clone(), options: RdmaOptions::default() },
            ),
            (
                "kv+rdma://kv.example:9?device=mlx5_0&gid=3",
                Endpoint::Rdma { address: address.clone(), options },
            ),
        ] {
            assert_eq!(endpoint.to_string(), url);
            assert_eq!(Endpoint::parse(url), Ok(endpoint));
        }
        assert_eq!(Endpoint::parse("kv://kv.example:9/"), Ok(Endpoint::Best { address }));
        let default = Address { host: "::1".into(), port: DEFAULT_PORT };
        assert_eq!(Endpoint::parse("kv+tcp://[::1]"), Ok(Endpoint::Tcp { address: default }));
    }

    #[test]
    fn what_is_no_endpoint_says_why() {
        let error = |url: &str| Endpoint::parse(url).unwrap_err();
        assert!(matches!(error("kv+shm://run/kv.sock"), EndpointError::NotAbsolute { .. }));
        assert!(matches!(error("kv+tcp://"), EndpointError::Address(_)));
        assert!(matches!(error("kv://host:port"), EndpointError::Address(_)));
        assert!(matches!(error("kv+tcp://host:1?device=x"), EndpointError::Address(_)));
        assert!(matches!(error("kv+rdma://host?mtu=1"), EndpointError::RdmaOption(_)));
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
