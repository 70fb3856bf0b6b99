//! Frames: what goes over a TCP connection after the hellos.
//!
//! ```text
//! frame      | body_bytes:32 | kind:32 | body |
//!
//! kind  from     body
//!    1  client   READ         | token:64 | at_word:64 | len_words:64 |
//!    2  both     STAGE        | at_word:64 | words |                      these words of the staging area
//!    3  client   REQUEST      a request as in `wire.rs`
//!    4  server   READ_REPLY   | token:64 | words |                        the answer to the oldest READ without one
//!    5  server   REPLY        a reply as in `wire.rs`
//! ```
//!
//! Little-endian. Lengths are judged from the frame's head, before anything is made for the body.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::{READ_MAX_WORDS, STAGE_FRAME_MAX_WORDS};
use crate::region::WORD_BYTES;
use crate::ring::MESSAGE_MAX_BYTES;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeadWords {
    body_bytes: U32,
    kind: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ReadWords {
    token: U64,
    at_word: U64,
    len_words: U64,
}

/// Bytes of a frame before its body.
pub const HEAD_BYTES: usize = size_of::<HeadWords>();
/// Bytes of a READ, head and body.
pub const READ_FRAME_BYTES: usize = HEAD_BYTES + size_of::<ReadWords>();
/// Bytes of a READ_REPLY before its words, and of a STAGE before its.
pub const WORDS_AT: usize = HEAD_BYTES + size_of::<U64>();
/// Bytes of the largest frame that is received whole before it is looked at: every one but READ_REPLY, whose words go
/// where they belong as they come.
pub const WHOLE_FRAME_MAX_BYTES: usize = WORDS_AT + STAGE_FRAME_MAX_WORDS * WORD_BYTES;

const _: () = assert!(HEAD_BYTES == 8 && READ_FRAME_BYTES == 32 && WORDS_AT == 16);
const _: () = assert!(HEAD_BYTES + MESSAGE_MAX_BYTES <= WHOLE_FRAME_MAX_BYTES);
const _: () = assert!(READ_MAX_WORDS * WORD_BYTES < u32::MAX as usize - WORDS_AT);

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A client asks for words of the region.
    Read = 1,
    /// Words of the staging area.
    Stage = 2,
    /// A request.
    Request = 3,
    /// The words that a READ asked for.
    ReadReply = 4,
    /// A reply.
    Reply = 5,
}

/// Who sends a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// What is wrong with a frame. The connection must be given up: there is no way back into step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// No such kind comes from that side.
    #[error(
        "frame: kind {found} is none that this peer may send; it is broken or hostile, close the connection"
    )]
    Kind {
        /// The kind found.
        found: u32,
    },
    /// No frame of that kind has this length.
    #[error(
        "frame: a {kind:?} of {found_bytes} bytes cannot be; the peer is broken or hostile, close the connection"
    )]
    Length {
        /// The kind.
        kind: Kind,
        /// Bytes of the body, as announced.
        found_bytes: u32,
    },
    /// Words outside of what they may lie in.
    #[error(
        "frame: a {kind:?} of {len_words} words from word {at_word} is not inside the {limit_words} there are; close the \
         connection"
    )]
    Outside {
        /// The kind.
        kind: Kind,
        /// The first word.
        at_word: u64,
        /// How many.
        len_words: u64,
        /// Words of the region, or of the staging area.
        limit_words: u64,
    },
    /// The answer to another READ than the one that is due, or of another length.
    #[error("frame: words for READ {found:#x}, but {expected:#x} is due; close the connection")]
    OtherRead {
        /// The READ that is due; 0 if none is.
        expected: u64,
        /// What the frame says.
        found: u64,
    },
}

/// The start of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What it is.
    pub kind: Kind,
    /// Bytes of the body.
    pub body_bytes: usize,
}

impl Head {
    /// As bytes.
    pub fn encode(self) -> [u8; HEAD_BYTES] {
        let words =
            HeadWords { body_bytes: (self.body_bytes as u32).into(), kind: (self.kind as u32).into() };
        words.as_bytes().try_into().expect("a head has its size")
    }

