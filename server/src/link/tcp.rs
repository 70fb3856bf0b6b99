//! A client by TCP: frames, the mirror of its staging area, and the READs that this server answers for it.
//!
//! What is kept for the client is bounded: replies and READs are taken only while less than a limit is unsent, the words of
//! a READ are fetched as the socket takes them, and only the replies to one request may go beyond.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use kv_common::limits::TCP_UNSENT_MAX_BYTES;
use kv_common::region::{ReadWords, WORD_BYTES, Words, bytes_of};
use kv_common::transport::shm::spin::Spin;
use kv_common::transport::tcp::frame::{HEAD_BYTES, Head, Kind, Read, Sender, Stage};
use kv_common::transport::tcp::stream::{Gone, Stream};
use kv_common::wire::Reply;

use super::{End, Next};

/// Words of a READ that are fetched at once.
const FETCH_WORDS: usize = 1 << 10;

/// Looks before sleeping, at least and at most. Each is a system call, where one at a ring is a load.
const LOOKS_MIN: u32 = 4;
const LOOKS_MAX: u32 = 128;

/// A client's connection.
pub(crate) struct TcpLink {
    stream: Stream,
    region: ReadWords,
    mirror: Words,
    /// The part of a READ that is not fetched yet.
    reading: Option<Reading>,
    /// The last look received all there was: the next one need not ask the system again.
    is_dry: bool,
}

#[derive(Clone, Copy)]
struct Reading {
    at_word: usize,
    left_words: usize,
}

impl TcpLink {
    pub(crate) fn new(socket: TcpStream, region: ReadWords, staging_bytes: u64) -> io::Result<TcpLink> {
        let mirror = Words::private(staging_bytes as usize / WORD_BYTES)?;
        Ok(TcpLink { stream: Stream::new(socket)?, region, mirror, reading: None, is_dry: false })
    }

    pub(super) fn spin() -> Spin {
        Spin::new(LOOKS_MIN, LOOKS_MAX)
    }

    pub(super) fn next(&mut self, message: &mut Vec<u8>) -> Result<Next, End> {
        loop {
            let head = self.stream.head(Sender::Client)?;
            if let Some(head) = head.filter(|&head| self.stream.frame(head).is_some()) {
                return self.take(head, message);
            }
            if std::mem::take(&mut self.is_dry) {
                return Ok(Next::Nothing);
            }
            match self.stream.fill()? {
                (0, _) => return Ok(Next::Nothing),
                (_, has_more) => self.is_dry = !has_more,
            }
        }
    }

    fn take(&mut self, head: Head, message: &mut Vec<u8>) -> Result<Next, End> {
        let frame = self.stream.frame(head).expect("it was just seen");
        let next = match head.kind {
            Kind::Request => {
                message.clear();
                message.extend_from_slice(frame.body);
                Next::Request
            }
            Kind::Stage => {
                let stage = Stage::decode(frame.body, self.mirror.len_words())?;
                stage.for_each(|at_word, words| self.mirror.copy_in(at_word, words));
                Next::Served
            }
            Kind::Read => {
                let Read { token, at_word, len_words } = Read::decode(frame.body, self.region.len_words())?;
                let (at_word, left_words) = (at_word as usize, len_words as usize);
                self.stream.push(&Stage::head(Kind::ReadReply, token, left_words));
                self.reading = Some(Reading { at_word, left_words });
                Next::Served
            }
            Kind::ReadReply | Kind::Reply => unreachable!("no client's frame"),
        };
        self.stream.take(HEAD_BYTES + head.body_bytes);
        self.fetch();
        Ok(next)
    }

    /// Fetches words of the READ under way, as many as there is room for.
    fn fetch(&mut self) {
        let mut words = [0; FETCH_WORDS];
        while let Some(Reading { at_word, left_words }) = self.reading
            && self.stream.unsent_bytes() < TCP_UNSENT_MAX_BYTES
        {
            let words = &mut words[..left_words.min(FETCH_WORDS)];
            self.region.copy_out(at_word, words);
            self.stream.push(bytes_of(words));
            let left_words = left_words - words.len();
            self.reading = (left_words > 0).then_some(Reading { at_word: at_word + words.len(), left_words });
        }
    }

    pub(super) fn staging(&self) -> &Words {
        &self.mirror
    }

    pub(super) fn push(&mut self, reply: &Reply<'_>) {
        let header = reply.header();
        let body_bytes = header.len() + reply.chunk.len();
        self.stream.push(&Head { kind: Kind::Reply, body_bytes }.encode());
        self.stream.push(&header);
        self.stream.push(reply.chunk);
    }

    pub(super) fn flush(&mut self) -> Result<bool, End> {
        let mut has_progress = false;
        loop {
            has_progress |= self.stream.flush()? > 0;
            if self.reading.is_none() || self.stream.unsent_bytes() >= TCP_UNSENT_MAX_BYTES {
                return Ok(has_progress);
            }
            self.fetch();
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.reading.is_none() && self.stream.unsent_bytes() < TCP_UNSENT_MAX_BYTES
    }

    pub(super) fn has_delivered(&self) -> bool {
        self.reading.is_none() && self.stream.unsent_bytes() == 0
    }

    /// False if something came meanwhile; also the end of the connection, which the next look finds.
    pub(super) fn fall_asleep(&mut self) -> bool {
        self.is_dry = false;
        let is_asleep = matches!(self.stream.fill(), Ok((0, _)));
        if is_asleep {
            self.stream.rest();
        }
        is_asleep
    }

    pub(super) fn close(&mut self) {
        self.stream.end();
    }
}

impl AsFd for TcpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl From<Gone> for End {
    fn from(_: Gone) -> End {
        End::Gone
    }
}
