//! Operations in flight, and what becomes of them.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use kv_common::hash::KeyHash;
use kv_common::limits::TTL_MAX_NS;
pub use kv_common::wire::Condition;

use crate::error::Error;
use crate::get::Get;
use crate::registered::Registered;

/// A version of a value: never used twice in a table's life, rising per key. The token of [`Condition::Version`].
pub type Version = u64;

/// Names a submitted operation until its completion is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(crate) u64);

/// A value with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Their version.
    pub version: Version,
}

/// How a write with a condition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditional<T> {
    /// It was done.
    Done(T),
    /// Not done: the key is there, with this version, and the condition does not hold of it.
    Mismatch(Version),
    /// Not done: the key is not there, and the condition or the operation wants it to be.
    NotFound,
}

impl<T> Conditional<T> {
    /// What a write made that was done.
    pub fn done(self) -> Option<T> {
        if let Conditional::Done(made) = self { Some(made) } else { None }
    }
}

/// A counter after an add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The sum.
    pub value: i64,
    /// Its version.
    pub version: Version,
}

/// A value after an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Bytes of the whole value.
    pub value_bytes: usize,
    /// Its version.
    pub version: Version,
}

/// What a put asks for beside the value. A [`Condition`] can be given in its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutOptions {
    /// What must hold of the key. Default: nothing.
    pub condition: Condition,
    /// How long the value shall live, at most [`TTL_MAX`]. Default: without end, also if the key has an end now. See
    /// [`Client::touch`](crate::Client::touch).
    pub ttl: Option<Duration>,
}

/// The longest time to live: 100 years of 365 days.
pub const TTL_MAX: Duration = Duration::from_nanos(TTL_MAX_NS);

/// How long a key will live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeToLive {
    /// It is not there.
    Absent,
    /// Without end.
    Forever,
    /// So long.
    Left(Duration),
}

impl From<Condition> for PutOptions {
    fn from(condition: Condition) -> PutOptions {
        PutOptions { condition, ttl: None }
    }
}

impl From<Duration> for PutOptions {
    fn from(ttl: Duration) -> PutOptions {
        PutOptions { condition: Condition::Always, ttl: Some(ttl) }
    }
}

/// The result of an operation, by its kind.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Of a GET: the value, or `None` if the key is absent.
    Get(Result<Option<Value>, Error>),
    /// Of a GET into registered memory, which comes back: the version of the value that it holds now, or `None` if the key
    /// is absent.
    GetInto(Registered, Result<Option<Version>, Error>),
    /// Of a PUT: the new version.
    Put(Result<Version, Error>),
    /// Of a DELETE: whether the key was there.
    Delete(Result<bool, Error>),
    /// Of a PUT with options, a DELETE with a condition, or a touch: the version of the write.
    Conditional(Result<Conditional<Version>, Error>),
    /// Of an add.
    Add(Result<Conditional<Count>, Error>),
    /// Of an append.
    Append(Result<Conditional<Appended>, Error>),
    /// Of the question how long a key will live.
    Ttl(Result<TimeToLive, Error>),
    /// Of a part of a walk over all keys.
    Walk(Result<WalkPart, Error>),
    /// Of a ping.
    Ping(Result<(), Error>),
}

/// What the server answers to a part of a walk.
#[derive(Debug, PartialEq, Eq)]
pub struct WalkPart {
    pub(crate) bytes: Vec<u8>,
    /// Where the next part begins; 0 if there is none.
    pub(crate) next: u64,
}

/// A submitted operation that has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which.
    pub ticket: Ticket,
    /// How.
    pub outcome: Outcome,
}

/// What a write asks for.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) change: Change,
    /// None of a plain PUT or DELETE, whose outcome is simpler.
    pub(crate) condition: Option<Condition>,
    /// The time to live, in ns.
    pub(crate) ttl_ns: Option<u64>,
}

/// What a write does to its key, with the bytes of its message.
#[derive(Debug)]
pub(crate) enum Change {
    Put(Vec<u8>),
    Delete,
    Add([u8; 8]),
    Append(Vec<u8>),
    Touch,
    /// These parts of the value have come.
    GetAndTouch(Vec<u8>),
}

impl Write {
    pub(crate) fn plain(change: Change) -> Write {
        Write { change, condition: None, ttl_ns: None }
    }

    pub(crate) fn conditional(change: Change, condition: Condition) -> Write {
        Write { change, condition: Some(condition), ttl_ns: None }
    }

