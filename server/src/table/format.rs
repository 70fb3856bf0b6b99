//! Making a table in a zeroed region.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kv_common::check;
use kv_common::layout::{
    DIRECTORY_DEPTH_MAX, Header, LAYOUT_VERSION, MAGIC, SEGMENT_BYTES, SEGMENT_GRANULES, SEGMENT_WORDS,
    SegmentEntry, SegmentKind, superblock, superblock_segments,
};
use kv_common::limits::{
    GRACE_NS_MAX, KEY_MAX_BYTES, LEASE_NS, REGION_MAX_BYTES, REGION_MIN_BYTES, VALUE_MAX_BYTES, WORKERS_MAX,
};
use kv_common::region::Words;

use super::Table;
use super::counters::Counters;
use super::expiry::Expiry;
use super::growth::Growth;
use super::index::{Index, Role, State, keys_before_split};
use super::recency::Recency;
use super::slab::Slab;
use super::split::write_lines;
use super::stripes::Stripes;
use super::upkeep::{Clock, monotonic_clock};
use super::versions::{FIRST_VERSION_MAX, Versions};

/// Without a number of keys the index starts with so many segments, ...
const FIRST_SEGMENTS: u64 = 4;
/// ... but no more than one of so many of the region.
const FIRST_SHARE: u64 = 8;

/// What a new table is made with. Ids and seed are the caller's random numbers.
#[derive(Clone, Debug)]
pub struct TableConfig {
    /// Workers that will write, 1 to `limits::WORKERS_MAX`.
    pub workers: usize,
    /// Keys that the index has room for from the start; without, it starts with a few MiB. It grows in any case.
    pub expected_keys: Option<u64>,
    /// A miss counts only if its lookup took less, usually `limits::GRACE_NS`. Splits wait for it.
    pub grace_ns: u64,
    /// Bytes of the largest value to take, 1 to `limits::VALUE_MAX_BYTES`.
    pub value_max_bytes: usize,
    /// Bytes of the pages that back the region, for the superblock.
    pub page_bytes: u64,
    /// Random per table.
    pub table_id: u64,
    /// Random per table.
    pub hash_seed: u64,
    /// Random per start of the server.
    pub incarnation: u64,
    /// The first version to use, usually 1; above the ceiling of a table that this one succeeds.
    pub first_version: u64,
    /// The server's clock, ns since 1970, by which keys expire. It does not go back.
    pub clock_ns: fn() -> u64,
    /// A write that finds no room evicts other keys. Takes up to two bytes of the process's own memory for each block.
    pub evicts: bool,
}

/// Why a table cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The region's size.
    #[error(
        "a region of {found_bytes} bytes cannot hold a table; it takes a multiple of {SEGMENT_BYTES} bytes between \
         {REGION_MIN_BYTES} and {REGION_MAX_BYTES}"
    )]
    RegionSize {
        /// Bytes of the region.
        found_bytes: u64,
    },
    /// The region is in use.
    #[error("the region is not zeroed: it starts with {found:#018x}; give a new one")]
    NotZeroed {
        /// The first word.
        found: u64,
    },
    /// The number of workers.
    #[error("{found} workers; a table has 1 to {WORKERS_MAX}")]
    Workers {
        /// The number asked for.
        found: usize,
    },
    /// GRACE.
    #[error("GRACE is {found_ns} ns; it is 1 to {GRACE_NS_MAX}")]
    Grace {
        /// The time asked for.
        found_ns: u64,
    },
    /// The largest value.
    #[error("values of up to {found_bytes} bytes; a table takes 1 to {VALUE_MAX_BYTES}")]
    ValueMax {
        /// Bytes asked for.
        found_bytes: usize,
    },
    /// The first version.
    #[error("the first version is {found}; it is 1 to {FIRST_VERSION_MAX}")]
    FirstVersion {
        /// The version asked for.
        found: u64,
    },
    /// What eviction needs.
    #[error(
        "no memory for the times at which up to {blocks} blocks were used, 2 bytes each; start the server with less \
         --memory or with --on-full reject"
    )]
    RecencyMemory {
        /// Blocks that the region has at most.
        blocks: u64,
    },
    /// The index leaves no room for values.
    #[error(
        "an index for {expected_keys} keys takes {index_segments} segments of 2 MiB, and the region has {segments} in \
         all, too few for even one with values; start the server with more --memory or fewer --expected-keys (the index grows by itself)"
    )]
    IndexTooLarge {
        /// Keys asked for.
        expected_keys: u64,
        /// Segments that the index would take.
        index_segments: u64,
        /// Segments of the region.
        segments: u64,
    },
}

