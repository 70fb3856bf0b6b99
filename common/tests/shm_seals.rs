//! Nobody can write to a sealed region or change its size, on either kind of pages, as the same user or another one.
//!
//! The attacker is this test binary, started again with the region's descriptor and, as root, another user. Each attack is
//! also tried on a file without seals, where it must succeed: an attack that cannot succeed proves nothing.
#![allow(unsafe_code, reason = "an attacker maps what he was given")]

mod support;

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use kv_common::region::Words;
use kv_common::transport::shm::mapping::{HUGEPAGE_BYTES, PagePolicy, Pages, create_region};
use memmap2::{Mmap, MmapOptions, UncheckedAdvice};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, SealFlags};
use rustix::io::FdFlags;
use support::{Hugepages, is_root, not_run};

const LEN_PAGES: u64 = 2;
const LEN_BYTES: u64 = LEN_PAGES * HUGEPAGE_BYTES;
const NOBODY: u32 = 65534;
const ATTACK: &str = "KV_TEST_ATTACK";
const MARK: u64 = 0x0123_4567_89ab_cdef;

#[test]
fn ordinary_pages_are_safe_from_the_same_user() {
    attack_region(PagePolicy::Off, None);
}

#[test]
fn ordinary_pages_are_safe_from_another_user() {
    if is_root() {
        attack_region(PagePolicy::Off, Some(NOBODY));
    } else {
        not_run("ordinary_pages_are_safe_from_another_user", "only root can become another user");
    }
}

#[test]
fn hugepages_are_safe_from_the_same_user() {
    let Some(_pages) = Hugepages::take("hugepages_are_safe_from_the_same_user", LEN_PAGES) else { return };
    attack_region(PagePolicy::Require, None);
}

#[test]
fn hugepages_are_safe_from_another_user() {
    let Some(_pages) = Hugepages::take("hugepages_are_safe_from_another_user", LEN_PAGES) else { return };
    attack_region(PagePolicy::Require, Some(NOBODY));
}

#[test]
fn every_attack_works_where_there_are_no_seals() {
    let fd = rustix::fs::memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, LEN_BYTES).unwrap();
    File::from(fd.try_clone().unwrap()).write_at(&MARK.to_le_bytes(), 0).unwrap();
    let report = attack(fd.as_fd(), None);
    assert_eq!(outcomes(&report, "possible").len(), ATTACKS.len(), "{report}");
}

fn attack_region(policy: PagePolicy, user: Option<u32>) {
    let region = create_region(LEN_BYTES, policy, &mut |_| ()).unwrap();
    assert_eq!(region.pages == Pages::Huge, policy == PagePolicy::Require);
    region.words.store(0, MARK);
    region.words.store(1000, MARK);
    // The mode keeps others out too; here the seals must do it alone.
    rustix::fs::fchmod(&region.fd, Mode::from_raw_mode(0o666)).unwrap();
    let report = attack(region.fd.as_fd(), user);
    assert_eq!(outcomes(&report, "possible"), Vec::<&str>::new(), "{report}");
    assert_eq!(outcomes(&report, "denied").len(), ATTACKS.len(), "{report}");
    assert_unharmed(&region.words, region.fd.as_fd());
}

fn assert_unharmed(words: &Words, fd: BorrowedFd<'_>) {
    assert_eq!(rustix::fs::fstat(fd).unwrap().st_size, LEN_BYTES as i64);
    for at in 0..words.len_words() {
        assert_eq!(words.load(at), if at == 0 || at == 1000 { MARK } else { 0 }, "word {at}");
    }
    words.store(2, 1);
    assert_eq!(words.load(2), 1, "the server can still write");
}

/// Runs all attacks in another process and returns what it printed.
fn attack(fd: BorrowedFd<'_>, user: Option<u32>) -> String {
    let inherited = fd.try_clone_to_owned().unwrap();
    rustix::io::fcntl_setfd(&inherited, FdFlags::empty()).unwrap();
    // Another user need not be able to reach the build directory.
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program: PathBuf = place.path().join("attacker");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "attacker", "--nocapture", "--test-threads=1"]).current_dir("/");
    command.env(ATTACK, inherited.as_raw_fd().to_string());
    if let Some(id) = user {
        command.uid(id).gid(id);
    }
    // A process that another test starts at this moment holds the copy open for writing until it executes.
    let output = loop {
        match command.output() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            output => break output.unwrap(),
        }
    };
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{report}\n{}", String::from_utf8_lossy(&output.stderr));
    report
}

