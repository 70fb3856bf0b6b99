//! GETs into memory that the user registered: the value stays where its READ ended.

use std::ops::Range;

use kv_common::layout::{BLOCK_HEADER_BYTES, Span, is_large};
use kv_common::region::{WORD_BYTES, bytes_of, bytes_of_mut};
use kv_common::transport::UserMemory;

use crate::driver::{GetNow, InRoom};
use crate::op::{Outcome, Ticket, Version};
use crate::{Client, Error, KEY_MAX_BYTES};

/// Memory for one value, made by [`Client::register`], in which the READs of [`Client::get_into`] end.
///
/// What lands in it is a block: 24 bytes of header, the key, the value, rounded up to a size class, which is at most an
/// eighth more. Only the value is handed out, after the block was judged there. Values whose block is larger than 320 KiB are
/// read page by page elsewhere, and copied here.
///
/// Nobody can look at it while a READ may be writing to it: it is borrowed exclusively for a call that waits, and moved into
/// an operation that is submitted.
#[derive(Debug)]
pub struct Registered {
    /// None while an operation has it, and after one that has lost it.
    memory: Option<Box<UserMemory>>,
    room_bytes: usize,
    found: Option<Found>,
}

#[derive(Debug)]
struct Found {
    value: Range<usize>,
    version: Version,
}

/// A value where it was read to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueRef<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// Their version.
    pub version: Version,
}

/// Why [`Client::submit_get_into`] did not take a GET, and its buffer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct NotSubmitted {
    /// Why.
    #[source]
    pub error: Error,
    /// As it was given, without a value.
    pub buffer: Registered,
}

/// Two are equal if they hold the same value, or none.
impl PartialEq for Registered {
    fn eq(&self, other: &Registered) -> bool {
        self.value() == other.value()
    }
}

impl Eq for Registered {}

impl Registered {
    /// With room for the blocks of values of `value_bytes`, whatever their keys.
    fn new(value_bytes: usize) -> Result<Registered, Error> {
        let block_bytes = BLOCK_HEADER_BYTES + KEY_MAX_BYTES + value_bytes;
        // The block of a larger value is read page by page, and the value put together here.
        let is_large = is_large(block_bytes);
        let room_bytes = if is_large { block_bytes } else { Span::of_bytes(block_bytes).bytes() as usize };
        let mut new = Registered { memory: None, room_bytes, found: None };
        // Whole pages.
        new.room_bytes = new.memory()?.words().len() * WORD_BYTES;
        Ok(new)
    }

    /// Bytes of the memory. A block that is larger is read elsewhere, and its value copied here if that fits.
    pub fn room_bytes(&self) -> usize {
        self.room_bytes
    }

    /// The value that the last GET into this memory has found.
    #[inline]
    pub fn value(&self) -> Option<ValueRef<'_>> {
        let (found, memory) = (self.found.as_ref()?, self.memory.as_ref()?);
        Some(ValueRef { bytes: &bytes_of(memory.words())[found.value.clone()], version: found.version })
    }

    /// Takes it out; what stays has no memory.
    fn take(&mut self) -> Registered {
        let empty = Registered { memory: None, room_bytes: self.room_bytes, found: None };
        std::mem::replace(self, empty)
    }

    /// The memory; new memory if it was lost.
    pub(crate) fn memory(&mut self) -> Result<&mut UserMemory, Error> {
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => UserMemory::new(self.room_bytes).map(Box::new).map_err(|error| Error::NotRegistered {
                bytes: self.room_bytes,
                reason: format!("no memory: {error}"),
            })?,
        };
        Ok(self.memory.insert(memory))
    }

    /// Lends the memory, for a READ of so many words, if it has that many.
    pub(crate) fn lend(&mut self, len_words: usize) -> Option<Box<UserMemory>> {
        self.memory.take_if(|memory| len_words <= memory.words().len())
    }

    /// Takes back what was lent.
    pub(crate) fn put_back(&mut self, memory: Box<UserMemory>) {
        self.memory = Some(memory);
    }

    /// True if the memory is elsewhere.
    pub(crate) fn is_lent(&self) -> bool {
        self.memory.is_none()
    }

    /// The first words of the memory.
    pub(crate) fn words(&self, len_words: usize) -> &[u64] {
        self.memory.as_ref().map_or(&[], |memory| &memory.words()[..len_words])
    }

    /// The value is at `value` of what was read into the memory.
    #[inline]
    pub(crate) fn found(&mut self, value: Range<usize>, version: Version) {
        self.found = Some(Found { value, version });
    }

    /// Takes a value that was read elsewhere.
    pub(crate) fn copy_in(&mut self, bytes: &[u8], version: Version) -> Result<(), Error> {
        if bytes.len() > self.room_bytes {
            return Err(Error::BufferTooSmall { value_bytes: bytes.len(), room_bytes: self.room_bytes });
        }
        bytes_of_mut(self.memory()?.words_mut())[..bytes.len()].copy_from_slice(bytes);
        self.found(0..bytes.len(), version);
        Ok(())
    }
}

impl Client {
    /// Memory into which values of up to `value_bytes` bytes can be read without a copy, whatever their keys: their blocks
    /// fit. It has room for the header and the longest key beyond that, and is whole pages.
    ///
    /// Over RDMA it is registered with the device: that takes some microseconds and counts against what the process may
    /// lock, so it is made once and used often. After a lost connection it is registered anew by the first GET into it. With
    /// other transports there is nothing to register, and everything else is the same.
    ///
    /// # Errors
    /// [`Error::ValueTooLarge`] if no value has so many bytes, [`Error::NotRegistered`] with the limits and the remedy if the
    /// memory cannot be had or registered, [`Error::Broken`], [`Error::UsedAfterFork`].
    pub fn register(&mut self, value_bytes: usize) -> Result<Registered, Error> {
        self.check_fork()?;
        self.live()?.check_value_bytes(value_bytes)?;
        let mut buffer = Registered::new(value_bytes)?;
        self.live()?.register(&mut buffer)?;
        Ok(buffer)
    }

