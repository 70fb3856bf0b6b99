//! The client's side: READs are loads from the mapping, requests go through the ring.

use std::time::{Duration, Instant};

use super::channel::ClientEnd;
use super::doorbell::{Doorbell, PeerGone};
use super::owner::OwnerState;
use super::spin::Spin;
use crate::layout::superblock;
use crate::region::{ReadWords, Words};
use crate::ring::{Consumer, Producer, PushError};
use crate::transport::{Broken, Event, ReadBuffer, ReadNow, SendError, Transport};

/// Byte of the owner word.
const OWNER_BYTE: usize = superblock::OWNER * 8;

/// Polls that find nothing before the socket is looked at, which takes a system call.
const EMPTY_POLLS_PER_LOOK: u64 = 1024;

/// A client's connection through shared memory.
pub struct ShmTransport {
    region: ReadWords,
    requests: Producer,
    replies: Consumer,
    staging: Words,
    doorbell: Doorbell,
    spin: Spin,
    epoch: Instant,
    is_peer_gone: bool,
    empty_polls: u64,
}

impl ShmTransport {
    /// The connection whose hellos are done.
    pub fn new(region: ReadWords, channel: ClientEnd, doorbell: Doorbell) -> ShmTransport {
        ShmTransport {
            region,
            requests: channel.requests,
            replies: channel.replies,
            staging: channel.staging,
            doorbell,
            spin: Spin::new(Spin::MIN_LOOKS, Spin::MAX_LOOKS),
            epoch: Instant::now(),
            is_peer_gone: false,
            empty_polls: 0,
        }
    }

    /// The kernel marks the owner word when the server dies. Loaded after the words of a READ, so that what was read
    /// was read from a living server.
    #[inline]
    fn check_owner(&self) -> Result<(), Broken> {
        match OwnerState::load(&self.region, OWNER_BYTE) {
            OwnerState::Alive => Ok(()),
            state => Err(not_alive(state)),
        }
    }
}

#[cold]
fn not_alive(state: OwnerState) -> Broken {
    match state {
        OwnerState::Unowned => Broken::Protocol { what: "the region has no owner".into() },
        OwnerState::Died | OwnerState::Alive => Broken::ServerGone,
    }
}

impl Transport for ShmTransport {
    // Always, as in what dispatches to it: a GET is little more than this.
    #[inline(always)]
    fn read_now(&mut self, at_word: usize, out: &mut [u64]) -> Result<ReadNow, Broken> {
        self.region.copy_out(at_word, out);
        Ok(ReadNow::Done)
    }

    #[inline(always)]
    fn guard_now(&mut self) -> Result<Option<u64>, Broken> {
        let place_epoch = self.region.load(superblock::PLACE_EPOCH);
        self.check_owner()?;
        Ok(Some(place_epoch))
    }

    fn post_read(&mut self, _token: u64, _at_word: usize, _buffer: ReadBuffer) {
        unreachable!("every READ of this transport is served by read_now")
    }

    #[inline]
    fn reads_are_loads(&self) -> bool {
        true
    }

    fn reads_in_flight_max(&self) -> usize {
        1
    }

    #[inline]
    fn prefetch(&self, at_word: usize, len_words: usize) {
        self.region.prefetch(at_word, len_words);
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<(), SendError> {
        match self.requests.try_push(parts) {
            Ok(()) => {}
            Err(PushError::Full) => return Err(SendError::Full),
            Err(error) => return Err(SendError::Broken(Broken::Protocol { what: error.to_string() })),
        }
        // The message is in the ring, where a server that drains may still take it: sent, whatever becomes of it.
        if self.requests.needs_wake() {
            self.is_peer_gone |= self.doorbell.ring() == Err(PeerGone);
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Event>, Broken> {
        let mut message = Vec::new();
        match self.replies.try_pop(&mut message) {
            Ok(Some(_)) => return Ok(Some(Event::Message(message))),
            Ok(None) => {}
            Err(error) => return Err(Broken::Protocol { what: error.to_string() }),
        }
        self.check_owner()?;
        self.empty_polls += 1;
        if self.empty_polls.is_multiple_of(EMPTY_POLLS_PER_LOOK) {
            // Whoever only polls and never waits learns here that the server has closed the connection.
            self.is_peer_gone |= self.doorbell.clear() == Err(PeerGone);
        }
        if self.is_peer_gone {
            return Err(Broken::Closed);
        }
        Ok(None)
    }

    fn wait(&mut self, until_ns: u64) {
        let (replies, region) = (&self.replies, &self.region);
        let is_owned = || OwnerState::load(region, OWNER_BYTE) == OwnerState::Alive;
        if self.is_peer_gone || self.spin.wait(|| !replies.is_empty() || !is_owned()) {
            return;
        }
        if !self.replies.prepare_sleep() {
            return;
        }
        let left = Duration::from_nanos(until_ns.saturating_sub(self.now_ns()));
        self.is_peer_gone |= self.doorbell.wait(left) == Err(PeerGone);
        self.replies.woke();
    }

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn staging(&self) -> &Words {
        &self.staging
    }

    fn name(&self) -> &'static str {
        "shm"
    }
}