fn outcomes<'a>(report: &'a str, outcome: &str) -> Vec<&'a str> {
    report
        .lines()
        .filter(|line| line.starts_with("attack ") && line.contains(&format!(": {outcome}")))
        .collect()
}

/// The attacker's process; does nothing when the tests run as usual.
#[test]
fn attacker() {
    let Ok(number) = std::env::var(ATTACK) else { return };
    let path = format!("/proc/self/fd/{number}");
    // SAFETY: the parent left this descriptor open for us, and nothing here closes it.
    let fd = unsafe { BorrowedFd::borrow_raw(number.parse().unwrap()) };
    let attacker = Attacker { fd, path };
    for (name, attack) in ATTACKS {
        match attack(&attacker) {
            Ok(()) => println!("\nattack {name}: possible"),
            Err(error) => println!("\nattack {name}: denied, {error}"),
        }
    }
}

struct Attacker<'a> {
    fd: BorrowedFd<'a>,
    /// Where the file can be opened again.
    path: String,
}

type Attack = fn(&Attacker<'_>) -> io::Result<()>;

/// Ordered so that each works on a file without seals although the earlier ones were done; the last one adds a seal.
const ATTACKS: [(&str, Attack); 16] = [
    ("map for writing", |a| map_writable(a.fd)),
    ("map, then mprotect", |a| mprotect_writable(a.fd)),
    ("write", |a| write(&a.fd.try_clone_to_owned()?.into())),
    ("punch a hole", |a| punch(a.fd)),
    ("remove through a mapping", |a| madvise_remove(a.fd)),
    ("reopen and map for writing", |a| map_writable(a.reopen()?.as_fd())),
    ("reopen, map, then mprotect", |a| mprotect_writable(a.reopen()?.as_fd())),
    ("reopen and write", |a| write(&a.reopen()?)),
    ("reopen and truncate", |a| a.reopen()?.set_len(LEN_BYTES * 2)),
    ("open with O_TRUNC", |a| File::options().write(true).truncate(true).open(&a.path).map(drop)),
    ("grow", |a| Ok(rustix::fs::ftruncate(a.fd, LEN_BYTES * 3)?)),
    ("shrink", |a| Ok(rustix::fs::ftruncate(a.fd, LEN_BYTES / 2)?)),
    ("shrink to nothing", |a| Ok(rustix::fs::ftruncate(a.fd, 0)?)),
    ("fchmod, reopen and map for writing", |a| {
        a.after_fchmod(|file| {
            // Without seals an earlier attack has left nothing to map.
            let _ = rustix::fs::ftruncate(file, LEN_BYTES);
            map_writable(file.as_fd())
        })
    }),
    ("fchmod, reopen and write", |a| a.after_fchmod(write)),
    ("add a seal", |a| Ok(rustix::fs::fcntl_add_seals(a.fd, SealFlags::WRITE)?)),
];

impl Attacker<'_> {
    fn reopen(&self) -> io::Result<File> {
        File::options().read(true).write(true).open(&self.path)
    }

    /// Reopens after giving everybody all rights, if that is possible.
    fn after_fchmod(&self, attack: fn(&File) -> io::Result<()>) -> io::Result<()> {
        let changed = rustix::fs::fchmod(self.fd, Mode::from_raw_mode(0o666));
        match self.reopen() {
            Ok(file) => attack(&file),
            Err(error) => Err(changed.err().map_or(error, io::Error::from)),
        }
    }
}

fn map_read_only(fd: BorrowedFd<'_>) -> io::Result<Mmap> {
    // SAFETY: the test never looks at the bytes while somebody else changes them: the parent waits for this process.
    unsafe { MmapOptions::new().len(LEN_BYTES as usize).map(&fd) }
}

fn map_writable(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: as in `map_read_only`.
    let mut map = unsafe { MmapOptions::new().len(LEN_BYTES as usize).map_mut(&fd) }?;
    map[16] = 1;
    Ok(())
}

fn mprotect_writable(fd: BorrowedFd<'_>) -> io::Result<()> {
    map_read_only(fd)?.make_mut()?[16] = 1;
    Ok(())
}

fn madvise_remove(fd: BorrowedFd<'_>) -> io::Result<()> {
    // A shared mapping that may be made writable is enough for the kernel.
    // SAFETY: nothing refers to the bytes that become zero.
    unsafe { map_read_only(fd)?.unchecked_advise_range(UncheckedAdvice::Remove, 0, LEN_BYTES as usize) }
}

fn write(file: &File) -> io::Result<()> {
    file.write_at(&[1], 16).map(drop)
}

fn punch(fd: BorrowedFd<'_>) -> io::Result<()> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(fd, punch, 0, LEN_BYTES)?)
}
