//! Making shared memory, and refusing memory that is not what a peer promised.

mod support;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use kv_common::transport::shm::channel::ChannelLayout;
use kv_common::transport::shm::mapping::{
    CreateError, HUGEPAGE_BYTES, HugepagePool, MapError, PagePolicy, Pages, create_channel, create_region,
    map_channel, map_region,
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use support::Hugepages;

const REGION_SEALS: SealFlags =
    SealFlags::FUTURE_WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);
const CHANNEL_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

fn file(len_bytes: u64, seals: SealFlags, pages: MemfdFlags) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC | pages).unwrap();
    ftruncate(&fd, len_bytes).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn a_reader_sees_what_the_server_stores() {
    share_region(PagePolicy::Off);
}

#[test]
fn a_reader_sees_what_the_server_stores_on_hugepages() {
    let Some(_pages) = Hugepages::take("a_reader_sees_what_the_server_stores_on_hugepages", 2) else {
        return;
    };
    share_region(PagePolicy::Require);
    // With enough free pages the default takes them too.
    let region = create_region(1, PagePolicy::Auto, &mut |_| ()).unwrap();
    assert_eq!((region.pages, region.shortfall), (Pages::Huge, None));
}

fn share_region(policy: PagePolicy) {
    let mut steps = Vec::new();
    let region = create_region(HUGEPAGE_BYTES + 1, policy, &mut |step| steps.push(step)).unwrap();
    assert_eq!(region.words.len_words() as u64 * 8, 2 * HUGEPAGE_BYTES, "rounded up to whole hugepages");
    let last = steps.last().unwrap();
    assert_eq!((last.done_bytes, last.total_bytes), (2 * HUGEPAGE_BYTES, 2 * HUGEPAGE_BYTES));
    assert_eq!(region.shortfall, None);

    let reader = map_region(region.fd.as_fd(), 2 * HUGEPAGE_BYTES).unwrap();
    let end = reader.len_words() - 1;
    assert_eq!(reader.load(end), 0);
    region.words.store_release(end, 42);
    assert_eq!(reader.load_acquire(end), 42);
    drop(region);
    assert_eq!(reader.load(end), 42, "the memory lives as long as somebody maps it");
}

#[test]
fn progress_grows_to_the_whole_in_chunks() {
    let mut done = Vec::new();
    let region = create_region(200 << 20, PagePolicy::Off, &mut |step| done.push(step.done_bytes)).unwrap();
    assert!(done.len() >= 4 && done.is_sorted() && done.last() == Some(&(200 << 20)), "{done:?}");
    let blocks = rustix::fs::fstat(&region.fd).unwrap().st_blocks;
    assert!(blocks as u64 * 512 >= 200 << 20, "every page is there");
}

