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
    Sim(Box<dyn Transport + Send>),
}

macro_rules! each {
    ($self:expr, $transport:ident => $call:expr) => {
        match $self {
            AnyTransport::Shm($transport) => $call,
            #[cfg(feature = "adversary")]
            AnyTransport::Sim($transport) => $call,
        }
    };
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

    #[inline]
    fn reads_are_loads(&self) -> bool {
        each!(self, transport => transport.reads_are_loads())
    }

    fn reads_in_flight_max(&self) -> usize {
        each!(self, transport => transport.reads_in_flight_max())
    }

    #[inline]
    fn prefetch(&self, at_word: usize, len_words: usize) {
        each!(self, transport => transport.prefetch(at_word, len_words));
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
        each!(self, transport => transport.now_ns())
    }

    fn staging(&self) -> &Words {
        each!(self, transport => transport.staging())
    }

    fn stage(&mut self, at_word: usize, len_words: usize) -> Result<(), SendError> {
        each!(self, transport => transport.stage(at_word, len_words))
    }

    fn flush(&mut self) {
        each!(self, transport => transport.flush());
    }

    fn name(&self) -> &'static str {
        each!(self, transport => transport.name())
    }
}
