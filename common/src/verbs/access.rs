//! What a device and its peers may do with registered memory, as types.
//!
//! | type | device writes | peers read | peers write | for |
//! |---|---|---|---|---|
//! | [`SendOnly`] | | | | what is sent |
//! | [`Local`] | yes | | | receive buffers |
//! | [`ReadSink`] | yes | | iWARP only | where one's own READs end |
//! | [`RemoteReadable`] | yes | yes | | the server's region |
//! | [`RemoteWritable`] | yes | yes | yes | memory lent to the peer |
//!
//! On iWARP the peer answers a READ by writing, so a sink needs remote write access there; elsewhere it has none.

use rdma_sys::ibv_access_flags;

/// One of the types above.
pub trait Access: sealed::Sealed + Send + Sync + 'static {
    /// Access flags of verbs; `iwarp` says what kind of device registers the memory.
    #[doc(hidden)]
    fn flags(iwarp: bool) -> u32;
}

/// The device may write to it: RECVs may end here.
pub trait Writable: Access {}

/// READs may end here.
pub trait ReadTarget: Writable {}

/// Peers have some access to it: it has a remote key.
pub trait Remote: Access {}

const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
const REMOTE_READ: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
pub(super) const REMOTE_WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;

macro_rules! access {
    ($($(#[$doc:meta])* $name:ident($iwarp:pat) = $flags:expr, $($is:ident)*;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}
        impl sealed::Sealed for $name {}
        impl Access for $name {
            fn flags(iwarp: bool) -> u32 {
                let $iwarp = iwarp;
                $flags
            }
        }
        $(impl $is for $name {})*
    )*};
}

access! {
    /// Only read by this side's device.
    SendOnly(_) = 0,;
    /// Written by this side's device, for RECVs.
    Local(_) = LOCAL_WRITE, Writable;
    /// Written by this side's device, for READs and RECVs.
    ReadSink(iwarp) = if iwarp { LOCAL_WRITE | REMOTE_WRITE } else { LOCAL_WRITE }, Writable ReadTarget;
    /// Peers may READ it. READs of this side may end here too, but not on iWARP.
    RemoteReadable(_) = LOCAL_WRITE | REMOTE_READ, Writable ReadTarget Remote;
    /// Peers may READ and WRITE it.
    RemoteWritable(_) = LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE, Writable ReadTarget Remote;
}

mod sealed {
    pub trait Sealed {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `enum ibv_access_flags` of verbs.h: local write 1, remote write 2, remote read 4.
    #[test]
    fn rights_are_those_that_the_table_says() {
        assert_eq!(SendOnly::flags(false), 0);
        assert_eq!(Local::flags(false), 1);
        assert_eq!((ReadSink::flags(false), ReadSink::flags(true)), (1, 1 | 2));
        assert_eq!(RemoteReadable::flags(false), 1 | 4);
        assert_eq!(RemoteReadable::flags(true), 1 | 4, "peers never get write access to the server's region");
        assert_eq!(RemoteWritable::flags(false), 1 | 2 | 4);
    }
}
