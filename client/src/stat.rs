//! What a server publishes in its superblock, read without asking it.

use kv_common::layout::{COUNTER_NAMES, EVICTED_AGES, SEGMENT_BYTES, SegmentEntry, SegmentKind, superblock};
use kv_common::limits::WORKERS_MAX;
use kv_common::probe::IdentityError;
use kv_common::transport::Transport;
use serde::Serialize;

use crate::driver::Driver;
use crate::error::Error;

/// Words of the segment table read at once.
const TABLE_WORDS_PER_READ: usize = 8 << 10;

/// What a server publishes about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerStat {
    /// The server's process.
    pub server_pid: u64,
    /// The table's random id, in hexadecimal.
    pub table_id: String,
    /// Random per start of the server, in hexadecimal.
    pub incarnation: String,
    /// When the server started, ns since 1970.
    pub started_ns: u64,
    /// The server's clock, ns since 1970. It stands while the server is stopped or idle.
    pub clock_ns: u64,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Bytes of the pages that back it.
    pub page_bytes: u64,
    /// Worker threads.
    pub workers: u64,
    /// Segments by kind.
    pub segments: Segments,
    /// What each segment holds, from the start of the region.
    #[serde(skip)]
    pub map: Vec<SegmentEntry>,
    /// The counters of all workers together, by name.
    pub counters: std::collections::BTreeMap<&'static str, u64>,
    /// Whether keys are evicted when the server is full.
    pub evicts: bool,
    /// Keys that were evicted, by the time since their last use that the server knew of: less than 1 second, less than 2,
    /// less than 4 and so on; the last number has all others.
    pub evicted_ages: [u64; EVICTED_AGES],
    /// Longest key and largest value that the server takes, in bytes.
    pub key_max_bytes: u64,
    /// See `key_max_bytes`.
    pub value_max_bytes: u64,
}

/// Segments of 2 MiB by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Segments {
    /// Superblock, segment table, directory.
    pub system: u64,
    /// Index lines.
    pub index: u64,
    /// Blocks: keys and values.
    pub blocks: u64,
    /// Pages of large blocks.
    pub large: u64,
    /// Nothing yet.
    pub free: u64,
}

pub(crate) fn read<T: Transport>(driver: &mut Driver<T>) -> Result<ServerStat, Error> {
    let identity = driver.read_words_blocking(0, superblock::IDENTITY_WORDS)?;
    let workers = identity[superblock::WORKERS];
    if workers > WORKERS_MAX as u64 {
        return Err(IdentityError::Field { field: "workers", found: workers }.into());
    }
    let pages_words = superblock::counter_pages(workers as usize).count() * superblock::COUNTER_WORDS;
    let pages = driver.read_words_blocking(superblock::COUNTERS_FIRST, pages_words)?;
    let sum = |word: usize| {
        let of_page = |page: &[u64]| page[word];
        pages.chunks_exact(superblock::COUNTER_WORDS).map(of_page).fold(0, u64::wrapping_add)
    };
    let counters = COUNTER_NAMES.iter().enumerate().map(|(i, &name)| (name, sum(i)));
    let map = read_segments(driver)?;
    Ok(ServerStat {
        server_pid: identity[superblock::SERVER_PID],
        table_id: format!("{:016x}", identity[superblock::TABLE_ID]),
        incarnation: format!("{:016x}", identity[superblock::INCARNATION]),
        started_ns: identity[superblock::STARTED_NS],
        clock_ns: identity[superblock::CLOCK_NS],
        region_bytes: identity[superblock::REGION_BYTES],
        page_bytes: identity[superblock::PAGE_BYTES],
        workers,
        counters: counters.collect(),
        evicts: identity[superblock::EVICTS] == 1,
        evicted_ages: std::array::from_fn(|age| sum(superblock::EVICTED_AGES + age)),
        segments: Segments::of(&map),
        map,
        key_max_bytes: identity[superblock::KEY_MAX_BYTES],
        value_max_bytes: identity[superblock::VALUE_MAX_BYTES],
    })
}

impl ServerStat {
    /// The ages of evicted keys that there are, for people: `under 1 s 12, under 64 s 3`; empty if none was evicted.
    pub fn evicted_ages_text(&self) -> String {
        let shown = self.evicted_ages.iter().enumerate().filter(|(_, count)| **count > 0);
        let shown = shown.map(|(age, count)| match age {
            _ if age + 1 == EVICTED_AGES => format!("longer {count}"),
            _ => format!("under {} s {count}", 1 << age),
        });
        shown.collect::<Vec<_>>().join(", ")
    }
}

impl Segments {
    fn of(map: &[SegmentEntry]) -> Segments {
        let mut segments = Segments::default();
        for entry in map {
            match entry.kind {
                SegmentKind::Superblock | SegmentKind::Directory => segments.system += 1,
                SegmentKind::Index => segments.index += 1,
                SegmentKind::Blocks => segments.blocks += 1,
                SegmentKind::Large => segments.large += 1,
                SegmentKind::Free => segments.free += 1,
            }
        }
        segments
    }
}

fn read_segments<T: Transport>(driver: &mut Driver<T>) -> Result<Vec<SegmentEntry>, Error> {
    let total = driver.view().region_words * 8 / SEGMENT_BYTES as usize;
    let mut map = Vec::with_capacity(total);
    for first in (0..total).step_by(TABLE_WORDS_PER_READ) {
        let len_words = TABLE_WORDS_PER_READ.min(total - first);
        for word in driver.read_words_blocking(superblock::SEGMENT_TABLE + first, len_words)? {
            let Some(entry) = SegmentEntry::decode(word) else {
                return Err(IdentityError::Field { field: "segment table entry", found: word }.into());
            };
            map.push(entry);
        }
    }
    Ok(map)
}
