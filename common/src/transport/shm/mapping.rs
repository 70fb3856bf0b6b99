//! Memory that processes share: made, sealed and mapped so that no peer can write where it must not, and none can make
//! an access fail with SIGBUS.
//!
//! - The **region** is mapped read-write by the server and then sealed `F_SEAL_FUTURE_WRITE | SHRINK | GROW | SEAL`: from
//!   then on nobody, not even the server, gets another writable mapping, can write to it by system calls, punch a hole or
//!   change its size, by whatever way it is opened again. A read-only descriptor alone would protect nothing: its holder can
//!   open it for writing through `/proc/self/fd`. All its pages are there before it is sealed, and nothing can take them
//!   away afterwards, so no load or store ever fails.
//! - The **channel** is memory of one client and the server, mapped read-write by both and sealed `SHRINK | GROW | SEAL`.
//!   Its pages come into being when first touched. A peer that punches holes into it only makes them zero. The one way
//!   to SIGBUS that is left is a kernel that refuses to overcommit (`vm.overcommit_memory=2`) and is at its limit.
//!
//! What seals cannot stop: a process that may trace the server (same user, or root) can write into its memory. Run clients
//! as another user where that matters.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memmap2::Advice;
use rustix::fs::{
    MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
};
use rustix::io::Errno;

pub use super::hugepages::{HUGEPAGE_BYTES, HugepagePool, HugepageShortfall, PagePolicy, Pages};
use super::hugepages::{available_bytes, transparent_shmem};
use super::mapped::{ReadOnly, Writable};
pub use super::prefault::PrefaultProgress;
use super::prefault::prefault;
use crate::region::{ReadWords, Words};

const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
const REGION_SEALS: SealFlags = SIZE_SEALS.union(SealFlags::FUTURE_WRITE);

/// `f_type` of the two file systems that memory files live in (linux/magic.h).
const TMPFS_MAGIC: u64 = 0x0102_1994;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// `st_blocks` counts these, whatever the file system's block size (stat(2)).
const STAT_BLOCK_BYTES: u64 = 512;

/// The server's region, mapped for writing.
pub struct RegionMemory {
    /// All of it.
    pub words: Words,
    /// What clients get. It cannot be written through.
    pub fd: OwnedFd,
    /// What it is made of.
    pub pages: Pages,
    /// Why it is not made of hugepages although they were wanted; log it once.
    pub shortfall: Option<HugepageShortfall>,
}

/// Memory of one client and the server, mapped for writing.
pub struct ChannelMemory {
    /// All of it.
    pub words: Words,
    /// What the client gets.
    pub fd: OwnedFd,
}

/// Why memory could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// No region is that small or that large.
    #[error(
        "a region of {found_bytes} bytes cannot be: it must have at least 1 byte and at most {limit_bytes}"
    )]
    Length {
        /// Bytes asked for.
        found_bytes: u64,
        /// The largest length.
        limit_bytes: u64,
    },
    /// Hugepages were required.
    #[error("{0}")]
    Hugepages(HugepageShortfall),
    /// The machine, or the control group, has less memory than asked for.
    #[error("the region takes {wanted_bytes} bytes and {available_bytes} are available; ask for less memory")]
    NotEnoughMemory {
        /// Bytes of the region.
        wanted_bytes: u64,
        /// Bytes that the kernel says can be had.
        available_bytes: u64,
    },
    /// A page could not be made.
    #[error("no memory at byte {at_bytes} of {wanted_bytes}: {source}{}", populate_hint(.source))]
    Prefault {
        /// Where in the region.
        at_bytes: u64,
        /// Bytes of the region.
        wanted_bytes: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused a step.
    #[error("cannot {step} shared memory: {source}")]
    Os {
        /// The step.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

fn populate_hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EINVAL) => " (populating memory needs Linux 5.14 or newer)",
        _ => "",
    }
}

