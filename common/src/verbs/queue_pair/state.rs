//! States of queue pairs.

/// One of the states below.
pub trait State: sealed::Sealed + Send + Sync + 'static {}

/// Takes receives.
pub trait Receives: State {}

/// Takes requests to send; in the error state they complete at once, as flushed.
pub trait Posts: State {}

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident: $($is:ident)*;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}
        impl sealed::Sealed for $name {}
        impl State for $name {}
        $(impl $is for $name {})*
    )*};
}

states! {
    /// Just made.
    Reset: ;
    /// Has a port. Receives can be posted and wait.
    Init: Receives;
    /// Knows its peer.
    ReadyToReceive: Receives;
    /// Connected.
    ReadyToSend: Receives Posts;
    /// Broken or shut down; everything posted completes as flushed.
    Error: Receives Posts;
}

mod sealed {
    pub trait Sealed {}
}