    pub(crate) fn with_ttl(self, ttl: Option<Duration>) -> Write {
        let ns = |ttl: Duration| u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX);
        Write { ttl_ns: ttl.map(ns), ..self }
    }

    /// The value of its message.
    pub(crate) fn value(&self) -> &[u8] {
        match &self.change {
            Change::Put(value) | Change::Append(value) => value,
            Change::Add(delta) => delta,
            Change::Delete | Change::Touch | Change::GetAndTouch(_) => &[],
        }
    }

    fn failure(&self, error: Error) -> Outcome {
        match (&self.change, self.condition) {
            (Change::Put(_), None) => Outcome::Put(Err(error)),
            (Change::Delete, None) => Outcome::Delete(Err(error)),
            (Change::Put(_) | Change::Delete, Some(_)) | (Change::Touch, _) => {
                Outcome::Conditional(Err(error))
            }
            (Change::GetAndTouch(_), _) => Outcome::Get(Err(error)),
            (Change::Add(_), _) => Outcome::Add(Err(error)),
            (Change::Append(_), _) => Outcome::Append(Err(error)),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// `into` is the user's memory for the value; what of it is lent to a READ is missing meanwhile.
    Get {
        get: Get,
        state: GetState,
        into: Option<Registered>,
    },
    /// A value that is uploaded in parts is sent when its end is.
    Write {
        write: Write,
        state: SendState,
        upload: Option<Upload>,
    },
    Ttl {
        state: SendState,
    },
    /// A part of a walk over all keys, and what has come of the answer.
    Walk {
        walk: Walk,
        cursor: [u8; 8],
        bytes: Vec<u8>,
        state: SendState,
    },
    Ping {
        state: SendState,
    },
}

/// What becomes of the keys that a walk passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walk {
    Scan,
    Clear,
}

#[derive(Debug)]
pub(crate) enum GetState {
    /// Its machine waits for a READ.
    Reading,
    /// Waits for a write of this client to the same key.
    BehindWrite,
    /// Waits for the directory or the lease to be read anew.
    Refreshing,
    /// READs are at their limit.
    ReadQueued { at_word: usize, len_words: usize },
    /// The pages of a large block are read; more of them when READs are below their limit, if it `is_queued` for that.
    Fetching { is_queued: bool },
    /// The server is asked.
    Asked { state: SendState, answer: Answer },
}

/// What the server has answered so far to a GET, in one answer or several.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) value: Vec<u8>,
    /// The version that these bytes are of.
    pub(crate) version: Version,
    /// The key has another version by now: this answer is of no use, and the next one begins anew.
    pub(crate) is_outdated: bool,
}

/// A value that is sent in parts, and the operation only then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Upload {
    pub(crate) is_begun: bool,
    /// Bytes of the value that were sent.
    pub(crate) sent_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendState {
    /// Not sent yet: no credit, no room, or the staging area is lent already.
    Queued,
    /// Sent; it may have been carried out.
    Sent,
}

/// An operation in flight.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) ticket: Ticket,
    pub(crate) key: Vec<u8>,
    pub(crate) hash: KeyHash,
    pub(crate) started_ns: u64,
    /// Later each time that a large value has come further.
    pub(crate) deadline_ns: u64,
    /// How far that was, in bytes or pages.
    pub(crate) furthest: u64,
    pub(crate) kind: Kind,
}

impl Op {
    /// True if it changes its key.
    pub(crate) fn is_write(&self) -> bool {
        matches!(self.kind, Kind::Write { .. })
    }

    /// The user's memory for the value, if it has any.
    pub(crate) fn registered(&mut self) -> Option<&mut Registered> {
        match &mut self.kind {
            Kind::Get { into, .. } => into.as_mut(),
            _ => None,
        }
    }

    fn take_into(&mut self) -> Option<Registered> {
        match &mut self.kind {
            Kind::Get { into, .. } => into.take(),
            _ => None,
        }
    }

    /// How a GET ends whose value is in these bytes of the library's.
    pub(crate) fn found(&mut self, bytes: Cow<'_, [u8]>, version: Version) -> Outcome {
        match self.take_into() {
            None => Outcome::Get(Ok(Some(Value { bytes: bytes.into_owned(), version }))),
            Some(mut buffer) => {
                let result = buffer.copy_in(&bytes, version).map(|()| Some(version));
                Outcome::GetInto(buffer, result)
            }
        }
    }

    /// How a GET ends whose value is where its READ ended, in the user's memory.
    pub(crate) fn found_in_place(&mut self, value: Range<usize>, version: Version) -> Outcome {
        let mut buffer = self.take_into().expect("a READ has ended in it");
        buffer.found(value, version);
        Outcome::GetInto(buffer, Ok(Some(version)))
    }

    /// How a GET ends whose key is absent.
    pub(crate) fn absent(&mut self) -> Outcome {
        match self.take_into() {
            None => Outcome::Get(Ok(None)),
            Some(buffer) => Outcome::GetInto(buffer, Ok(None)),
        }
    }

    /// How it ends when it cannot end well.
    pub(crate) fn failure(&mut self, error: Error) -> Outcome {
        if let Some(buffer) = self.take_into() {
            return Outcome::GetInto(buffer, Err(error));
        }
        match &self.kind {
            Kind::Get { .. } => Outcome::Get(Err(error)),
            Kind::Ping { .. } => Outcome::Ping(Err(error)),
            Kind::Ttl { .. } => Outcome::Ttl(Err(error)),
            Kind::Walk { .. } => Outcome::Walk(Err(error)),
            Kind::Write { write, state, .. } => {
                let is_known = *state == SendState::Queued || matches!(error, Error::Refused(_));
                let error = if is_known { error } else { Error::OutcomeUnknown { cause: error.to_string() } };
                write.failure(error)
            }
        }
    }
}
