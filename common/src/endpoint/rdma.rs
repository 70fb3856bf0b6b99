//! What a `kv+rdma://` URL says behind the question mark.

use std::fmt;

/// What connects the two queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectBy {
    /// Both sides, by what they tell each other over the TCP connection of the hello.
    Tcp,
    /// The RDMA connection manager, rdma_cm.
    Rdma,
}

/// Choices for an RDMA connection; those not made are made from what there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RdmaOptions {
    /// Name of this host's device, as `ibv_devices` lists it.
    pub device: Option<String>,
    /// Which port of it, from 1.
    pub port: Option<u8>,
    /// Index in the port's GID table.
    pub gid_index: Option<u8>,
    /// What connects the queue pairs; if it is not said, rdma_cm where the device is iWARP, and TCP elsewhere.
    pub connect_by: Option<ConnectBy>,
}

/// Why an option cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the option {found:?} is not usable: expected device=NAME, port=N from 1, gid=N, cm=tcp or cm=rdma, each once"
)]
pub struct RdmaOptionError {
    /// The option as written.
    pub found: String,
}

impl RdmaOptions {
    /// The options in `device=..&port=..&gid=..&cm=..`, any of them.
    ///
    /// # Errors
    /// [`RdmaOptionError`] for the first that is unknown, repeated, or has no such value.
    pub fn parse(query: &str) -> Result<RdmaOptions, RdmaOptionError> {
        let mut options = RdmaOptions::default();
        for option in query.split('&') {
            let error = || RdmaOptionError { found: option.to_owned() };
            let number = |text: &str| match text.bytes().all(|c| c.is_ascii_digit()) {
                true => text.parse::<u8>().map_err(|_| error()),
                false => Err(error()),
            };
            let is_repeated = match option.split_once('=') {
                Some(("device", name)) if is_device_name(name) => {
                    options.device.replace(name.to_owned()).is_some()
                }
                Some(("port", text)) => options
                    .port
                    .replace(number(text).and_then(|n| if n > 0 { Ok(n) } else { Err(error()) })?)
                    .is_some(),
                Some(("gid", text)) => options.gid_index.replace(number(text)?).is_some(),
                Some(("cm", text)) => {
                    let connect_by = match text {
                        "tcp" => ConnectBy::Tcp,
                        "rdma" => ConnectBy::Rdma,
                        _ => return Err(error()),
                    };
                    options.connect_by.replace(connect_by).is_some()
                }
                _ => return Err(error()),
            };
            if is_repeated {
                return Err(error());
            }
        }
        Ok(options)
    }
}

/// What the kernel lets a device be called, and no more than its 64 bytes.
fn is_device_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    !name.is_empty() && name.len() < 64 && name.chars().all(is_plain)
}

/// As in a URL.
impl fmt::Display for ConnectBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConnectBy::Tcp => "tcp",
            ConnectBy::Rdma => "rdma",
        })
    }
}

/// As in a URL, with the question mark; empty if no choice was made.
impl fmt::Display for RdmaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RdmaOptions { device, port, gid_index, connect_by } = self;
        let made = [
            device.as_ref().map(|name| format!("device={name}")),
            port.map(|port| format!("port={port}")),
            gid_index.map(|index| format!("gid={index}")),
            connect_by.map(|by| format!("cm={by}")),
        ];
        let mut before = '?';
        for option in made.into_iter().flatten() {
            write!(f, "{before}{option}")?;
            before = '&';
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_written_back() {
        let all = RdmaOptions {
            device: Some("rxe_eth0".into()),
            port: Some(1),
            gid_index: Some(0),
            connect_by: Some(ConnectBy::Rdma),
        };
        assert_eq!(RdmaOptions::parse("gid=0&cm=rdma&device=rxe_eth0&port=1"), Ok(all.clone()));
        assert_eq!(all.to_string(), "?device=rxe_eth0&port=1&gid=0&cm=rdma");
        let by_tcp = RdmaOptions { connect_by: Some(ConnectBy::Tcp), ..RdmaOptions::default() };
        assert_eq!(RdmaOptions::parse("cm=tcp"), Ok(by_tcp.clone()));
        assert_eq!(by_tcp.to_string(), "?cm=tcp");
        assert_eq!(RdmaOptions::default().to_string(), "");
    }

    #[test]
    fn options_that_cannot_be_are_named() {
        for option in [
            "",
            "device",
            "device=",
            "device=a/b",
            "port=0",
            "port=256",
            "port=+1",
            "gid=-1",
            "cm=udp",
            "mtu=1",
            "PORT=1",
        ] {
            assert_eq!(RdmaOptions::parse(option), Err(RdmaOptionError { found: option.into() }));
        }
        for twice in ["device=a&device=b", "port=1&port=1", "gid=1&gid=2", "cm=tcp&cm=tcp"] {
            let second = twice.split('&').nth(1).unwrap();
            assert_eq!(RdmaOptions::parse(twice), Err(RdmaOptionError { found: second.into() }));
        }
    }
}
