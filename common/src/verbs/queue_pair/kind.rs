//! Kinds of queue pairs.

use rdma_sys::ibv_qp_type;

/// Reliable connection, unreliable connection, or unreliable datagrams.
pub trait Kind: sealed::Sealed + Send + Sync + 'static {
    /// For people.
    const NAME: &'static str;
    #[doc(hidden)]
    const TYPE: u32;
}

/// Has one peer.
pub trait Connected: Kind {}

/// Can WRITE.
pub trait Writes: Connected {}

/// Reliable connection: everything arrives, once, in order; the only kind that can READ.
#[derive(Clone, Copy, Debug)]
pub enum Rc {}

/// Unreliable connection: in order, but what is lost is lost.
#[derive(Clone, Copy, Debug)]
pub enum Uc {}

/// Unreliable datagrams: SENDs of at most one MTU to any queue pair.
#[derive(Clone, Copy, Debug)]
pub enum Ud {}

impl Kind for Rc {
    const NAME: &'static str = "RC";
    const TYPE: u32 = ibv_qp_type::IBV_QPT_RC;
}

impl Kind for Uc {
    const NAME: &'static str = "UC";
    const TYPE: u32 = ibv_qp_type::IBV_QPT_UC;
}

impl Kind for Ud {
    const NAME: &'static str = "UD";
    const TYPE: u32 = ibv_qp_type::IBV_QPT_UD;
}

impl Connected for Rc {}
impl Connected for Uc {}
impl Writes for Rc {}
impl Writes for Uc {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Rc {}
    impl Sealed for super::Uc {}
    impl Sealed for super::Ud {}
}
