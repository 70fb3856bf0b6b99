//! Host and port, as people write them.

use std::fmt;
use std::net::Ipv6Addr;

/// The port that server and clients use unless told otherwise.
pub const DEFAULT_PORT: u16 = 7410;
/// Bytes of the longest host name (RFC 1035).
const HOST_MAX_BYTES: usize = 255;

/// A host and a port of it. The host is a name, or a number of either family.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Name or number; that of IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is no address: {reason}; expected host:port, 127.0.0.1:7410 or [::1]:7410")]
pub struct AddressError {
    /// The text.
    pub found: String,
    /// What is wrong.
    pub reason: &'static str,
}

impl Address {
    /// The address in `text`: `host`, `host:port`, `[v6]` or `[v6]:port`. Without a port it is [`DEFAULT_PORT`].
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn parse(text: &str) -> Result<Address, AddressError> {
        let error = |reason| AddressError { found: text.to_owned(), reason };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or(error("a bracket is not closed"))?;
                host.parse::<Ipv6Addr>().map_err(|_| error("what is in brackets is no IPv6 number"))?;
                let port = match port.strip_prefix(':') {
                    Some(port) => Some(port),
                    None if port.is_empty() => None,
                    None => return Err(error("something follows the bracket that is no port")),
                };
                (host, port)
            }
            None => match text.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err(error("an IPv6 number has to stand in brackets"));
                }
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
        if host.is_empty() || host.len() > HOST_MAX_BYTES || !host.chars().all(is_plain) {
            return Err(error("the host is no name and no number"));
        }
        let is_number = |port: &str| port.bytes().all(|c| c.is_ascii_digit());
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => port
                .parse()
                .ok()
                .filter(|_| is_number(port))
                .ok_or(error("the port is no number up to 65535"))?,
        };
        Ok(Address { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_back() {
        for (text, host, port) in [
            ("127.0.0.1:80", "127.0.0.1", 80),
            ("kv.example.org:65535", "kv.example.org", 65535),
            ("[::1]:7", "::1", 7),
            ("[fe80::1]", "fe80::1", DEFAULT_PORT),
            ("my_host-1", "my_host-1", DEFAULT_PORT),
            ("localhost:0", "localhost", 0),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!((address.host.as_str(), address.port), (host, port), "{text}");
            assert_eq!(Address::parse(&address.to_string()), Ok(address));
        }
    }

    #[test]
    fn what_is_no_address_says_why() {
        for (text, reason) in [
            ("", "the host is"),
            (":7410", "the host is"),
            ("a b:1", "the host is"),
            ("user@host:1", "the host is"),
            ("host/path", "the host is"),
            (&"x".repeat(256), "the host is"),
            ("host:", "the port is"),
            ("host:65536", "the port is"),
            ("host:+80", "the port is"),
            ("host:http", "the port is"),
            ("::1", "in brackets"),
            ("[::1", "not closed"),
            ("[127.0.0.1]:1", "no IPv6 number"),
            ("[::1]x", "follows the bracket"),
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
