//! The seam to what is measured: one handle per thread, statically dispatched, so that the harness adds no call
//! through a table to an operation of 150 ns.
//!
//! | file | holds |
//! |---|---|
//! | `kv` | the store, through its client library |
//! | `null` | a store that does nothing: the harness's own cost |
//! | `dashmap` | a concurrent map in this process: the peer |
//! | `floor` | the least that any hash table does for a GET |
//! | `fake` | stores with a known behaviour, for tests |
//! | `deferred` | submit and poll for stores that answer at once |

pub mod dashmap;
pub mod deferred;
pub mod fake;
pub mod floor;
pub mod kv;
pub mod null;
pub mod pages;

use serde::Serialize;
use thiserror::Error;

/// Why an operation failed. A key that is not there is no error.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum StoreError {
    /// There is no server, or the connection is gone: no operation can succeed.
    #[error("no connection: {0}")]
    NoConnection(String),
    /// The server answered and said no; the message names its reason.
    #[error("refused: {0}")]
    Refused(String),
    /// A write that may have happened, or may happen later.
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// No answer by the deadline; nothing was written.
    #[error("{0}")]
    NoAnswer(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

impl StoreError {
    /// Whether a timeout passed without a word from the server.
    pub const fn is_unanswered(&self) -> bool {
        matches!(self, Self::NoAnswer(_) | Self::Unknown(_))
    }

    /// What a run reports that ends with this error because of `why`.
    pub(crate) fn given_up(&self, why: &str) -> Self {
        let with_reason = |text: &str| format!("{text}; gave up after {why}");
        match self {
            Self::NoConnection(text) => Self::NoConnection(with_reason(text)),
            Self::Refused(text) => Self::Refused(with_reason(text)),
            Self::NoAnswer(text) | Self::Unknown(text) => Self::NoAnswer(with_reason(text)),
            Self::Failed(text) => Self::Failed(with_reason(text)),
        }
    }
}

/// One operation to be submitted.
#[derive(Debug, Clone, Copy)]
pub enum Request<'a> {
    /// Get the value of a key.
    Read(&'a [u8]),
    /// Write a value under a key, there or not.
    Write(&'a [u8], &'a [u8]),
}

/// How a submitted operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The value is in the buffer that the caller gave.
    Found,
    /// The key is not there.
    NotFound,
    /// The write is acknowledged.
    Written,
}

/// A submitted operation that has ended.
#[derive(Debug)]
pub struct Completion<T> {
    /// What was submitted.
    pub ticket: T,
    /// How it ended.
    pub outcome: Result<Outcome, StoreError>,
}

/// Reads that had to be repeated, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Retries {
    /// The bytes were of different moments.
    pub torn: u64,
    /// The place came from an index line that had changed meanwhile.
    pub stale: u64,
    /// The block was not live: being written, or replaced.
    pub dead: u64,
    /// The server was asked because reading did not settle it.
    pub asked_server: u64,
}

/// What a store has counted since the handle was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// READs of the region.
    pub reads: u64,
    /// Bytes that they fetched.
    pub read_bytes: u64,
    /// Lookups in the index cache.
    pub cache_lookups: u64,
    /// Lookups that gave a place which turned out right.
    pub cache_hits: u64,
    /// Repeated reads by cause.
    pub retries: Retries,
}

impl Counters {
    /// Applies `f` to each pair of numbers.
    fn zip(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            reads: f(self.reads, other.reads),
            read_bytes: f(self.read_bytes, other.read_bytes),
            cache_lookups: f(self.cache_lookups, other.cache_lookups),
            cache_hits: f(self.cache_hits, other.cache_hits),
            retries: Retries {
                torn: f(self.retries.torn, other.retries.torn),
                stale: f(self.retries.stale, other.retries.stale),
                dead: f(self.retries.dead, other.retries.dead),
                asked_server: f(self.retries.asked_server, other.retries.asked_server),
            },
        }
    }

    /// What was counted between `earlier` and now.
    pub fn since(self, earlier: Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
    }

    /// Counters of two handles together.
    pub fn plus(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
}

/// A handle of one thread.
pub trait Store: Send {
    /// Names a submitted operation until its completion.
    type Ticket: Copy + Eq + std::fmt::Debug;

    /// Gets the value of `key` into `value`, whose old contents are lost. `false`: the key is not there.
    ///
    /// # Errors
    /// Any [`StoreError`]; `value` is then unspecified.
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError>;

    /// Writes `value` under `key`, which may be new.
    ///
    /// # Errors
    /// Any [`StoreError`]; only after [`StoreError::Unknown`] may something have been written.
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError>;

    /// Gets the values of all `keys`, overlapping the reads. `each` is called once per key with its position.
    ///
    /// # Errors
    /// If the batch as a whole failed; `each` may have been called for some of the keys.
    fn multi_read(
        &mut self,
        keys: &[&[u8]],
        each: impl FnMut(usize, Result<Option<&[u8]>, StoreError>),
    ) -> Result<(), StoreError>;

    /// Starts an operation.
    ///
    /// # Errors
    /// Any [`StoreError`]; then there will be no completion.
    fn submit(&mut self, request: Request<'_>) -> Result<Self::Ticket, StoreError>;

    /// The next operation that has ended, in any order; a value found is put into `value`. With `wait`, blocks until
    /// there is one, or gives nothing if no operation is in flight.
    ///
    /// # Errors
    /// If no operation in flight can end any more.
    fn complete(
        &mut self,
        wait: bool,
        value: &mut Vec<u8>,
    ) -> Result<Option<Completion<Self::Ticket>>, StoreError>;

    /// Fills what the store caches of its index, if anything.
    ///
    /// # Errors
    /// Any [`StoreError`].
    fn warm_up(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// One bare READ of `bytes` bytes, of the kind that a GET makes, with nothing of the store around it. `false`: there is
    /// no such thing, or not now.
    ///
    /// # Errors
    /// [`StoreError::NoConnection`].
    fn raw_read(&mut self, _bytes: u64) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// What has been counted since the handle was opened; nothing if the store does not count.
    fn counters(&self) -> Option<Counters> {
        None
    }
}

/// Opens handles.
pub trait Factory: Sync {
    /// The handle of one thread.
    type Handle: Store;

    /// A handle for one more thread.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses.
    fn open(&self) -> Result<Self::Handle, StoreError>;

    /// How the store is reached: `shm`, `tcp`, `verbs`, or the name of a store in this process.
    fn transport(&self) -> String;

    /// Whether its handles have bare READs: [`Store::raw_read`].
    fn has_raw_reads(&self) -> bool {
        false
    }

    /// Whether the store lives in this process and is empty when it is made.
    fn is_in_process(&self) -> bool {
        false
    }

    /// The process that serves, if it runs on this host and is known.
    fn server_pid(&self) -> Option<u32> {
        None
    }

    /// What else a reader of the result should know: kind of pages, bytes of the index cache, and so on.
    fn facts(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}