#[test]
fn too_few_hugepages_are_noted_or_an_error() {
    let _lock = Hugepages::lock();
    let pool = HugepagePool::now();
    let wanted = pool.free + 2;
    let region = create_region(wanted * HUGEPAGE_BYTES, PagePolicy::Auto, &mut |_| ()).unwrap();
    assert!(matches!(region.pages, Pages::Ordinary { .. }));
    let shortfall = region.shortfall.unwrap();
    assert_eq!((shortfall.wanted, shortfall.free, shortfall.missing), (wanted, pool.free, 2));
    assert_eq!(shortfall.command, format!("sysctl vm.nr_hugepages={}", pool.total + 2));
    match create_region(wanted * HUGEPAGE_BYTES, PagePolicy::Require, &mut |_| ()) {
        Err(CreateError::Hugepages(required)) => assert_eq!(required, shortfall),
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn lengths_that_cannot_be_are_errors() {
    for len_bytes in [0, u64::MAX, 1 << 63] {
        let error = create_region(len_bytes, PagePolicy::Off, &mut |_| ()).err().unwrap();
        assert!(
            matches!(error, CreateError::Length { found_bytes, .. } if found_bytes == len_bytes),
            "{error}"
        );
    }
    // More than any machine has: told before the kernel starts killing.
    let error = create_region(1 << 60, PagePolicy::Auto, &mut |_| ()).err().unwrap();
    assert!(
        matches!(error, CreateError::NotEnoughMemory { wanted_bytes, .. } if wanted_bytes == 1 << 60),
        "{error}"
    );
}

#[test]
fn a_channel_is_shared_both_ways_and_costs_nothing_before_use() {
    let layout = ChannelLayout::default();
    let channel = create_channel(layout.len_bytes()).unwrap();
    let peer = map_channel(channel.fd.as_fd(), layout.len_bytes()).unwrap();
    let blocks = || rustix::fs::fstat(&channel.fd).unwrap().st_blocks;
    let (server, mut client) = (layout.server_end(&channel.words), layout.client_end(&peer));
    assert!(server.requests.is_empty());
    assert!(blocks() * 512 <= 4096, "only the page that was looked at");
    client.requests.try_push(&[b"hello"]).unwrap();
    assert!(!server.requests.is_empty());
    assert!(blocks() * 512 <= 2 * 4096, "{}", blocks());
}

#[test]
fn memory_of_another_size_is_refused() {
    let region = create_region(HUGEPAGE_BYTES, PagePolicy::Off, &mut |_| ()).unwrap();
    for expected_bytes in [0, 8, HUGEPAGE_BYTES - 8, HUGEPAGE_BYTES * 2, u64::MAX] {
        match map_region(region.fd.as_fd(), expected_bytes).err().unwrap() {
            MapError::WrongSize { expected_bytes: told, found_bytes } => {
                assert_eq!((told, found_bytes), (expected_bytes, HUGEPAGE_BYTES));
            }
            other => panic!("{other}"),
        }
    }
    let odd = file(4097, CHANNEL_SEALS, MemfdFlags::empty());
    assert!(matches!(map_channel(odd.as_fd(), 4097), Err(MapError::WrongSize { .. })));
}

#[test]
fn memory_without_each_seal_is_refused() {
    for lacking in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL, SealFlags::FUTURE_WRITE] {
        let fd = file(4096, REGION_SEALS.difference(lacking), MemfdFlags::empty());
        let name = lacking.iter_names().next().unwrap().0;
        match map_region(fd.as_fd(), 4096) {
            Err(MapError::NotSealed { missing }) => assert_eq!(missing, name),
            other => panic!("{name}: {:?}", other.err()),
        }
        if lacking != SealFlags::FUTURE_WRITE {
            assert!(matches!(map_channel(fd.as_fd(), 4096), Err(MapError::NotSealed { .. })));
        }
    }
}

#[test]
fn a_region_with_holes_is_refused() {
    let fd = file(1 << 20, REGION_SEALS, MemfdFlags::empty());
    assert!(matches!(map_region(fd.as_fd(), 1 << 20), Err(MapError::Holes { found_bytes: 0, .. })));
}

#[test]
fn a_channel_of_hugepages_is_refused() {
    // A file of hugepages can be made without any; touching it would be the end.
    let fd = file(HUGEPAGE_BYTES, CHANNEL_SEALS, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB);
    assert!(matches!(map_channel(fd.as_fd(), HUGEPAGE_BYTES), Err(MapError::NotMemory { .. })));
}

#[test]
fn descriptors_that_are_no_memory_are_refused() {
    let regular: OwnedFd = tempfile::tempfile().unwrap().into();
    let (pipe, _other_end) = rustix::pipe::pipe().unwrap();
    let directory: OwnedFd = File::open("/").unwrap().into();
    let null: OwnedFd = File::options().read(true).write(true).open("/dev/null").unwrap().into();
    for fd in [regular, pipe, directory, null] {
        let error = map_region(fd.as_fd(), 4096).err().unwrap();
        assert!(matches!(error, MapError::NotMemory { .. } | MapError::NotSealed { .. }), "{error}");
        assert!(map_channel(fd.as_fd(), 4096).is_err());
    }
}
