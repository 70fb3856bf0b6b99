//! Transports: who carries READs of the region and messages to the server.
//!
//! # The contract
//! The weakest that all transports can keep; the client relies on this and on nothing more.
//!
//! * A READ returns each aligned 8-byte word whole. Different words may come from different moments of the READ, in
//!   any order.
//! * READs in flight together are not ordered with each other.
//! * Messages of one connection arrive in order, each once, or the connection breaks.
//! * A buffer belongs to the transport from `post_read` until its completion, or until `take_back`: ownership says so, in
//!   the types.
//! * After a break every READ in flight completes exactly once, with an error; nothing completes later.
//! * How long a READ takes is not bounded: a client can be stopped between two loads. So a miss counts only if its
//!   READs took less than GRACE by the client's own clock.

pub mod handshake;
pub mod shm;
#[cfg(feature = "adversary")]
pub mod sim;
pub mod tcp;
pub mod user_memory;
#[cfg(feature = "verbs")]
pub mod verbs;

use crate::layout::superblock;
use crate::region::Words;

pub use user_memory::{ReadBuffer, UserMemory};

/// Why a connection is no more. It does not come back; a new one may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The server process has ended.
    #[error("the server has ended")]
    ServerGone,
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The server broke the protocol.
    #[error("the server broke the protocol: {what}")]
    Protocol {
        /// What it did.
        what: String,
    },
    /// RDMA: a request of the queue pair failed, or the device did.
    #[error("the RDMA connection broke: {what}")]
    Rdma {
        /// What failed, with its usual cause.
        what: String,
    },
    /// The operating system refused.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: String,
    },
}

/// Why a message was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendError {
    /// No room now; replies have to be taken first.
    Full,
    /// The connection is no more.
    Broken(Broken),
}

/// A READ that was served at once, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadNow {
    /// The words are there.
    Done,
    /// This transport's READs take time: post it.
    Post,
}

/// What happened on a connection.
#[derive(Debug)]
pub enum Event {
    /// A READ completed; its buffer comes back whatever the result.
    Read {
        /// The token given to `post_read`.
        token: u64,
        /// The buffer, filled if the READ was done. A private one if the user's was taken out of the READ, or is lost
        /// because a device did not let go of it.
        buffer: ReadBuffer,
        /// Whether it was.
        result: Result<(), Broken>,
    },
    /// A message came.
    Message(Vec<u8>),
}

/// A client's connection to one server.
///
/// One thread uses it; nothing in it locks. Time is the connection's own monotonic clock, in ns: the simulated
/// fabric has a virtual one.
pub trait Transport {
    /// Fills `out` with the words of the region from word `at` if this transport's READs are loads (shared memory).
    /// They count only if [`Transport::guard_now`] succeeds after it.
    ///
    /// The range lies inside the region: the caller has checked it.
    fn read_now(&mut self, at_word: usize, out: &mut [u64]) -> Result<ReadNow, Broken>;

    /// The place epoch, loaded after all that `read_now` brought so far, from a server that was alive then; `None` if
    /// this transport's READs take time.
    fn guard_now(&mut self) -> Result<Option<u64>, Broken> {
        let mut word = [0];
        Ok(match self.read_now(superblock::PLACE_EPOCH, &mut word)? {
            ReadNow::Done => Some(word[0]),
            ReadNow::Post => None,
        })
    }

    /// Starts a READ of `buffer.len()` words from word `at_word`. It completes as an [`Event::Read`] with `token`,
    /// also if the connection breaks.
    ///
    /// Memory of the user was given to [`Transport::register`] before.
    fn post_read(&mut self, token: u64, at_word: usize, buffer: ReadBuffer);

    /// Makes READs into memory of the user possible, if that takes something. Cheap if it was done on this connection before.
    ///
    /// # Errors
    /// Why not, with the remedy, for people.
    fn register(&mut self, _memory: &mut UserMemory) -> Result<(), String> {
        Ok(())
    }

    /// Takes the user's memory out of the READ with this token, which is under way, at once: nothing of the READ ends there
    /// after this. If it takes the end of the connection to be sure of that, the connection is broken then. Otherwise the READ
    /// completes as any other, with a private buffer.
    ///
    /// None if no such READ is under way, its words do not go to memory of the user, or the device does not let go of it.
    fn take_back(&mut self, _token: u64) -> Option<Box<UserMemory>> {
        None
    }

    /// True if READs are loads: `read_now` serves them.
    fn reads_are_loads(&self) -> bool;

    /// READs that may be in flight at once.
    fn reads_in_flight_max(&self) -> usize;

    /// Hints that these words of the region are read soon.
    fn prefetch(&self, _at_word: usize, _len_words: usize) {}

    /// Sends one message made of `parts`.
    fn send(&mut self, parts: &[&[u8]]) -> Result<(), SendError>;

    /// The next event, without waiting.
    fn poll(&mut self) -> Result<Option<Event>, Broken>;

    /// Waits until an event may be there, or until `until_ns`. May return early.
    fn wait(&mut self, until_ns: u64);

    /// Now.
    fn now_ns(&self) -> u64;

    /// The memory that this client lends to the server for values too large for a message.
    fn staging(&self) -> &Words;

    /// Brings words of the staging area to where the server can take them when it serves the next message, which names
    /// them: to be called once they are filled, right before that message is sent. Nothing to do where server and client
    /// share the area, or where the server fetches from it.
    ///
    /// If this is refused as [`SendError::Full`], nothing was brought; if it is not, the message has its room too.
    fn stage(&mut self, _at_word: usize, _len_words: usize) -> Result<(), SendError> {
        Ok(())
    }

    /// Hands over what was posted and sent. A transport may do so earlier; whoever posts and sends many makes it cheaper
    /// by calling this once for all of them.
    fn flush(&mut self) {}

    /// One READ of these words, which nobody wants: posted by itself, and waited for by polling alone. What a READ costs
    /// with nothing around it. False if there is no such thing here, or if other READs are under way now.
    ///
    /// The range lies inside the region: the caller has checked it.
    fn raw_read(&mut self, _at_word: usize, _len_words: usize) -> Result<bool, Broken> {
        Ok(false)
    }

    /// What this is, for people: `shm`, `tcp`, ...
    fn name(&self) -> &'static str;
}
