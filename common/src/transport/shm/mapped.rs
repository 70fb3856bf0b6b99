//! Mappings and their words: the one place where shared memory of this transport gets its views.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::region::{ReadWords, WORD_BYTES, Words};

/// A file mapped read-write. Nobody else has its pointer.
pub(super) struct Writable(MmapRaw);

/// A file mapped read-only. Nobody else has its pointer.
pub(super) struct ReadOnly(MmapRaw);

impl Writable {
    /// Maps the first `len_bytes`, a multiple of 8, of a file that has at least as many.
    pub(super) fn map(fd: BorrowedFd<'_>, len_bytes: u64) -> io::Result<Writable> {
        MmapOptions::new().len(length(len_bytes)?).map_raw(&fd).map(Writable)
    }

    /// For advice to the kernel; the pointer is not to be used.
    pub(super) fn raw(&self) -> &MmapRaw {
        &self.0
    }

    /// All its words. The mapping lives as long as any view of them.
    pub(super) fn words(self) -> Words {
        let mapping = Arc::new(self.0);
        let (base, len_bytes) = (mapping.as_mut_ptr(), mapping.len());
        // SAFETY: a mapping starts at a page, so it is aligned to 8. `map` made it read-write and `len_bytes` long, a
        // multiple of 8. It is unmapped only when its owner, the Arc, is dropped. The pointer went nowhere else and
        // `MmapRaw` makes no references, so every access goes through words, also if the file is mapped twice.
        unsafe { Words::from_raw(base, len_bytes, mapping) }
    }
}

impl ReadOnly {
    /// Maps the first `len_bytes`, a multiple of 8, of a file that has at least as many.
    pub(super) fn map(fd: BorrowedFd<'_>, len_bytes: u64) -> io::Result<ReadOnly> {
        MmapOptions::new().len(length(len_bytes)?).map_raw_read_only(&fd).map(ReadOnly)
    }

    /// Advice is only that: what the kernel refuses is not done.
    pub(super) fn advise(&self, advice: Advice) {
        let _ = self.0.advise(advice);
    }

    /// All its words. The mapping lives as long as any view of them.
    pub(super) fn words(self) -> ReadWords {
        let mapping = Arc::new(self.0);
        let (base, len_bytes) = (mapping.as_mut_ptr(), mapping.len());
        // SAFETY: as in `Writable::words`, but for loads only, which is all that `ReadWords` does.
        unsafe { ReadWords::from_raw(base, len_bytes, mapping) }
    }
}

fn length(len_bytes: u64) -> io::Result<usize> {
    usize::try_from(len_bytes).ok().filter(|len| len.is_multiple_of(WORD_BYTES)).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "not a length of whole words in this address space")
    })
}
