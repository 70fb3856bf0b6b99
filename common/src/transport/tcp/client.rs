//! The client's side: READs are frames that the server answers in order, requests are frames too.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::frame::{FrameError, HEAD_BYTES, Head, Kind, Read, Sender, Stage, WORDS_AT};
use super::stream::{Gone, Stream};
use crate::limits::{STAGE_FRAME_MAX_WORDS, TCP_READS_IN_FLIGHT_MAX, TCP_UNSENT_MAX_BYTES};
use crate::region::{WORD_BYTES, Words, bytes_of, bytes_of_mut};
use crate::transport::shm::spin::Spin;
use crate::transport::{Broken, Event, ReadBuffer, ReadNow, SendError, Transport, UserMemory};

/// Looks before sleeping, at least and at most. Each is a system call of about half a microsecond.
const LOOKS_MIN: u32 = 4;
const LOOKS_MAX: u32 = 128;

/// A client's connection by TCP.
pub struct TcpTransport {
    stream: Stream,
    staging: Words,
    /// READs without an answer, oldest first: that is the order of the answers.
    reads: VecDeque<Posted>,
    /// Bytes of the oldest READ's words that have come, once its answer has begun.
    filled_bytes: Option<usize>,
    broken: Option<Broken>,
    /// Staged words have been taken: the message that names them is taken too.
    has_promised_room: bool,
    spin: Spin,
    epoch: Instant,
}

struct Posted {
    token: u64,
    buffer: ReadBuffer,
}

impl TcpTransport {
    /// The connection whose hellos are done, with a staging area of `staging_bytes`.
    ///
    /// # Errors
    /// What the system said.
    pub fn new(socket: TcpStream, staging_bytes: u64) -> io::Result<TcpTransport> {
        Ok(TcpTransport {
            stream: Stream::new(socket)?,
            staging: Words::private(staging_bytes as usize / WORD_BYTES)?,
            reads: VecDeque::new(),
            filled_bytes: None,
            broken: None,
            has_promised_room: false,
            spin: Spin::new(LOOKS_MIN, LOOKS_MAX),
            epoch: Instant::now(),
        })
    }

    /// Whether more may be kept to be sent.
    fn has_room(&mut self) -> bool {
        if self.stream.unsent_bytes() >= TCP_UNSENT_MAX_BYTES {
            self.flush();
        }
        self.stream.unsent_bytes() < TCP_UNSENT_MAX_BYTES
    }

    /// The next event, if it has come whole.
    fn next_event(&mut self) -> Result<Option<Event>, Broken> {
        loop {
            if self.filled_bytes.is_some() {
                return self.go_on_reading();
            }
            let head = self.stream.head(Sender::Server)?;
            match head {
                Some(head) if head.kind == Kind::ReadReply && self.stream.received().len() >= WORDS_AT => {
                    self.begin_reading(head)?;
                }
                Some(head) if head.kind != Kind::ReadReply && self.stream.frame(head).is_some() => {
                    if let Some(event) = self.take_frame(head)? {
                        return Ok(Some(event));
                    }
                }
                _ if self.stream.fill()?.0 == 0 => return Ok(None),
                _ => {}
            }
        }
    }

    fn take_frame(&mut self, head: Head) -> Result<Option<Event>, Broken> {
        let frame = self.stream.frame(head).expect("it was just seen");
        let event = match head.kind {
            Kind::Reply => Some(Event::Message(frame.body.to_vec())),
            Kind::Stage => {
                let stage = Stage::decode(frame.body, self.staging.len_words())?;
                stage.for_each(|at_word, words| self.staging.copy_in(at_word, words));
                None
            }
            Kind::ReadReply | Kind::Read | Kind::Request => {
                unreachable!("no server's frame, or taken elsewhere")
            }
        };
        self.stream.take(HEAD_BYTES + head.body_bytes);
        Ok(event)
    }

    /// The answer to the oldest READ begins; it must be that one's, and have its length.
    fn begin_reading(&mut self, head: Head) -> Result<(), Broken> {
        let token = self.stream.received()[HEAD_BYTES..WORDS_AT].try_into().expect("eight bytes");
        let (found, len_words) = (u64::from_le_bytes(token), head.body_bytes / WORD_BYTES - 1);
        match self.reads.front() {
            Some(due) if due.token == found && due.buffer.len() == len_words => {}
            due => {
                return Err(FrameError::OtherRead { expected: due.map_or(0, |due| due.token), found }.into());
            }
        }
        self.stream.take(WORDS_AT);
        self.filled_bytes = Some(0);
        Ok(())
    }

