//! The transports that a client can have, behind one type without dynamic dispatch.

use kv_common::region::Words;
use kv_common::transport::shm::client::ShmTransport;
use kv_common::transport::tcp::client::TcpTransport;
#[cfg(feature = "verbs")]
use kv_common::transport::verbs::client::VerbsTransport;
use kv_common::transport::{Broken, Event, ReadBuffer, ReadNow, SendError, Transport, UserMemory};

/// One of the transports.
// In place, one per client: a GET goes through it.
pub(crate) enum AnyTransport {
    Shm(ShmTransport),
    Tcp(TcpTransport),
    /// None any more.
    Lost(Lost),
    #[cfg(feature = "verbs")]
    Verbs(OfThisProcess<VerbsTransport>),
    /// The simulated fabric of the tests.
    #[cfg(feature = "adversary")]
    Sim(Box<dyn Transport + Send>),
}

/// Something of the device's, which a forked child must not destroy: parent and child name the same objects of the kernel.
#[cfg(feature = "verbs")]
pub(crate) struct OfThisProcess<T> {
    /// There until it is dropped.
    inner: Option<Box<T>>,
    process: u32,
}

#[cfg(feature = "verbs")]
impl<T> OfThisProcess<T> {
    pub(crate) fn new(inner: T) -> OfThisProcess<T> {
        OfThisProcess { inner: Some(Box::new(inner)), process: std::process::id() }
    }
}

#[cfg(feature = "verbs")]
impl<T> Drop for OfThisProcess<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.inner.take());
        }
    }
}

#[cfg(feature = "verbs")]
impl<T> std::ops::Deref for OfThisProcess<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.inner.as_deref().expect("it is there until it is dropped")
    }
}

#[cfg(feature = "verbs")]
impl<T> std::ops::DerefMut for OfThisProcess<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_deref_mut().expect("it is there until it is dropped")
    }
}

macro_rules! each {
    ($self:expr, $transport:ident => $call:expr) => {
        match $self {
            AnyTransport::Shm($transport) => $call,
            AnyTransport::Tcp($transport) => $call,
            AnyTransport::Lost($transport) => $call,
            #[cfg(feature = "verbs")]
            AnyTransport::Verbs($transport) => $call,
            #[cfg(feature = "adversary")]
            AnyTransport::Sim($transport) => $call,
        }
    };
}

/// As `each`, in what a GET over shared memory goes through: one comparison there, a jump by a table elsewhere.
macro_rules! shm_first {
    ($self:expr, $transport:ident => $call:expr) => {
        if let AnyTransport::Shm($transport) = $self {
            $call
        } else {
            each!($self, $transport => $call)
        }
    };
}

impl Transport for AnyTransport {
    // Always: the compiler would make it a call as soon as a program has two kinds of GET.
    #[inline(always)]
    fn read_now(&mut self, at_word: usize, out: &mut [u64]) -> Result<ReadNow, Broken> {
        shm_first!(self, transport => transport.read_now(at_word, out))
    }

    #[inline(always)]
    fn guard_now(&mut self) -> Result<Option<u64>, Broken> {
        shm_first!(self, transport => transport.guard_now())
    }

    fn post_read(&mut self, token: u64, at_word: usize, buffer: ReadBuffer) {
        each!(self, transport => transport.post_read(token, at_word, buffer));
    }

    fn register(&mut self, memory: &mut UserMemory) -> Result<(), String> {
        each!(self, transport => transport.register(memory))
    }

    fn take_back(&mut self, token: u64) -> Option<Box<UserMemory>> {
        each!(self, transport => transport.take_back(token))
    }

    #[inline]
    fn reads_are_loads(&self) -> bool {
        shm_first!(self, transport => transport.reads_are_loads())
    }

    fn reads_in_flight_max(&self) -> usize {
        each!(self, transport => transport.reads_in_flight_max())
    }

    #[inline]
    fn prefetch(&self, at_word: usize, len_words: usize) {
        shm_first!(self, transport => transport.prefetch(at_word, len_words));
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

    fn raw_read(&mut self, at_word: usize, len_words: usize) -> Result<bool, Broken> {
        each!(self, transport => transport.raw_read(at_word, len_words))
    }

    fn name(&self) -> &'static str {
        each!(self, transport => transport.name())
    }
}

/// What stands for a transport that was let go.
pub(crate) struct Lost {
    staging: Words,
}

impl Lost {
    pub(crate) fn new() -> Lost {
        Lost { staging: Words::zeroed(0) }
    }
}

impl Transport for Lost {
    fn read_now(&mut self, _at_word: usize, _out: &mut [u64]) -> Result<ReadNow, Broken> {
        Err(Broken::Closed)
    }

    fn post_read(&mut self, _token: u64, _at_word: usize, _buffer: ReadBuffer) {
        unreachable!("nothing is posted on a connection that is known to be lost")
    }

    fn reads_are_loads(&self) -> bool {
        false
    }

    fn reads_in_flight_max(&self) -> usize {
        0
    }

    fn send(&mut self, _parts: &[&[u8]]) -> Result<(), SendError> {
        Err(SendError::Broken(Broken::Closed))
    }

    fn poll(&mut self) -> Result<Option<Event>, Broken> {
        Err(Broken::Closed)
    }

    fn wait(&mut self, _until_ns: u64) {}

    fn now_ns(&self) -> u64 {
        0
    }

    fn staging(&self) -> &Words {
        &self.staging
    }

    fn name(&self) -> &'static str {
        "lost"
    }
}
