//! Memory that someone else reads or writes at the same time, as aligned 64-bit words.
//!
//! No slice over such memory ever exists: a slice promises that nobody writes (or even reads) behind its back. What is
//! needed as bytes is copied, word by word, into private memory first. All `unsafe` on shared bytes is in this file.
//!
//! Two views share one set of proofs: [`ReadWords`] can only load, which is all that a read-only mapping allows (std
//! guarantees relaxed loads there and nothing else); [`Words`] can also store.
#![allow(unsafe_code)]

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::sync::{AtomicU64, Ordering, fence};

/// Bytes in a word, the unit in which a remote READ is whole.
pub const WORD_BYTES: usize = 8;

/// A view of shared words that can only load. Cloning is cheap; the memory lives as long as any view of it.
#[derive(Clone)]
pub struct ReadWords {
    base: NonNull<AtomicU64>,
    len_words: usize,
    /// Keeps the mapping (or the heap allocation) alive.
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the pointer is only ever used as `&AtomicU64`, which is `Sync`, and what it points into is kept alive by
// `owner`, which is `Send + Sync` itself.
unsafe impl Send for ReadWords {}
// SAFETY: as for `Send`: every access through `&ReadWords` is an atomic one.
unsafe impl Sync for ReadWords {}

/// A view of shared words that can load and store.
#[derive(Clone)]
pub struct Words(ReadWords);

impl ReadWords {
    /// A view of `len_bytes` bytes that start at `base`.
    ///
    /// # Safety
    /// `base` must be aligned to 8 and valid for reads of `len_bytes` bytes for as long as `owner` lives, and every
    /// access to that memory by this process, through whatever mapping, must be an atomic one of 8 aligned bytes. The one
    /// exception are futex words of 4 bytes: this process stores to one before it lets anybody load it, and concurrent
    /// loads of different sizes are no race. What [`Words::as_slice`] allows is the other: whoever calls it answers for that.
    #[cfg(not(loom))]
    pub unsafe fn from_raw(base: *mut u8, len_bytes: usize, owner: Arc<dyn Any + Send + Sync>) -> ReadWords {
        assert!((base as usize).is_multiple_of(WORD_BYTES), "shared memory must be aligned to words");
        assert!(len_bytes.is_multiple_of(WORD_BYTES), "shared memory must be whole words");
        let base = NonNull::new(base.cast::<AtomicU64>()).expect("a mapping is never at address zero");
        ReadWords { base, len_words: len_bytes / WORD_BYTES, owner }
    }

    /// Words in the view.
    #[inline]
    pub fn len_words(&self) -> usize {
        self.len_words
    }

    /// True if the view has no words.
    pub fn is_empty(&self) -> bool {
        self.len_words == 0
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.len_words, "word {at} is outside the view of {} words", self.len_words);
        // SAFETY: `at` is inside the view, which its constructor made valid and aligned for as long as `owner` lives.
        unsafe { self.base.add(at).as_ref() }
    }