    /// Fills the oldest READ's buffer with what has come.
    fn go_on_reading(&mut self) -> Result<Option<Event>, Broken> {
        let mut filled_bytes = self.filled_bytes.expect("an answer has begun");
        let buffer = &mut self.reads.front_mut().expect("it is that of a READ").buffer;
        let bytes = bytes_of_mut(buffer);
        while filled_bytes < bytes.len() {
            let received = self.stream.received();
            let count = received.len().min(bytes.len() - filled_bytes);
            let room = &mut bytes[filled_bytes..];
            if count > 0 {
                room[..count].copy_from_slice(&received[..count]);
                self.stream.take(count);
                filled_bytes += count;
                continue;
            }
            let count = self.stream.fill_directly(room)?;
            filled_bytes += count;
            self.filled_bytes = Some(filled_bytes);
            if count == 0 {
                return Ok(None);
            }
        }
        self.filled_bytes = None;
        let Posted { token, buffer } = self.reads.pop_front().expect("it was just filled");
        Ok(Some(Event::Read { token, buffer, result: Ok(()) }))
    }
}

impl From<Gone> for Broken {
    fn from(gone: Gone) -> Broken {
        match gone {
            Gone::Closed => Broken::Closed,
            Gone::Lost(errno) => {
                Broken::System { what: "the connection is lost", error: io::Error::from(errno).to_string() }
            }
        }
    }
}

impl From<FrameError> for Broken {
    fn from(error: FrameError) -> Broken {
        Broken::Protocol { what: error.to_string() }
    }
}

impl Transport for TcpTransport {
    fn read_now(&mut self, _at_word: usize, _out: &mut [u64]) -> Result<ReadNow, Broken> {
        self.broken.clone().map_or(Ok(ReadNow::Post), Err)
    }

    fn post_read(&mut self, token: u64, at_word: usize, buffer: ReadBuffer) {
        let read = Read { token, at_word: at_word as u64, len_words: buffer.len() as u64 };
        self.reads.push_back(Posted { token, buffer });
        self.stream.push(&read.encode());
    }

    fn take_back(&mut self, token: u64) -> Option<Box<UserMemory>> {
        self.reads.iter_mut().find(|read| read.token == token)?.buffer.take_user()
    }

    fn reads_are_loads(&self) -> bool {
        false
    }

    fn reads_in_flight_max(&self) -> usize {
        TCP_READS_IN_FLIGHT_MAX
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<(), SendError> {
        if let Some(broken) = &self.broken {
            return Err(SendError::Broken(broken.clone()));
        }
        if !std::mem::take(&mut self.has_promised_room) && !self.has_room() {
            return Err(SendError::Full);
        }
        let body_bytes = parts.iter().map(|part| part.len()).sum();
        self.stream.push(&Head { kind: Kind::Request, body_bytes }.encode());
        parts.iter().for_each(|part| self.stream.push(part));
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Event>, Broken> {
        if self.broken.is_none() {
            match self.next_event() {
                Ok(event) => return Ok(event),
                Err(broken) => self.broken = Some(broken),
            }
        }
        let broken = self.broken.clone().expect("it was just set");
        match self.reads.pop_front() {
            Some(Posted { token, buffer }) => Ok(Some(Event::Read { token, buffer, result: Err(broken) })),
            None => Err(broken),
        }
    }

    fn wait(&mut self, until_ns: u64) {
        self.flush();
        let stream = &mut self.stream;
        // The end of the connection is something to take, too.
        let mut has_come = || !matches!(stream.fill(), Ok((0, _)));
        if self.broken.is_some() || self.spin.wait(&mut has_come) {
            return;
        }
        let left = Duration::from_nanos(until_ns.saturating_sub(self.now_ns()));
        self.stream.wait(left);
        self.flush();
    }

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn staging(&self) -> &Words {
        &self.staging
    }

    fn stage(&mut self, at_word: usize, len_words: usize) -> Result<(), SendError> {
        if let Some(broken) = &self.broken {
            return Err(SendError::Broken(broken.clone()));
        }
        if !self.has_room() {
            return Err(SendError::Full);
        }
        let mut words = [0; STAGE_FRAME_MAX_WORDS];
        for first in (at_word..at_word + len_words).step_by(words.len()) {
            let words = &mut words[..STAGE_FRAME_MAX_WORDS.min(at_word + len_words - first)];
            self.staging.copy_out(first, words);
            self.stream.push(&Stage::head(Kind::Stage, first as u64, words.len()));
            self.stream.push(bytes_of(words));
        }
        self.has_promised_room = true;
        Ok(())
    }

    fn flush(&mut self) {
        // If nothing can be sent any more, the server may have said why: that is read first, and then the end.
        let _ = self.stream.flush();
    }

    fn name(&self) -> &'static str {
        "tcp"
    }
}