impl Table {
    /// Makes a table in `region`, which is all zero. Readers may look while it is made: the magic is stored last.
    pub fn create(region: Words, config: &TableConfig) -> Result<Arc<Table>, TableError> {
        Table::create_with_clock(region, config, monotonic_clock())
    }

    /// The same with a clock for GRACE that is not the system's.
    pub fn create_with_clock(
        region: Words,
        config: &TableConfig,
        clock: Clock,
    ) -> Result<Arc<Table>, TableError> {
        let plan = Plan::new(&region, config)?;
        let recency = if config.evicts {
            let blocks = plan.segments * SEGMENT_GRANULES / 2;
            Some(Recency::new(plan.segments).ok_or(TableError::RecencyMemory { blocks })?)
        } else {
            None
        };
        plan.write_superblock(&region, config);
        plan.write_segment_table(&region);
        plan.write_index(&region);
        let versions = Versions::new(&region, config.first_version);
        let index = Index::new(&region, plan.directory() as usize * SEGMENT_WORDS, plan.segments);
        for prefix in 0..plan.index_segments {
            index.add(plan.first_index() + prefix, State { depth: plan.depth(), prefix, role: Role::Plain });
        }
        let space = Arc::default();
        region.store_release(superblock::MAGIC, MAGIC);
        Ok(Arc::new(Table {
            clock,
            expiry: Expiry::new(config.clock_ns),
            view: check::view_of(&region).expect("the identity was just written"),
            stripes: Stripes::new(),
            versions,
            slab: Arc::new(Slab::new(&region, plan.first_free()..plan.segments, &space, recency)),
            index,
            growth: Growth::new(config.grace_ns, Counters::of_growth(&region)),
            space,
            epochs: crossbeam_epoch::Collector::new(),
            workers: config.workers,
            workers_taken: AtomicU64::new(0),
            region,
        }))
    }
}

/// Where what goes: superblock, directory, index, and the rest is free.
struct Plan {
    segments: u64,
    index_segments: u64,
}

impl Plan {
    fn new(region: &Words, config: &TableConfig) -> Result<Plan, TableError> {
        let found_bytes = region.len_words() as u64 * 8;
        if !(REGION_MIN_BYTES..=REGION_MAX_BYTES).contains(&found_bytes)
            || !found_bytes.is_multiple_of(SEGMENT_BYTES)
        {
            return Err(TableError::RegionSize { found_bytes });
        }
        let found = region.load(superblock::MAGIC);
        if found != 0 {
            return Err(TableError::NotZeroed { found });
        }
        if !(1..=WORKERS_MAX).contains(&config.workers) {
            return Err(TableError::Workers { found: config.workers });
        }
        if !(1..=VALUE_MAX_BYTES).contains(&config.value_max_bytes) {
            return Err(TableError::ValueMax { found_bytes: config.value_max_bytes });
        }
        if !(1..=FIRST_VERSION_MAX).contains(&config.first_version) {
            return Err(TableError::FirstVersion { found: config.first_version });
        }
        if !(1..=GRACE_NS_MAX).contains(&config.grace_ns) {
            return Err(TableError::Grace { found_ns: config.grace_ns });
        }
        let segments = found_bytes / SEGMENT_BYTES;
        let plan = Plan { segments, index_segments: index_segments(segments, config.expected_keys) };
        if plan.index_segments > 1 << DIRECTORY_DEPTH_MAX || plan.first_free() >= segments {
            return Err(TableError::IndexTooLarge {
                expected_keys: config.expected_keys.unwrap_or(0),
                index_segments: plan.index_segments,
                segments,
            });
        }
        Ok(plan)
    }