    /// Loads word `at`, relaxed.
    #[inline]
    pub fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }

    /// Loads word `at`; what its writer stored before a release store of this word is visible afterwards.
    ///
    /// A relaxed load and a fence, because a read-only mapping allows no other.
    #[inline]
    pub fn load_acquire(&self, at: usize) -> u64 {
        let value = self.load(at);
        fence(Ordering::Acquire);
        value
    }

    /// Copies words `at ..` into `out` with relaxed loads, then fences: what is loaded after this call is not older
    /// than what was copied. Different words may come from different moments.
    #[inline]
    pub fn copy_out(&self, at: usize, out: &mut [u64]) {
        let end = at.checked_add(out.len()).expect("offsets are below 2^63");
        assert!(end <= self.len_words, "words {at}..{end} are outside the view of {} words", self.len_words);
        // SAFETY: `at <= end <= len_words`, so the pointer is inside the allocation or one past its end.
        let from = unsafe { self.base.add(at) };
        for i in copy_wide(from, out)..out.len() {
            // SAFETY: `i < out.len()`, so `from + i` is inside the view (see `word`).
            out[i] = unsafe { from.add(i).as_ref() }.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
    }

    /// Hints the processor to fetch the cache lines of words `at .. at + len`; out of range is ignored.
    #[inline]
    pub fn prefetch(&self, at: usize, len_words: usize) {
        if at.checked_add(len_words).is_none_or(|end| end > self.len_words) {
            return;
        }
        for line in (at..at + len_words.max(1)).step_by(8) {
            // SAFETY: `line` is inside the view, so the pointer arithmetic stays in one allocation.
            prefetch_line(unsafe { self.base.add(line) }.as_ptr());
        }
        prefetch_line(self.word((at + len_words).saturating_sub(1).min(self.len_words - 1)));
    }

    /// The view of words `at .. at + len_words` of this one.
    pub fn sub(&self, at: usize, len_words: usize) -> ReadWords {
        let end = at.checked_add(len_words).expect("offsets are below 2^63");
        assert!(end <= self.len_words, "words {at}..{end} are outside the view of {} words", self.len_words);
        // SAFETY: `at <= len_words`, so the pointer is inside the allocation or one past its end.
        let base = unsafe { self.base.add(at) };
        ReadWords { base, len_words, owner: Arc::clone(&self.owner) }
    }

    /// Loads the 32-bit futex word at byte `at_byte`, relaxed. Only for words that are 32 bits wide for everybody.
    #[cfg(not(loom))]
    #[inline]
    pub fn load_futex(&self, at_byte: usize) -> u32 {
        self.futex(at_byte).load(Ordering::Relaxed)
    }

    #[cfg(not(loom))]
    #[inline]
    fn futex(&self, at_byte: usize) -> &crate::sync::AtomicU32 {
        assert!(
            at_byte.is_multiple_of(4) && at_byte / WORD_BYTES < self.len_words,
            "futex word out of the view"
        );
        // SAFETY: in bounds and aligned to 4 as just asserted; the constructor's contract says that futex words are
        // accessed as 32 bits and in no other way.
        unsafe { self.base.cast::<crate::sync::AtomicU32>().add(at_byte / 4).as_ref() }
    }
}

impl Words {
    /// A view of `len_bytes` bytes that start at `base` and may be stored to.
    ///
    /// # Safety
    /// As [`ReadWords::from_raw`], and `base` must be valid for writes too.
    #[cfg(not(loom))]
    pub unsafe fn from_raw(base: *mut u8, len_bytes: usize, owner: Arc<dyn Any + Send + Sync>) -> Words {
        // SAFETY: the caller's promise includes the one that is asked for here.
        Words(unsafe { ReadWords::from_raw(base, len_bytes, owner) })
    }

    /// Zeroed words on the heap, for tests, the simulated fabric and loom.
    pub fn zeroed(len_words: usize) -> Words {
        let heap: Arc<Box<[AtomicU64]>> = Arc::new((0..len_words).map(|_| AtomicU64::new(0)).collect());
        let base = NonNull::from(&heap[..]).cast::<AtomicU64>();
        Words(ReadWords { base, len_words, owner: heap })
    }

    /// Zeroed words in memory of this process alone, which has no pages before they are touched.
    ///
    /// # Errors
    /// What the system said.
    #[cfg(not(loom))]
    pub fn private(len_words: usize) -> std::io::Result<Words> {
        let mapping = memmap2::MmapMut::map_anon((len_words * WORD_BYTES).max(1))?;
        let mapping = memmap2::MmapRaw::from(mapping);
        let base = mapping.as_mut_ptr();
        // SAFETY: the mapping is page-aligned, readable and writable, has that many bytes or more, and lives as long as
        // its owner; nobody else has its address, so every access goes through this view.
        Ok(unsafe { Words::from_raw(base, len_words * WORD_BYTES, Arc::new(mapping)) })
    }

    /// The words as memory that is nobody's but the caller's.
    ///
    /// # Safety
    /// Nothing else accesses them as long as the slice lives: no device, no other process, and no other view but for loads.
    #[inline]
    pub unsafe fn as_slice(&self) -> &[u64] {
        // SAFETY: the constructor made the words valid and aligned for as long as `owner` lives, which `self` keeps; the
        // caller says that nobody stores to them meanwhile.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast_const().cast(), self.len_words) }
    }