/// Why a descriptor that a peer sent was not mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// It is not a memory file, so its size cannot be relied on.
    #[error(
        "the peer sent a descriptor that is no sealed memory file ({reason}); is it a server of this project?"
    )]
    NotMemory {
        /// How this was seen.
        reason: &'static str,
    },
    /// It has another size than promised.
    #[error("the peer promised {expected_bytes} bytes of shared memory and sent {found_bytes}")]
    WrongSize {
        /// Bytes promised.
        expected_bytes: u64,
        /// Bytes found.
        found_bytes: u64,
    },
    /// It can still be changed in a way that it must not.
    #[error("the shared memory lacks the seals {missing}; refusing to map what can change under the reader")]
    NotSealed {
        /// The names of the seals that lack.
        missing: String,
    },
    /// Parts of it have no memory yet, so that a load could fail.
    #[error(
        "the shared memory has {found_bytes} bytes of its {expected_bytes}; the server must fill it first"
    )]
    Holes {
        /// Bytes of the file.
        expected_bytes: u64,
        /// Bytes that are backed by memory.
        found_bytes: u64,
    },
    /// The kernel refused a step.
    #[error("cannot {step} shared memory: {source}")]
    Os {
        /// The step.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Makes a region of `len_bytes`, rounded up to 2 MiB: all zero, all pages there, sealed.
///
/// `progress` is called now and then while pages are made, which takes about a second per 2-4 GiB.
///
/// # Errors
/// [`CreateError`]; with [`PagePolicy::Auto`] a lack of hugepages is not an error but noted in the result.
pub fn create_region(
    len_bytes: u64,
    policy: PagePolicy,
    progress: &mut dyn FnMut(PrefaultProgress),
) -> Result<RegionMemory, CreateError> {
    let len_bytes = rounded(len_bytes)?;
    if policy == PagePolicy::Off {
        return create_ordinary(len_bytes, None, progress);
    }
    match create_huge(len_bytes, progress)? {
        Ok(region) => Ok(region),
        Err(shortfall) if policy == PagePolicy::Require => Err(CreateError::Hugepages(shortfall)),
        Err(shortfall) => create_ordinary(len_bytes, Some(shortfall), progress),
    }
}

/// Makes memory for one client: all zero, none of it there before it is touched, sealed in size.
///
/// # Errors
/// [`CreateError`].
///
/// # Panics
/// Panics if `len_bytes` is not a positive multiple of 8.
pub fn create_channel(len_bytes: u64) -> Result<ChannelMemory, CreateError> {
    assert!(len_bytes > 0 && len_bytes.is_multiple_of(8), "a channel is whole words");
    let fd = memory_file("kv-channel", len_bytes, MemfdFlags::empty())?;
    let mapping = Writable::map(fd.as_fd(), len_bytes).map_err(os("map"))?;
    // A few pages must not become one of 2 MiB. Kernels without transparent hugepages refuse the advice.
    let _ = mapping.raw().advise(Advice::NoHugePage);
    fcntl_add_seals(&fd, SIZE_SEALS).map_err(os("seal"))?;
    Ok(ChannelMemory { words: mapping.words(), fd })
}

/// Maps a region that a server sent, read-only, after checking that it has `len_bytes`, all seals and all pages.
///
/// # Errors
/// [`MapError`] names what is not as promised.
pub fn map_region(fd: BorrowedFd<'_>, len_bytes: u64) -> Result<ReadWords, MapError> {
    let stat = check_memory(fd, len_bytes, REGION_SEALS)?;
    let found_bytes = (stat.st_blocks as u64).saturating_mul(STAT_BLOCK_BYTES);
    if found_bytes < len_bytes {
        return Err(MapError::Holes { expected_bytes: len_bytes, found_bytes });
    }
    let mapping = ReadOnly::map(fd, len_bytes).map_err(map_os("map"))?;
    if transparent_shmem() {
        mapping.advise(Advice::HugePage);
    }
    Ok(mapping.words())
}

/// Maps the channel that a server sent, read-write, after checking that it has `len_bytes` and its seals.
///
/// # Errors
/// [`MapError`] names what is not as promised.
pub fn map_channel(fd: BorrowedFd<'_>, len_bytes: u64) -> Result<Words, MapError> {
    check_memory(fd, len_bytes, SIZE_SEALS)?;
    // A page of the hugepage pool may be missing when it is first touched; an ordinary one is not.
    if file_system(fd)? != TMPFS_MAGIC {
        return Err(MapError::NotMemory { reason: "a channel must be made of ordinary pages" });
    }
    let mapping = Writable::map(fd, len_bytes).map_err(map_os("map"))?;
    let _ = mapping.raw().advise(Advice::NoHugePage);
    Ok(mapping.words())
}

fn rounded(len_bytes: u64) -> Result<u64, CreateError> {
    // Half of the address space is the kernel's.
    let limit_bytes = isize::MAX as u64 / HUGEPAGE_BYTES * HUGEPAGE_BYTES;
    match len_bytes.checked_next_multiple_of(HUGEPAGE_BYTES) {
        Some(rounded) if len_bytes > 0 && rounded <= limit_bytes => Ok(rounded),
        _ => Err(CreateError::Length { found_bytes: len_bytes, limit_bytes }),
    }
}

/// The region on hugepages, or what there is too little of.
fn create_huge(
    len_bytes: u64,
    progress: &mut dyn FnMut(PrefaultProgress),
) -> Result<Result<RegionMemory, HugepageShortfall>, CreateError> {
    let wanted = len_bytes / HUGEPAGE_BYTES;
    if let Some(shortfall) = HugepagePool::now().shortfall(wanted) {
        return Ok(Err(shortfall));
    }
    // Somebody else may be faster, and a control group may have a limit: a refusal after the count is a shortfall too.
    let made = memory_file("kv-region", len_bytes, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)
        .and_then(|fd| finish_region(fd, len_bytes, Pages::Huge, None, progress));
    match made {
        Ok(region) => Ok(Ok(region)),
        Err(CreateError::Os { source, step: "make" | "map" } | CreateError::Prefault { source, .. }) => {
            Ok(Err(HugepagePool::now().refused(wanted, source.to_string())))
        }
        Err(error) => Err(error),
    }
}

fn create_ordinary(
    len_bytes: u64,
    shortfall: Option<HugepageShortfall>,
    progress: &mut dyn FnMut(PrefaultProgress),
) -> Result<RegionMemory, CreateError> {
    // Without this look the kernel would kill some process, perhaps another one, in the middle of the prefault.
    if let Some(available_bytes) = available_bytes().filter(|&available| available < len_bytes) {
        return Err(CreateError::NotEnoughMemory { wanted_bytes: len_bytes, available_bytes });
    }
    let fd = memory_file("kv-region", len_bytes, MemfdFlags::empty())?;
    finish_region(
        fd,
        len_bytes,
        Pages::Ordinary { transparent_huge: transparent_shmem() },
        shortfall,
        progress,
    )
}

/// Maps, fills and seals the file of a region.
fn finish_region(
    fd: OwnedFd,
    len_bytes: u64,
    pages: Pages,
    shortfall: Option<HugepageShortfall>,
    progress: &mut dyn FnMut(PrefaultProgress),
) -> Result<RegionMemory, CreateError> {
    let mapping = Writable::map(fd.as_fd(), len_bytes).map_err(os("map"))?;
    if pages == (Pages::Ordinary { transparent_huge: true }) {
        // Advice only: without it the pages are ordinary ones.
        let _ = mapping.raw().advise(Advice::HugePage);
    }
    prefault(mapping.raw(), progress).map_err(|error| CreateError::Prefault {
        at_bytes: error.at_bytes,
        wanted_bytes: len_bytes,
        source: error.source,
    })?;
    fcntl_add_seals(&fd, REGION_SEALS).map_err(os("seal"))?;
    Ok(RegionMemory { words: mapping.words(), fd, pages, shortfall })
}

/// A memory file of `len_bytes` that only its owner may open again.
fn memory_file(name: &str, len_bytes: u64, pages: MemfdFlags) -> Result<OwnedFd, CreateError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages;
    let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know NOEXEC_SEAL.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        made => made,
    }
    .map_err(os("make"))?;
    fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(os("set the mode of"))?;
    ftruncate(&fd, len_bytes).map_err(os("size"))?;
    Ok(fd)
}

