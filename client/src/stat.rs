//! What a server publishes in its superblock, read without asking it.

use kv_common::layout::{COUNTER_NAMES, SEGMENT_BYTES, SegmentEntry, SegmentKind, superblock};
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
    let pages =
        driver.read_words_blocking(superblock::COUNTERS, workers as usize * superblock::COUNTER_WORDS)?;
    let counters = COUNTER_NAMES.iter().enumerate().map(|(i, &name)| {
        let of_worker = |page: &[u64]| page[i];
        (name, pages.chunks_exact(superblock::COUNTER_WORDS).map(of_worker).fold(0, u64::wrapping_add))
    });
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
        segments: Segments::of(&map),
        map,
        key_max_bytes: identity[superblock::KEY_MAX_BYTES],
        value_max_bytes: identity[superblock::VALUE_MAX_BYTES],
    })
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