    fn directory(&self) -> u64 {
        superblock_segments(self.segments)
    }

    fn first_index(&self) -> u64 {
        self.directory() + 1
    }

    fn first_free(&self) -> u64 {
        self.first_index() + self.index_segments
    }

    fn depth(&self) -> u32 {
        self.index_segments.ilog2()
    }

    fn write_superblock(&self, region: &Words, config: &TableConfig) {
        let now_ns = (config.clock_ns)();
        for (word, value) in [
            (superblock::LAYOUT_VERSION, LAYOUT_VERSION),
            (superblock::REGION_BYTES, region.len_words() as u64 * 8),
            (superblock::TABLE_ID, config.table_id),
            (superblock::HASH_SEED, config.hash_seed),
            (superblock::INCARNATION, config.incarnation),
            (superblock::DIRECTORY_SEGMENT, self.directory()),
            (superblock::GRACE_NS, config.grace_ns),
            (superblock::DIRECTORY_DEPTH, self.depth() as u64),
            (superblock::LEASE_NS, LEASE_NS),
            (superblock::CLOCK_NS, now_ns),
            (superblock::KEY_MAX_BYTES, KEY_MAX_BYTES as u64),
            (superblock::VALUE_MAX_BYTES, config.value_max_bytes as u64),
            (superblock::PAGE_BYTES, config.page_bytes),
            (superblock::SERVER_PID, std::process::id() as u64),
            (superblock::WORKERS, config.workers as u64),
            (superblock::STARTED_NS, now_ns),
            (superblock::EVICTS, u64::from(config.evicts)),
        ] {
            region.store(word, value);
        }
    }

    fn write_segment_table(&self, region: &Words) {
        for segment in 0..self.first_free() {
            let kind = match segment {
                _ if segment < self.directory() => SegmentKind::Superblock,
                _ if segment < self.first_index() => SegmentKind::Directory,
                _ => SegmentKind::Index,
            };
            let entry = SegmentEntry { kind, class: 0 };
            region.store(superblock::SEGMENT_TABLE + segment as usize, entry.encode());
        }
    }

    fn write_index(&self, region: &Words) {
        let directory_word = self.directory() as usize * SEGMENT_WORDS;
        for prefix in 0..self.index_segments {
            let segment = self.first_index() + prefix;
            region.store(directory_word + prefix as usize, segment);
            write_lines(region, segment, Header::home(self.depth(), prefix));
        }
    }
}

/// A power of two, so that every directory entry has a segment of its own; more than a directory can have for more keys
/// than fit.
fn index_segments(segments: u64, expected_keys: Option<u64>) -> u64 {
    let holds = |count: u64, keys: u64| count * keys_before_split(segments, count) >= keys;
    match expected_keys {
        Some(keys) => {
            let depth = (0..=DIRECTORY_DEPTH_MAX).find(|&depth| holds(1 << depth, keys));
            1 << depth.unwrap_or(DIRECTORY_DEPTH_MAX + 1)
        }
        None => 1 << (segments / FIRST_SHARE).clamp(1, FIRST_SEGMENTS).ilog2(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_holds_the_expected_keys_without_a_split() {
        for (keys, segments) in [(0, 1), (1, 1), (133_038, 1), (133_039, 2), (266_076, 2), (266_077, 4)] {
            assert_eq!(index_segments(30, Some(keys)), segments, "{keys} keys");
        }
        // In a large region the first segments are split earlier.
        for (keys, segments) in [(1, 1), (38_666, 1), (38_667, 2), (208_404, 2), (208_405, 4), (532_153, 8)] {
            assert_eq!(index_segments(1000, Some(keys)), segments, "{keys} keys");
        }
        assert!(index_segments(1000, Some(u64::MAX)) > 1 << DIRECTORY_DEPTH_MAX);
    }

    #[test]
    fn without_a_number_of_keys_the_index_starts_small() {
        for (segments, index) in [(8, 1), (15, 1), (16, 2), (31, 2), (32, 4), (1 << 23, 4), (1000, 4)] {
            assert_eq!(index_segments(segments, None), index, "{segments} segments");
        }
    }
}
