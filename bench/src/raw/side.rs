//! What a side has whatever it measures: device, domain, port, clock.

use std::net::IpAddr;
use std::sync::Arc;

use kv_common::verbs::{Context, LocalPort, ProtectionDomain};

use super::args::RawArgs;
use super::error::{HereError, RawError};
use super::report::PortJson;
use crate::clock::SystemClock;

/// A side of the measurements.
pub(super) struct Side {
    pub(super) context: Arc<Context>,
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) port: LocalPort,
    pub(super) clock: SystemClock,
}

/// Opens the device.
pub(super) fn open(args: &RawArgs) -> Result<Arc<Context>, RawError> {
    let context = Context::open(args.device.as_deref())?;
    if context.is_iwarp() {
        return Err(HereError::Iwarp(context.device().name.clone()).into());
    }
    Ok(context)
}

impl Side {
    /// On the port of `args`, to a peer that is reached from the address `reaching`.
    pub(super) fn new(
        args: &RawArgs,
        context: Arc<Context>,
        reaching: Option<IpAddr>,
    ) -> Result<Self, RawError> {
        // No packet for another host leaves from the loopback interface, and none of it has a GID.
        let reaching = reaching.filter(|address| !address.is_loopback());
        let (port, _) = LocalPort::choose(&context, args.port, args.gid, reaching)?;
        let domain = ProtectionDomain::allocate(&context)?;
        Ok(Self { context, domain, port, clock: SystemClock::start() })
    }

    /// For the report.
    pub(super) fn describe(&self) -> PortJson {
        let attributes = self.port.attributes();
        let gid = self.port.gid();
        PortJson {
            device: self.context.device().name.clone(),
            port: self.port.number(),
            link_layer: attributes.link_layer.to_string(),
            active_mtu_bytes: attributes.active_mtu.bytes(),
            gid_index: gid.index,
            gid: gid.gid.to_string(),
            gid_kind: gid.kind.to_string(),
        }
    }
}