    /// As [`Client::get`], into `buffer`: over RDMA the device writes the block there, unless it is larger than 320 KiB, and the value is judged and handed out
    /// where it lies; over shared memory one copy brings it there. A block larger than the buffer is read elsewhere, and
    /// its value copied. [`Stats::values_in_place`](crate::Stats::values_in_place) counts those that were not.
    ///
    /// Over RDMA, a call whose deadline passes while its READ is under way gives the connection up, because only then the
    /// device no longer writes to `buffer`: operations in flight fail, and the next call connects again. It may take half a
    /// second longer.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), kv_client::Error> {
    /// let mut client = kv_client::Client::connect("kv://server:7410")?;
    /// let mut buffer = client.register(64 << 10)?;
    /// for key in [&b"one"[..], b"two"] {
    ///     if let Some(value) = client.get_into(key, &mut buffer)? {
    ///         println!("version {}: {} bytes", value.version, value.bytes.len());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    /// A value is no longer there when the next READ may end in its memory:
    /// ```compile_fail,E0499
    /// # fn main() -> Result<(), kv_client::Error> {
    /// let mut client = kv_client::Client::connect("kv://server:7410")?;
    /// let mut buffer = client.register(64 << 10)?;
    /// let one = client.get_into(b"one", &mut buffer)?;
    /// let two = client.get_into(b"two", &mut buffer)?;
    /// assert_ne!(one, two);
    /// # Ok(())
    /// # }
    /// ```
    /// Nor when the memory is:
    /// ```compile_fail,E0505
    /// # fn main() -> Result<(), kv_client::Error> {
    /// let mut client = kv_client::Client::connect("kv://server:7410")?;
    /// let mut buffer = client.register(64 << 10)?;
    /// let value = client.get_into(b"one", &mut buffer)?;
    /// drop(buffer);
    /// println!("{value:?}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`], [`Error::BufferTooSmall`] if the value does not fit, [`Error::NotRegistered`] if the memory could
    /// not be registered with a new connection. `buffer` holds no value then, and can be used again.
    #[inline]
    pub fn get_into<'b>(
        &mut self,
        key: &[u8],
        buffer: &'b mut Registered,
    ) -> Result<Option<ValueRef<'b>>, Error> {
        buffer.found = None;
        self.check_key(key)?;
        let Some(memory) = buffer.memory.as_mut().filter(|_| self.driver.gets_are_loads()) else {
            return self.get_into_submitted(key, buffer, false);
        };
        let mut landing = InRoom::new(memory.words_mut());
        let found = self.driver.get_now(key, &mut landing)?;
        let is_in_place = landing.is_used();
        match found {
            GetNow::Found { version, value } if is_in_place => {
                self.driver.stats.values_in_place += 1;
                buffer.found(value, version);
                Ok(buffer.value())
            }
            GetNow::Found { version, value } => {
                buffer.copy_in(self.driver.found_bytes(value), version)?;
                Ok(buffer.value())
            }
            GetNow::FoundLarge { version } => {
                buffer.copy_in(&self.driver.take_large(), version)?;
                Ok(buffer.value())
            }
            GetNow::Absent => Ok(None),
            GetNow::Ask => self.get_into_submitted(key, buffer, true),
            GetNow::Submit => self.get_into_submitted(key, buffer, false),
        }
    }

    fn get_into_submitted<'b>(
        &mut self,
        key: &[u8],
        buffer: &'b mut Registered,
        is_asked: bool,
    ) -> Result<Option<ValueRef<'b>>, Error> {
        let driver = self.live()?;
        driver.admit()?;
        driver.register(buffer)?;
        // The operation owns it, so that whatever becomes of this call the user cannot look at it too early.
        let lent = buffer.take();
        let ticket =
            if is_asked { driver.ask_into(key, Some(lent)) } else { driver.start_get_into(key, lent) };
        let Outcome::GetInto(back, result) = driver.wait_for(ticket) else {
            unreachable!("a GET into memory ends as one")
        };
        *buffer = back;
        Ok(result?.and_then(|_| buffer.value()))
    }

    /// Starts a GET into `buffer` and returns at once; as [`Client::submit_get`]. The buffer comes back with the completion,
    /// an [`Outcome::GetInto`], and holds the value then. Dropping the client before gives up its operations; then the memory
    /// is given back to the system when the device no longer writes there.
    ///
    /// A buffer that is under way cannot be looked at:
    /// ```compile_fail,E0382
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut client = kv_client::Client::connect("kv://server:7410")?;
    /// let buffer = client.register(64 << 10)?;
    /// client.submit_get_into(b"one", buffer)?;
    /// println!("{:?}", buffer.value());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`NotSubmitted`], with the buffer and what [`Client::submit_get`] fails with, or [`Error::NotRegistered`].
    pub fn submit_get_into(&mut self, key: &[u8], mut buffer: Registered) -> Result<Ticket, NotSubmitted> {
        buffer.found = None;
        let admitted = self.check_key(key).and_then(|()| {
            let driver = self.live()?;
            driver.admit()?;
            driver.register(&mut buffer)
        });
        match admitted {
            Ok(()) => Ok(self.driver.start_get_into(key, buffer)),
            Err(error) => Err(NotSubmitted { error, buffer }),
        }
    }
}
