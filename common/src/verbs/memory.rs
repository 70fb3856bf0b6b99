//! Registered memory, and ranges inside it.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::{io, mem};

use memmap2::{MmapOptions, MmapRaw};
use rdma_sys::ibv_mr;

use super::access::{Access, REMOTE_WRITE, Remote};
use super::domain::ProtectionDomain;
use super::error::{VerbError, check};
use super::memory_limits::{MemoryLimits, RegisterError};
use crate::region::Words;

/// Memory that a device may access, in the ways that `A` says.
///
/// It keeps its memory alive, and gives it up only after the device has forgotten it. What is in it is loaded and stored
/// as words, because the device and peers may write to it at any time.
pub struct MemoryRegion<A: Access> {
    raw: NonNull<ibv_mr>,
    words: Words,
    address: u64,
    len_bytes: u64,
    /// False on iWARP for memory that peers may not write to.
    is_read_sink: bool,
    domain: Arc<ProtectionDomain>,
    is_registered: bool,
    _access: PhantomData<A>,
}

// SAFETY: libibverbs may be called from any thread, and `raw` is only used to read fields that never change and to
// deregister once; `Words` is `Send` and `Sync` itself.
unsafe impl<A: Access> Send for MemoryRegion<A> {}
// SAFETY: as for `Send`.
unsafe impl<A: Access> Sync for MemoryRegion<A> {}

/// A range inside a [`MemoryRegion`] of this side.
///
/// It is a number, not a borrow: if its region is gone when the device gets to it, the request completes with an error.
#[derive(Clone, Copy, Debug)]
pub struct LocalRange<A: Access> {
    pub(super) address: u64,
    pub(super) len_bytes: u32,
    pub(super) lkey: u32,
    pub(super) is_read_sink: bool,
    _access: PhantomData<A>,
}

/// What a peer has to know to access memory: this is what is exchanged. Whoever knows it and has a connection can do
/// what it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Address of its first byte, in the peer's address space.
    pub address: u64,
    /// Bytes.
    pub len_bytes: u64,
    /// Its key.
    pub rkey: u32,
}

/// A range inside a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    pub(super) address: u64,
    pub(super) len_bytes: u32,
    pub(super) rkey: u32,
}

/// A range that is not inside its memory, or longer than a request can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "bytes {at_bytes} to {at_bytes} + {len_bytes} are not inside memory of {memory_bytes} bytes, or more than 2^31"
)]
pub struct OutOfRange {
    /// Where the range begins.
    pub at_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
    /// The length of the memory.
    pub memory_bytes: u64,
}

/// Bytes of the longest message of verbs.
const MESSAGE_MAX_BYTES: u64 = 1 << 31;

impl<A: Access> MemoryRegion<A> {
    /// Registers all of `words`.
    ///
    /// # Errors
    /// If the limits do not allow it (they are looked at first), or the device refuses.
    pub fn register(domain: &Arc<ProtectionDomain>, words: &Words) -> Result<MemoryRegion<A>, RegisterError> {
        let len_bytes = words.read_only().len_words() as u64 * 8;
        let region_max_bytes = domain.context().attributes()?.memory_region_max_bytes;
        let limits = MemoryLimits::now(len_bytes, region_max_bytes).check()?;
        let address = words.address_of(0);
        let iwarp = domain.context().is_iwarp();
        let flags = A::flags(iwarp);
        // SAFETY: the domain is alive; the memory is mapped for reads and writes (a `Words` says so) and stays so until
        // after the region is deregistered, because `words` is kept and dropped later, see `drop`. The device's accesses
        // are those of somebody outside of this process, for which `Words` allows only atomic accesses on this side.
        let raw = unsafe {
            rdma_sys::ibv_reg_mr(domain.as_ptr(), address as *mut _, len_bytes as usize, flags.cast_signed())
        };
        let Some(raw) = NonNull::new(raw) else {
            let error = VerbError::last("ibv_reg_mr", domain.context().device().name.clone());
            return Err(RegisterError::Refused { error, limits: Box::new(limits.with_pages_at(address)) });
        };
        Ok(MemoryRegion {
            raw,
            words: words.clone(),
            address: address as u64,
            len_bytes,
            is_read_sink: !iwarp || flags & REMOTE_WRITE != 0,
            domain: Arc::clone(domain),
            is_registered: true,
            _access: PhantomData,
        })
    }

    /// Has the device forget it, also if requests for it are in flight: they complete with an error. The device accesses
    /// the memory no more when this returns.
    ///
    /// # Errors
    /// What the verb said; the memory is then never given back.
    pub fn deregister(mut self) -> Result<(), VerbError> {
        self.forget_at_device()
    }

    fn forget_at_device(&mut self) -> Result<(), VerbError> {
        if !std::mem::take(&mut self.is_registered) {
            return Ok(());
        }
        // SAFETY: registered once, deregistered once, because the flag was just cleared. When this returns 0, no device
        // accesses the memory any more; requests in flight complete with an error. Only then are `words` given back, by
        // the caller: it is dropped after this.
        let returned = unsafe { rdma_sys::ibv_dereg_mr(self.raw.as_ptr()) };
        let done = check("ibv_dereg_mr", returned, || format!("{} bytes", self.len_bytes));
        if let Err(error) = &done {
            tracing::error!(%error, "memory could not be deregistered; it is kept");
            mem::forget(self.words.clone());
        }
        done
    }