/// Checks that `fd` is a memory file of `len_bytes` that has `seals`.
fn check_memory(fd: BorrowedFd<'_>, len_bytes: u64, seals: SealFlags) -> Result<rustix::fs::Stat, MapError> {
    let found = match fcntl_get_seals(fd) {
        Err(Errno::INVAL) => return Err(MapError::NotMemory { reason: "it cannot have seals" }),
        found => found.map_err(map_os("look at the seals of"))?,
    };
    let missing = seals.difference(found);
    if !missing.is_empty() {
        return Err(MapError::NotSealed { missing: seal_names(missing) });
    }
    if !matches!(file_system(fd)?, TMPFS_MAGIC | HUGETLBFS_MAGIC) {
        return Err(MapError::NotMemory { reason: "unknown file system" });
    }
    let stat = fstat(fd).map_err(map_os("look at"))?;
    let found_bytes = stat.st_size as u64;
    if found_bytes != len_bytes || !len_bytes.is_multiple_of(8) || len_bytes == 0 {
        return Err(MapError::WrongSize { expected_bytes: len_bytes, found_bytes });
    }
    Ok(stat)
}

fn file_system(fd: BorrowedFd<'_>) -> Result<u64, MapError> {
    // The kernel's type is a signed word on some architectures; the magic numbers have 32 bits.
    Ok(fstatfs(fd).map_err(map_os("look at the file system of"))?.f_type as u64 & 0xFFFF_FFFF)
}

fn seal_names(seals: SealFlags) -> String {
    seals.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" | ")
}

fn os<E: Into<io::Error>>(step: &'static str) -> impl Fn(E) -> CreateError {
    move |error| CreateError::Os { step, source: error.into() }
}

fn map_os<E: Into<io::Error>>(step: &'static str) -> impl Fn(E) -> MapError {
    move |error| MapError::Os { step, source: error.into() }
}
