//! Memory of the user in which READs end.
//!
//! Who may touch it changes with the type. [`UserMemory`] is at rest: it is this process's own, and slices of it can be had.
//! To a transport it goes by value. One whose device writes there turns it into [`Lent`], of which no slice can be had, and
//! turns that back only when the device no longer writes: the READ has completed, or the device has forgotten the memory.
#![allow(unsafe_code, reason = "slices of memory that a device writes to at other times")]

use std::io;
use std::ops::{Deref, DerefMut};

use crate::region::{WORD_BYTES, Words};
#[cfg(feature = "verbs")]
use crate::verbs::{
    LocalRange, MemoryRegion, OutOfRange, ProtectionDomain, ReadSink, RegisterError, VerbError,
};
#[cfg(feature = "verbs")]
use std::sync::Arc;

/// Whole pages: a device registers no less, and nothing else is on them.
const PAGE_BYTES: usize = 4096;

/// Memory of whole pages, at rest.
///
/// Its words are in no other view but the registration's, which is in here and is only asked for ranges.
pub struct UserMemory {
    words: Words,
    /// With one device, for one connection; none if READs are not made by a device, or not yet.
    #[cfg(feature = "verbs")]
    registration: Option<MemoryRegion<ReadSink>>,
    #[cfg(feature = "verbs")]
    process: u32,
}

impl UserMemory {
    /// Zeroed memory of `len_bytes`, rounded up to pages.
    ///
    /// # Errors
    /// What the system said.
    pub fn new(len_bytes: usize) -> io::Result<UserMemory> {
        let len_bytes = len_bytes.max(1).checked_next_multiple_of(PAGE_BYTES);
        let len_bytes = len_bytes.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(UserMemory {
            words: Words::private(len_bytes / WORD_BYTES)?,
            #[cfg(feature = "verbs")]
            registration: None,
            #[cfg(feature = "verbs")]
            process: std::process::id(),
        })
    }

    /// Its words.
    #[inline]
    pub fn words(&self) -> &[u64] {
        // SAFETY: the words are private to this struct, and its registration's view is never used. A device writes to them
        // only for a request with a range of that registration. Ranges come only from `Lent`, so the last one is of a READ that
        // has completed, or of an earlier registration that the device has forgotten (`Lent::take_back`, `Lent::revoke`).
        unsafe { self.words.as_slice() }
    }

    /// Its words, to be written to.
    #[inline]
    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `words`; and `self` is borrowed exclusively, so there is no other slice.
        unsafe { self.words.as_mut_slice() }
    }

    /// Registers it for READs of the connections of `domain`, and forgets an earlier registration elsewhere. Nothing to do
    /// if it is registered there.
    ///
    /// # Errors
    /// If the limits or the device do not allow it.
    #[cfg(feature = "verbs")]
    #[inline]
    pub fn register(&mut self, domain: &Arc<ProtectionDomain>) -> Result<(), RegisterError> {
        let is_there = self.registration.as_ref().is_some_and(|there| Arc::ptr_eq(there.domain(), domain));
        if is_there { Ok(()) } else { self.register_anew(domain) }
    }

    #[cfg(feature = "verbs")]
    #[cold]
    fn register_anew(&mut self, domain: &Arc<ProtectionDomain>) -> Result<(), RegisterError> {
        // First, so that it is not locked twice within what the process may lock.
        self.registration = None;
        self.registration = Some(MemoryRegion::register(domain, &self.words)?);
        Ok(())
    }

    /// Makes it the device's.
    #[cfg(feature = "verbs")]
    pub fn lend(self: Box<Self>) -> Lent {
        Lent(self)
    }
}

#[cfg(feature = "verbs")]
impl Drop for UserMemory {
    fn drop(&mut self) {
        // Parent and child of a fork name the same object of the device: it is the parent's to destroy.
        if self.registration.is_some() && self.process != std::process::id() {
            std::mem::forget(self.registration.take());
        }
    }
}

impl std::fmt::Debug for UserMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserMemory").field("len_words", &self.words.len_words()).finish_non_exhaustive()
    }
}