    /// The head at the start of `bytes`, sent by `sender`; `None` if more bytes have to come first.
    ///
    /// # Errors
    /// [`FrameError::Kind`], [`FrameError::Length`].
    pub fn decode(bytes: &[u8], sender: Sender) -> Result<Option<Head>, FrameError> {
        let Ok((words, _)) = HeadWords::ref_from_prefix(bytes) else { return Ok(None) };
        let (found, found_bytes) = (words.kind.get(), words.body_bytes.get());
        let kind = match (found, sender) {
            (1, Sender::Client) => Kind::Read,
            (2, _) => Kind::Stage,
            (3, Sender::Client) => Kind::Request,
            (4, Sender::Server) => Kind::ReadReply,
            (5, Sender::Server) => Kind::Reply,
            _ => return Err(FrameError::Kind { found }),
        };
        let body_bytes = found_bytes as usize;
        if kind.can_have(body_bytes) {
            Ok(Some(Head { kind, body_bytes }))
        } else {
            Err(FrameError::Length { kind, found_bytes })
        }
    }
}

impl Kind {
    fn can_have(self, body_bytes: usize) -> bool {
        let words = |limit_words: usize| {
            let (len_words, rest) = (body_bytes / WORD_BYTES, body_bytes % WORD_BYTES);
            rest == 0 && (2..=limit_words + 1).contains(&len_words)
        };
        match self {
            Kind::Read => body_bytes == size_of::<ReadWords>(),
            Kind::Stage => words(STAGE_FRAME_MAX_WORDS),
            Kind::ReadReply => words(READ_MAX_WORDS),
            Kind::Request | Kind::Reply => body_bytes <= MESSAGE_MAX_BYTES,
        }
    }
}

/// Words of the region that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Comes back with the words.
    pub token: u64,
    /// The first word.
    pub at_word: u64,
    /// How many.
    pub len_words: u64,
}

impl Read {
    /// The frame.
    pub fn encode(self) -> [u8; READ_FRAME_BYTES] {
        let body = ReadWords {
            token: self.token.into(),
            at_word: self.at_word.into(),
            len_words: self.len_words.into(),
        };
        let head = Head { kind: Kind::Read, body_bytes: size_of::<ReadWords>() }.encode();
        let mut frame = [0; READ_FRAME_BYTES];
        frame[..HEAD_BYTES].copy_from_slice(&head);
        frame[HEAD_BYTES..].copy_from_slice(body.as_bytes());
        frame
    }

    /// The READ in a body, of a region of `region_words`.
    ///
    /// # Errors
    /// [`FrameError::Outside`] if it is empty, too long, or not inside the region.
    pub fn decode(body: &[u8], region_words: usize) -> Result<Read, FrameError> {
        let words = ReadWords::ref_from_bytes(body).expect("the head's length was checked");
        let (at_word, len_words) = (words.at_word.get(), words.len_words.get());
        let range = Range { kind: Kind::Read, at_word, len_words, limit_words: region_words as u64 };
        if len_words > READ_MAX_WORDS as u64 {
            return Err(range.outside());
        }
        range.check()?;
        Ok(Read { token: words.token.get(), at_word, len_words })
    }
}

/// Words of the staging area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage<'a> {
    /// The first word.
    pub at_word: usize,
    /// The words, as bytes.
    pub bytes: &'a [u8],
}

impl<'a> Stage<'a> {
    /// Everything before the words of a STAGE, or of a READ_REPLY: `first` is the first word's number, or the token.
    pub fn head(kind: Kind, first: u64, len_words: usize) -> [u8; WORDS_AT] {
        let body_bytes = size_of::<U64>() + len_words * WORD_BYTES;
        assert!(kind.can_have(body_bytes), "a {kind:?} of {len_words} words");
        let mut bytes = [0; WORDS_AT];
        bytes[..HEAD_BYTES].copy_from_slice(&Head { kind, body_bytes }.encode());
        bytes[HEAD_BYTES..].copy_from_slice(&first.to_le_bytes());
        bytes
    }