    /// As [`Words::as_slice`], to be changed.
    ///
    /// # Safety
    /// As for [`Words::as_slice`], and no other view loads them either.
    #[inline]
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u64] {
        // SAFETY: as in `as_slice`; the caller says that this is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().cast(), self.len_words) }
    }

    /// The same words, without the right to store.
    pub fn read_only(&self) -> &ReadWords {
        &self.0
    }

    /// The view of words `at .. at + len_words` of this one.
    pub fn sub(&self, at: usize, len_words: usize) -> Words {
        Words(self.0.sub(at, len_words))
    }

    /// Stores word `at`, relaxed.
    #[inline]
    pub fn store(&self, at: usize, value: u64) {
        self.before_store(at);
        self.word(at).store(value, Ordering::Relaxed);
    }

    /// Stores word `at` after everything that this thread stored before.
    #[inline]
    pub fn store_release(&self, at: usize, value: u64) {
        self.before_store(at);
        self.word(at).store(value, Ordering::Release);
    }

    /// Copies `words` to `at ..` with relaxed stores.
    #[inline]
    pub fn copy_in(&self, at: usize, words: &[u64]) {
        let end = at.checked_add(words.len()).expect("offsets are below 2^63");
        assert!(end <= self.len_words, "words {at}..{end} are outside the view of {} words", self.len_words);
        for (i, &word) in words.iter().enumerate() {
            self.before_store(at + i);
            // SAFETY: `at + i < end <= len_words`, so this is inside the view (see `ReadWords::word`).
            unsafe { self.base.add(at + i).as_ref() }.store(word, Ordering::Relaxed);
        }
    }

    /// Adds to word `at` (relaxed); for counters with a single writer or many.
    #[inline]
    pub fn add(&self, at: usize, by: u64) {
        self.word(at).fetch_add(by, Ordering::Relaxed);
    }

    /// Stores the 32-bit futex word at byte `at_byte`. Only for words that are 32 bits wide for everybody.
    #[cfg(not(loom))]
    pub fn store_futex(&self, at_byte: usize, value: u32) {
        self.futex(at_byte).store(value, Ordering::Release);
    }

    /// The address of byte `at_byte`, for the kernel's eyes (robust futex lists, registration), never for access.
    #[cfg(not(loom))]
    pub fn address_of(&self, at_byte: usize) -> usize {
        assert!(at_byte / WORD_BYTES < self.len_words, "address out of the view");
        self.base.as_ptr() as usize + at_byte
    }

    #[inline]
    fn before_store(&self, _at: usize) {
        #[cfg(all(feature = "adversary", not(loom)))]
        crate::adversary::before_store(self.base.as_ptr() as usize + _at * WORD_BYTES);
    }
}

impl std::ops::Deref for Words {
    type Target = ReadWords;
    fn deref(&self) -> &ReadWords {
        &self.0
    }
}