/// Memory of the user while a device may write to it: nobody looks at it. Dropping it has the device forget it first.
#[cfg(feature = "verbs")]
pub struct Lent(Box<UserMemory>);

#[cfg(feature = "verbs")]
impl Lent {
    /// Where a READ of `len_bytes` bytes ends: its first bytes. None if it is not registered.
    pub fn range(&self, len_bytes: u64) -> Option<Result<LocalRange<ReadSink>, OutOfRange>> {
        Some(self.0.registration.as_ref()?.range(0, len_bytes))
    }

    /// Takes it back after all READs into it have completed.
    ///
    /// # Safety
    /// Every request that was posted with a range of it has completed, and none will be posted any more.
    pub unsafe fn take_back(self) -> Box<UserMemory> {
        self.0
    }

    /// Takes it back whatever has become of the READs into it: the device forgets the memory first.
    ///
    /// # Errors
    /// If the device does not. The memory is then never given back to anybody.
    pub fn revoke(mut self) -> Result<Box<UserMemory>, VerbError> {
        self.0.registration.take().map_or(Ok(()), MemoryRegion::deregister)?;
        Ok(self.0)
    }
}

/// Where the words of a READ go.
#[derive(Debug)]
pub enum ReadBuffer {
    /// Memory of the library.
    Private(Vec<u64>),
    /// The first words of the user's memory.
    User {
        /// The memory.
        memory: Box<UserMemory>,
        /// Words of the READ; the memory has them.
        len_words: usize,
    },
}

impl Deref for ReadBuffer {
    type Target = [u64];
    #[inline]
    fn deref(&self) -> &[u64] {
        match self {
            ReadBuffer::Private(words) => words,
            ReadBuffer::User { memory, len_words } => &memory.words()[..*len_words],
        }
    }
}

impl DerefMut for ReadBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u64] {
        match self {
            ReadBuffer::Private(words) => words,
            ReadBuffer::User { memory, len_words } => &mut memory.words_mut()[..*len_words],
        }
    }
}

impl From<Vec<u64>> for ReadBuffer {
    fn from(words: Vec<u64>) -> ReadBuffer {
        ReadBuffer::Private(words)
    }
}

impl ReadBuffer {
    /// The user's memory, if the words go there.
    ///
    /// # Errors
    /// The private words, if they do not.
    pub fn into_user(self) -> Result<Box<UserMemory>, Vec<u64>> {
        match self {
            ReadBuffer::User { memory, .. } => Ok(memory),
            ReadBuffer::Private(words) => Err(words),
        }
    }

    /// The words, as private ones.
    pub fn into_words(self) -> Vec<u64> {
        match self {
            ReadBuffer::Private(words) => words,
            ReadBuffer::User { memory, len_words } => memory.words()[..len_words].to_vec(),
        }
    }

    /// Puts private words in the place of the user's memory, which is given back.
    pub fn take_user(&mut self) -> Option<Box<UserMemory>> {
        let ReadBuffer::User { len_words, .. } = *self else { return None };
        std::mem::replace(self, ReadBuffer::Private(vec![0; len_words])).into_user().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_pages_that_can_be_written_to() {
        let mut memory = UserMemory::new(4097).unwrap();
        assert_eq!(memory.words().len() * 8, 8192);
        assert_eq!(UserMemory::new(0).unwrap().words().len() * 8, 4096);
        assert!(memory.words().iter().all(|&word| word == 0));
        assert_eq!(memory.words().as_ptr().addr() % 4096, 0);
        memory.words_mut()[1023] = 9;
        assert_eq!(memory.words()[1022..], [0, 9]);
    }

    #[test]
    fn a_buffer_gives_the_user_s_memory_up_and_keeps_its_length() {
        let memory = Box::new(UserMemory::new(4096).unwrap());
        let mut buffer = ReadBuffer::User { memory, len_words: 16 };
        buffer[15] = 7;
        let memory = buffer.take_user().unwrap();
        assert_eq!((memory.words()[15], &*buffer), (7, &[0; 16][..]));
        assert!(buffer.take_user().is_none());
        assert_eq!(buffer.into_user().unwrap_err().len(), 16);
    }
}
