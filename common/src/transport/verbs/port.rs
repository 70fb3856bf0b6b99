//! Which device, port and GID to use.

use std::net::IpAddr;

use crate::verbs::{
    Absence, Context, GidKind, LocalPort, LocalPortError, OpenError, VerbError, absence, devices,
};

/// What the user wants; what is not said is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortWish {
    /// Name of the device, as `ibv_devices` lists it.
    pub device: Option<String>,
    /// Port of it, from 1.
    pub port: Option<u8>,
    /// Index in the port's GID table.
    pub gid_index: Option<u8>,
}

/// Why no port can be used.
#[derive(Debug, thiserror::Error)]
pub enum ChoosePortError {
    /// There is no device.
    #[error("no RDMA device: {0}")]
    NoDevice(Absence),
    /// None can be used.
    #[error("none of the RDMA devices can be used: {}", .0.join("; "))]
    NoneUsable(Vec<String>),
    /// The device that was named cannot be opened, or there is none of that name.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The port that was named cannot be used.
    #[error(transparent)]
    Port(#[from] LocalPortError),
    /// The devices cannot be listed.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl PortWish {
    /// The wish for a device that may be written as `name:port`.
    pub fn new(device: Option<&str>, port: Option<u8>, gid_index: Option<u8>) -> PortWish {
        let with_port = device.and_then(|device| device.rsplit_once(':'));
        let with_port = with_port.and_then(|(name, port)| Some((name, port.parse().ok()?)));
        match (with_port, port) {
            (Some((name, port)), None) => {
                PortWish { device: Some(name.to_owned()), port: Some(port), gid_index }
            }
            _ => PortWish { device: device.map(str::to_owned), port, gid_index },
        }
    }

    /// Opens the device that is named, or else the first whose port can be used; logs the choice and what was passed over.
    /// `reaching` is the local address from which the peer is reached, if it is known.
    ///
    /// # Errors
    /// [`ChoosePortError`]. A named device is never replaced by another.
    pub fn choose(&self, reaching: Option<IpAddr>) -> Result<LocalPort, ChoosePortError> {
        if let Some(name) = &self.device {
            return self.try_device(name, reaching);
        }
        let all = devices()?;
        if all.is_empty() {
            return Err(ChoosePortError::NoDevice(absence()));
        }
        let mut passed_over = Vec::new();
        for device in &all {
            match self.try_device(&device.name, reaching) {
                Ok(port) => return Ok(port),
                Err(error) => {
                    tracing::info!(device = device.name, %error, "RDMA device passed over");
                    passed_over.push(format!("{}: {error}", device.name));
                }
            }
        }
        Err(ChoosePortError::NoneUsable(passed_over))
    }

    fn try_device(&self, name: &str, reaching: Option<IpAddr>) -> Result<LocalPort, ChoosePortError> {
        let context = Context::open(Some(name))?;
        let ports = match self.port {
            Some(port) => port..=port,
            None => 1..=context.attributes()?.ports.max(1),
        };
        let mut first_error = None;
        for port in ports {
            match LocalPort::choose(&context, port, self.gid_index, reaching) {
                Ok((port, choice)) => {
                    log_choice(&port, choice.reason);
                    for rejected in choice.rejected {
                        let (index, gid) = (rejected.entry.index, rejected.entry.gid);
                        tracing::debug!(device = name, index, %gid, why = %rejected.why, "GID not used");
                    }
                    return Ok(port);
                }
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        Err(first_error.expect("a device has a port").into())
    }
}

fn log_choice(port: &LocalPort, why: &str) {
    tracing::debug!(port = %describe(port), why, "RDMA port chosen");
}

/// Device, port, GID (on iWARP there is none that counts) and MTU, for people.
pub fn describe(port: &LocalPort) -> String {
    let (gid, attributes) = (port.gid(), port.attributes());
    let name = &port.context().device().name;
    if gid.kind == GidKind::Iwarp {
        return format!("{name}:{} (iWARP), MTU {}", port.number(), attributes.active_mtu.bytes());
    }
    format!(
        "{name}:{} GID {} ({}, {}), MTU {}",
        port.number(),
        gid.index,
        gid.gid,
        gid.kind,
        attributes.active_mtu.bytes()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_may_be_named_with_its_port() {
        let wish = |device, port| PortWish::new(device, port, None);
        let named = |device: &str, port| PortWish { device: Some(device.into()), port, gid_index: None };
        assert_eq!(wish(Some("mlx5_0:2"), None), named("mlx5_0", Some(2)));
        assert_eq!(wish(Some("mlx5_0"), Some(1)), named("mlx5_0", Some(1)));
        assert_eq!(wish(Some("a:b"), None), named("a:b", None));
        assert_eq!(wish(None, None), PortWish::default());
    }
}