/// Copies the start of `from` into `out` and returns the words copied: nearly all of them.
///
/// The compiler never joins atomic loads, so a loop over words takes a load and a store for each. The instructions
/// here load 16 aligned bytes at once, which processors with AVX do as a whole (Intel SDM 3A, 10.1.1; AMD APM 2,
/// 7.3.2): every word is as whole as in the loop. They are written in assembly because a racing load that is no atomic
/// one has no meaning in Rust; what assembly loads is the processor's business.
#[cfg(all(target_arch = "x86_64", target_feature = "avx", not(loom), not(miri)))]
#[inline]
fn copy_wide(from: NonNull<AtomicU64>, out: &mut [u64]) -> usize {
    if !from.as_ptr().addr().is_multiple_of(16) {
        return 0;
    }
    let (lines, rest) = out.as_chunks_mut::<8>();
    let mut from = from.as_ptr();
    for line in &mut *lines {
        // SAFETY: the caller's view covers as many words from `from` as `out` has, so the 64 bytes of this line can be
        // read, and `line` is 64 bytes of memory that is ours. `from` is aligned to 16, as `vmovdqa` asks; the other
        // instructions ask for no alignment, and the second half of an aligned piece is aligned all the same.
        unsafe {
            std::arch::asm!(
                "vmovdqa {a:x}, [{from}]",
                "vmovdqa {b:x}, [{from} + 32]",
                "vinsertf128 {a:y}, {a:y}, [{from} + 16], 1",
                "vinsertf128 {b:y}, {b:y}, [{from} + 48], 1",
                "vmovdqu [{to}], {a:y}",
                "vmovdqu [{to} + 32], {b:y}",
                from = in(reg) from,
                to = in(reg) line.as_mut_ptr(),
                a = out(ymm_reg) _,
                b = out(ymm_reg) _,
                options(nostack, preserves_flags),
            );
            from = from.add(8);
        }
    }
    let (pairs, _) = rest.as_chunks_mut::<2>();
    for pair in &mut *pairs {
        // SAFETY: as above, of 16 bytes.
        unsafe {
            std::arch::asm!(
                "vmovdqa {a}, [{from}]",
                "vmovdqu [{to}], {a}",
                from = in(reg) from,
                to = in(reg) pair.as_mut_ptr(),
                a = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
            from = from.add(2);
        }
    }
    lines.len() * 8 + pairs.len() * 2
}

/// Elsewhere every word is loaded on its own.
#[cfg(not(all(target_arch = "x86_64", target_feature = "avx", not(loom), not(miri))))]
fn copy_wide(_from: NonNull<AtomicU64>, _out: &mut [u64]) -> usize {
    0
}

/// Hints the processor to fetch the cache line at `address`.
#[inline]
pub fn prefetch_line<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it faults at no address.
    unsafe {
        std::arch::x86_64::_mm_prefetch(address.cast(), std::arch::x86_64::_MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Appends the first `len` bytes of `words` (little-endian) to `out`.
pub fn append_bytes(words: &[u64], len: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&bytes_of(words)[..len]);
}

/// Private words as the bytes that they hold in the little-endian formats of this project.
#[inline]
pub fn bytes_of(words: &[u64]) -> &[u8] {
    const {
        assert!(
            cfg!(target_endian = "little"),
            "the region's formats are read in place on little-endian hosts"
        )
    };
    zerocopy::IntoBytes::as_bytes(words)
}

/// Private words as mutable bytes.
#[inline]
pub fn bytes_of_mut(words: &mut [u64]) -> &mut [u8] {
    zerocopy::IntoBytes::as_mut_bytes(words)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn copies_are_what_was_stored() {
        let words = Words::zeroed(16);
        words.copy_in(3, &[1, 2, 3]);
        words.store_release(6, 4);
        let mut out = [0; 5];
        words.sub(2, 8).copy_out(0, &mut out);
        assert_eq!(out, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn private_words_are_zero_and_take_stores() {
        let words = Words::private(1 << 17).unwrap();
        assert_eq!((words.len_words(), words.load(0), words.load((1 << 17) - 1)), (1 << 17, 0, 0));
        words.store((1 << 17) - 1, 9);
        assert_eq!(words.load((1 << 17) - 1), 9);
        assert!(Words::private(0).unwrap().is_empty());
    }

    #[test]
    fn copies_of_every_length_from_every_word_are_right_and_end_where_they_should() {
        let words = Words::zeroed(64);
        let stored: Vec<u64> = (1..=64).map(|i| i * 0x0101_0101).collect();
        words.copy_in(0, &stored);
        for at in 0..20 {
            for len in 0..40 {
                let mut out = [7; 41];
                words.copy_out(at, &mut out[..len]);
                assert_eq!((&out[..len], out[len]), (&stored[at..at + len], 7), "{len} words from word {at}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "outside the view")]
    fn a_copy_beyond_the_end_panics() {
        Words::zeroed(16).copy_out(15, &mut [0; 2]);
    }

    #[test]
    #[should_panic(expected = "outside the view")]
    fn a_sub_view_cannot_reach_beyond_itself() {
        Words::zeroed(16).sub(4, 4).load(4);
    }

    #[test]
    fn bytes_are_little_endian() {
        assert_eq!(bytes_of(&[0x0807_0605_0403_0201]), &[1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