    /// The STAGE in a body, for an area of `area_words`.
    ///
    /// # Errors
    /// [`FrameError::Outside`].
    pub fn decode(body: &'a [u8], area_words: usize) -> Result<Stage<'a>, FrameError> {
        let (at_word, bytes) = U64::ref_from_prefix(body).expect("the head's length was checked");
        let len_words = (bytes.len() / WORD_BYTES) as u64;
        let range =
            Range { kind: Kind::Stage, at_word: at_word.get(), len_words, limit_words: area_words as u64 };
        range.check()?;
        Ok(Stage { at_word: at_word.get() as usize, bytes })
    }

    /// The words, in pieces of private memory with the place of each.
    pub fn for_each(&self, mut take: impl FnMut(usize, &[u64])) {
        let mut words = [0u64; 512];
        for (i, piece) in self.bytes.chunks(size_of_val(&words)).enumerate() {
            let len_words = piece.len() / WORD_BYTES;
            crate::region::bytes_of_mut(&mut words)[..piece.len()].copy_from_slice(piece);
            take(self.at_word + i * words.len(), &words[..len_words]);
        }
    }
}

struct Range {
    kind: Kind,
    at_word: u64,
    len_words: u64,
    limit_words: u64,
}

impl Range {
    fn check(&self) -> Result<(), FrameError> {
        let end = self.at_word.checked_add(self.len_words);
        let is_inside = self.len_words > 0 && end.is_some_and(|end| end <= self.limit_words);
        if is_inside { Ok(()) } else { Err(self.outside()) }
    }

    fn outside(&self) -> FrameError {
        let &Range { kind, at_word, len_words, limit_words } = self;
        FrameError::Outside { kind, at_word, len_words, limit_words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(body_bytes: u32, kind: u32) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&body_bytes.to_le_bytes());
        bytes[4..].copy_from_slice(&kind.to_le_bytes());
        bytes
    }

    /// The bytes as the picture at the top draws them.
    #[test]
    fn golden_frames() {
        let read = Read { token: 0x0102_0304_0506_0708, at_word: 0x1122, len_words: 16 };
        let golden: &[u8] = b"\x18\0\0\0\x01\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\
            \x22\x11\0\0\0\0\0\0\x10\0\0\0\0\0\0\0";
        assert_eq!(read.encode(), golden);
        assert_eq!(Read::decode(&golden[8..], 0x1132), Ok(read));
        assert_eq!(&Stage::head(Kind::Stage, 3, 2), b"\x18\0\0\0\x02\0\0\0\x03\0\0\0\0\0\0\0");
        assert_eq!(&Stage::head(Kind::ReadReply, 9, 1), b"\x10\0\0\0\x04\0\0\0\x09\0\0\0\0\0\0\0");
        assert_eq!(&Head { kind: Kind::Request, body_bytes: 48 }.encode(), b"\x30\0\0\0\x03\0\0\0");
        assert_eq!(&Head { kind: Kind::Reply, body_bytes: 0 }.encode(), b"\0\0\0\0\x05\0\0\0");
    }

    #[test]
    fn heads_are_judged_before_their_bodies() {
        let decode = |body_bytes, kind, sender| Head::decode(&head(body_bytes, kind), sender);
        let length = |kind, found_bytes| Err(FrameError::Length { kind, found_bytes });
        for end in 0..HEAD_BYTES {
            assert_eq!(Head::decode(&head(24, 1)[..end], Sender::Client), Ok(None));
        }
        assert_eq!(decode(24, 1, Sender::Client), Ok(Some(Head { kind: Kind::Read, body_bytes: 24 })));
        for found in [0, 23, 25, 32, u32::MAX] {
            assert_eq!(decode(found, 1, Sender::Client), length(Kind::Read, found));
        }
        let stage_max = 8 + 8 * STAGE_FRAME_MAX_WORDS as u32;
        for found in [0, 8, 17, stage_max + 8, u32::MAX] {
            assert_eq!(decode(found, 2, Sender::Client), length(Kind::Stage, found));
        }
        assert!(decode(stage_max, 2, Sender::Client).is_ok() && decode(16, 2, Sender::Server).is_ok());
        let read_max = 8 + 8 * READ_MAX_WORDS as u32;
        for found in [0, 8, 12, read_max + 8, u32::MAX] {
            assert_eq!(decode(found, 4, Sender::Server), length(Kind::ReadReply, found));
        }
        assert!(decode(read_max, 4, Sender::Server).is_ok());
        let over = MESSAGE_MAX_BYTES as u32 + 1;
        assert_eq!(decode(over, 3, Sender::Client), length(Kind::Request, over));
        assert_eq!(decode(over, 5, Sender::Server), length(Kind::Reply, over));
        for (kind, sender) in [
            (0, Sender::Client),
            (4, Sender::Client),
            (5, Sender::Client),
            (1, Sender::Server),
            (3, Sender::Server),
            (6, Sender::Server),
            (u32::MAX, Sender::Client),
        ] {
            assert_eq!(decode(24, kind, sender), Err(FrameError::Kind { found: kind }));
        }
    }

