//! The transports that a client can have, behind one type without dynamic dispatch.

use kv_common::region::Words;
use kv_common::transport::shm::client::ShmTransport;
use kv_common::transport::{Broken, Event, ReadNow, SendError, Transport};

/// One of the transports.
// One per client, in place: a GET goes through it.
#[cfg_attr(
    feature = "adversary",
    expect(clippy::large_enum_variant, reason = "the small one exists in tests only")
)]
pub(crate) enum AnyTransport {
    Shm(ShmTransport),
    /// The simulated fabric of the tests.
    #[cfg(feature = "adversary")]
    Sim(pinned::Pinned),
}

macro_rules! each {
    ($self:expr, $transport:ident => $call:expr) => {
        match $self {
            AnyTransport::Shm($transport) => $call,
            #[cfg(feature = "adversary")]
            AnyTransport::Sim(pinned) => {
                let $transport = &mut **pinned;
                $call
            }
        }
    };
    (ref $self:expr, $transport:ident => $call:expr) => {
        match $self {
            AnyTransport::Shm($transport) => $call,
            #[cfg(feature = "adversary")]
            AnyTransport::Sim(pinned) => {
                let $transport = &**pinned;
                $call
            }
        }
    };
}

/// A client may move to another thread; a simulated transport may not, and panics there.
#[cfg(feature = "adversary")]
pub(crate) mod pinned {
    #![allow(unsafe_code)]

    use std::mem::ManuallyDrop;
    use std::ops::{Deref, DerefMut};
    use std::thread::{self, ThreadId};

    use kv_common::transport::Transport;

    pub(crate) struct Pinned {
        owner: ThreadId,
        transport: ManuallyDrop<Box<dyn Transport>>,
    }

    // SAFETY: the transport is touched, and dropped, by the thread that made it and by no other: every access asks
    // `is_owner` first.
    unsafe impl Send for Pinned {}

    impl Pinned {
        pub(crate) fn new(transport: Box<dyn Transport>) -> Pinned {
            Pinned { owner: thread::current().id(), transport: ManuallyDrop::new(transport) }
        }

        fn is_owner(&self) -> bool {
            thread::current().id() == self.owner
        }
    }

    impl Deref for Pinned {
        type Target = dyn Transport;
        fn deref(&self) -> &(dyn Transport + 'static) {
            assert!(self.is_owner(), "a simulated transport belongs to one thread");
            &**self.transport
        }
    }

    impl DerefMut for Pinned {
        fn deref_mut(&mut self) -> &mut (dyn Transport + 'static) {
            assert!(self.is_owner(), "a simulated transport belongs to one thread");
            &mut **self.transport
        }
    }

    impl Drop for Pinned {
        fn drop(&mut self) {
            // On another thread it is leaked: this is for tests.
            if self.is_owner() {
                // SAFETY: this is the only drop, and nothing uses the transport after it.
                unsafe { ManuallyDrop::drop(&mut self.transport) }
            }
        }
    }
}

impl Transport for AnyTransport {
    #[inline]
    fn read_now(&mut self, at_word: usize, out: &mut [u64]) -> Result<ReadNow, Broken> {
        each!(self, transport => transport.read_now(at_word, out))
    }

    #[inline]
    fn guard_now(&mut self) -> Result<Option<u64>, Broken> {
        each!(self, transport => transport.guard_now())
    }

    fn post_read(&mut self, token: u64, at_word: usize, buffer: Vec<u64>) {
        each!(self, transport => transport.post_read(token, at_word, buffer));
    }

    fn reads_in_flight_max(&self) -> usize {
        each!(ref self, transport => transport.reads_in_flight_max())
    }

    #[inline]
    fn prefetch(&self, at_word: usize, len_words: usize) {
        each!(ref self, transport => transport.prefetch(at_word, len_words));
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<(), SendError> {
        each!(self, transport => transport.send(parts))
    }

    fn poll(&mut self) -> Result<Option<Event>, Broken> {
        each!(self, transport => transport.poll())
    }

    fn wait(&mut self, until_ns: u64) {
        each!(self, transport => transport.wait(until_ns));
    }

    fn now_ns(&self) -> u64 {
        each!(ref self, transport => transport.now_ns())
    }

    fn staging(&self) -> &Words {
        each!(ref self, transport => transport.staging())
    }

    fn name(&self) -> &'static str {
        each!(ref self, transport => transport.name())
    }
}