    /// What is in it.
    pub fn words(&self) -> &Words {
        &self.words
    }

    /// Its length.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The domain that it belongs to.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// The range of `len_bytes` bytes from byte `at_bytes`.
    ///
    /// # Errors
    /// If that is not inside this region.
    #[inline]
    pub fn range(&self, at_bytes: u64, len_bytes: u64) -> Result<LocalRange<A>, OutOfRange> {
        let (address, len_bytes) = place(self.address, self.len_bytes, at_bytes, len_bytes)?;
        // SAFETY: the region is registered until `drop`, and the field does not change.
        let lkey = unsafe { self.raw.as_ref() }.lkey;
        Ok(LocalRange { address, len_bytes, lkey, is_read_sink: self.is_read_sink, _access: PhantomData })
    }
}

impl<A: Remote> MemoryRegion<A> {
    /// What a peer has to know to access this region.
    ///
    /// Memory that no peer may access has no such thing:
    /// ```compile_fail,E0599
    /// use kv_common::verbs::{Local, MemoryRegion, RemoteMemory};
    /// fn publish(region: &MemoryRegion<Local>) -> RemoteMemory {
    ///     region.remote()
    /// }
    /// ```
    /// ```
    /// use kv_common::verbs::{MemoryRegion, RemoteMemory, RemoteReadable};
    /// fn publish(region: &MemoryRegion<RemoteReadable>) -> RemoteMemory {
    ///     region.remote()
    /// }
    /// ```
    pub fn remote(&self) -> RemoteMemory {
        // SAFETY: the region is registered until `drop`, and the field does not change.
        let rkey = unsafe { self.raw.as_ref() }.rkey;
        RemoteMemory { address: self.address, len_bytes: self.len_bytes, rkey }
    }
}

impl<A: Access> Drop for MemoryRegion<A> {
    fn drop(&mut self) {
        // What the device keeps is kept here, too, and was logged.
        let _ = self.forget_at_device();
    }
}

impl RemoteMemory {
    /// The range of `len_bytes` bytes from byte `at_bytes`.
    ///
    /// # Errors
    /// If that is not inside this memory: a request for it is never posted.
    #[inline]
    pub fn range(&self, at_bytes: u64, len_bytes: u64) -> Result<RemoteRange, OutOfRange> {
        let (address, len_bytes) = place(self.address, self.len_bytes, at_bytes, len_bytes)?;
        Ok(RemoteRange { address, len_bytes, rkey: self.rkey })
    }
}

fn place(address: u64, memory_bytes: u64, at_bytes: u64, len_bytes: u64) -> Result<(u64, u32), OutOfRange> {
    let inside = at_bytes.checked_add(len_bytes).is_some_and(|end| end <= memory_bytes);
    match address.checked_add(at_bytes) {
        Some(address) if inside && len_bytes <= MESSAGE_MAX_BYTES => Ok((address, len_bytes as u32)),
        _ => Err(OutOfRange { at_bytes, len_bytes, memory_bytes }),
    }
}

/// Zeroed words in memory of this process alone, starting on a page; `len_bytes` is rounded up to whole words.
/// `hugepages` asks for pages of 2 MiB, of which there must be enough; the length is then rounded up to them.
///
/// # Errors
/// If the kernel has no such memory.
pub fn anonymous_words(len_bytes: usize, hugepages: bool) -> io::Result<Words> {
    const HUGEPAGE_BITS: u8 = 21;
    let page_bytes = if hugepages { 1 << HUGEPAGE_BITS } else { 8 };
    let len_bytes = len_bytes.max(1).checked_next_multiple_of(page_bytes);
    let len_bytes = len_bytes.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let mut options = MmapOptions::new();
    options.len(len_bytes);
    if hugepages {
        // Prefaulted: with too few pages this fails now instead of with SIGBUS later.
        options.huge(Some(HUGEPAGE_BITS)).populate();
    }
    let map = Arc::new(MmapRaw::from(options.map_anon()?));
    // SAFETY: the mapping is page-aligned, of `len_bytes`, readable and writable, and lives as long as `map`, which the
    // view keeps; nobody else knows its address.
    Ok(unsafe { Words::from_raw(map.as_mut_ptr(), len_bytes, map) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_inside_or_refused() {
        let memory = RemoteMemory { address: 0x1000, len_bytes: 64, rkey: 7 };
        let range = memory.range(8, 56).unwrap();
        assert_eq!((range.address, range.len_bytes, range.rkey), (0x1008, 56, 7));
        assert!(memory.range(64, 0).is_ok());
        for (at, len) in [(8, 57), (65, 0), (u64::MAX, 2), (0, u64::MAX)] {
            assert_eq!(
                memory.range(at, len),
                Err(OutOfRange { at_bytes: at, len_bytes: len, memory_bytes: 64 })
            );
        }
        let huge = RemoteMemory { address: u64::MAX - 8, len_bytes: u64::MAX, rkey: 0 };
        assert!(huge.range(9, 1).is_err(), "an address beyond the end of the address space");
        assert!(huge.range(0, MESSAGE_MAX_BYTES + 1).is_err());
    }

    #[test]
    fn anonymous_memory_is_zeroed_and_on_a_page() {
        let words = anonymous_words(12, false).unwrap();
        assert_eq!(words.read_only().len_words(), 2);
        assert_eq!(words.address_of(0) % 4096, 0);
        assert_eq!(words.read_only().load(1), 0);
    }
}