    #[test]
    fn reads_and_stages_outside_are_refused() {
        let read = |at_word, len_words| {
            let frame = Read { token: 0, at_word, len_words }.encode();
            Read::decode(&frame[HEAD_BYTES..], 100).map(|read| (read.at_word, read.len_words))
        };
        for (at_word, len_words) in [(0, 100), (99, 1), (50, 50)] {
            assert_eq!(read(at_word, len_words), Ok((at_word, len_words)));
        }
        for (at_word, len_words) in
            [(0, 0), (0, 101), (99, 2), (100, 1), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)]
        {
            let outside = FrameError::Outside { kind: Kind::Read, at_word, len_words, limit_words: 100 };
            assert_eq!(read(at_word, len_words), Err(outside));
        }
        let many = READ_MAX_WORDS as u64 + 1;
        let frame = Read { token: 0, at_word: 0, len_words: many }.encode();
        assert!(Read::decode(&frame[HEAD_BYTES..], usize::MAX).is_err(), "longer than a READ may be");
        let stage = |at_word: u64, len_words: usize| {
            let body = [&at_word.to_le_bytes()[..], &vec![7; 8 * len_words]].concat();
            Stage::decode(&body, 4).map(|stage| stage.at_word)
        };
        assert_eq!((stage(0, 4), stage(3, 1)), (Ok(0), Ok(3)));
        for (at_word, len_words) in [(0, 5), (4, 1), (3, 2), (u64::MAX, 1), (u64::MAX - 1, 4)] {
            assert!(matches!(stage(at_word, len_words), Err(FrameError::Outside { kind: Kind::Stage, .. })));
        }
    }

    #[test]
    fn staged_words_keep_their_places() {
        let words: Vec<u64> = (0..1300).collect();
        let mut found = Vec::new();
        let stage = Stage { at_word: 5, bytes: crate::region::bytes_of(&words) };
        stage.for_each(|at_word, piece| {
            assert_eq!(at_word, 5 + found.len());
            found.extend_from_slice(piece);
        });
        assert_eq!(found, words);
    }

    proptest! {
        #[test]
        fn arbitrary_heads_are_decoded_or_refused(bytes: [u8; 8], is_client: bool) {
            let sender = if is_client { Sender::Client } else { Sender::Server };
            if let Ok(Some(head)) = Head::decode(&bytes, sender) {
                prop_assert_eq!(head.encode(), bytes);
                let limit = if head.kind == Kind::ReadReply { 8 + 8 * READ_MAX_WORDS } else { WHOLE_FRAME_MAX_BYTES };
                prop_assert!(head.body_bytes <= limit);
            }
        }

        #[test]
        fn arbitrary_bodies_are_decoded_or_refused(
            numbers: [u64; 3],
            words in proptest::collection::vec(any::<u64>(), 1..20),
            limit_words in 0usize..64,
        ) {
            if let Ok(read) = Read::decode(crate::region::bytes_of(&numbers), limit_words) {
                prop_assert!(read.at_word + read.len_words <= limit_words as u64);
            }
            let body = [&numbers[..1], &words].concat();
            if let Ok(stage) = Stage::decode(crate::region::bytes_of(&body), limit_words) {
                prop_assert!(stage.at_word + words.len() <= limit_words);
            }
        }
    }
}
