//! The table: the only writer of the region.
//!
//! | file | what |
//! |---|---|
//! | `format` | [`Table::create`]: cuts a zeroed region into segments and writes superblock, directory and index |
//! | `worker` | [`Worker`]: what one worker thread owns; giving blocks back |
//! | `lookup` | `Table::find`, `Table::room`: where a key is, where a new one may go; both under the stripes |
//! | `get` | GET by SEND: a look without locks, then one under the stripes |
//! | `put` | insert and update, with and without a condition: what happens under the stripes |
//! | `modify` | add, append and touch, whose value is made of the one before |
//! | `append` | append and touch where that makes a large value |
//! | `draft` | large blocks before they are published: taking a run, filling its pages |
//! | `upload` | large values that come in parts |
//! | `publish` | the stores of a write, in their order, and why it is that order |
//! | `delete` | delete |
//! | `expiry` | keys whose time ends: judged, asked about, removed in the background |
//! | `scan` | walks over all keys, part by part |
//! | `staged` | the value of a request: inline, or copied out of the client's staging area |
//! | `slab` | blocks by size class, cut from segments, and runs of pages |
//! | `pages`, `pool` | which pages of large segments are free, and which segments |
//! | `evict` | a write that finds no room makes some: which keys go, and how |
//! | `hand`, `recency` | CLOCK: which block goes next; when blocks were used |
//! | `space` | segments go from one use to another |
//! | `waiting` | writes that find no room and wait for some |
//! | `clear` | neighbouring segments are made free for a large value |
//! | `index` | the index segments: what each answers for, how full it is, its free overflow lines |
//! | `split` | one index segment becomes two, under readers and writers |
//! | `growth` | which segments are split, when, and by whom |
//! | `upkeep` | how the threads that split and make space are called, and the clock that they wait by |
//! | `stripes` | the writers' locks |
//! | `versions` | versions under a ceiling |
//! | `counters` | a worker's counter page |
//! | `check`, `runs` | [`Table::check`]: what the region's words say ([`kv_common::check`]), and what the server keeps privately |
//!
//! # Invariants
//! Between two writes, and for the keys of every home whose stripes are free:
//! 1. A present key has exactly one slot, in its home line, the next line, or an overflow line chained to its home, and
//!    keeps it until it is deleted, or copied by a split. The slot names the key's only live block.
//! 2. A slot that is not empty names a whole block. No two slots name the same block, but that a split leaves an equal
//!    copy in the segment that a key comes from, until it is cleared.
//! 3. An overflow line in use is in the chain of one home. Only the tail of a chain is unlinked, and only when empty.
//! 4. Every block start of a class is in use, free, on its way back through the epochs, or not yet cut. Every page of a large
//!    segment is in one run that is in use, coming, or on its way back, or is free; and begins with words of the server's.
//! 5. Versions of one key rise; no version is used twice in the table's life.
//!
//! # Locks
//! The splits under way, then stripes (in order), then at most one of: a class or the pages of the slab, then the pool of free
//! segments; the overflow lines of an index segment; the segments that want to be split; the large values that wait for a run; the version ceiling. None of these
//! is held while another thread is waited for. Workers take the first of them only without stripes.

mod append;
mod check;
mod clear;
mod counters;
mod delete;
mod draft;
mod evict;
mod expiry;
mod format;
mod get;
mod growth;
mod hand;
mod index;
mod lookup;
mod modify;
mod pages;
mod pool;
mod publish;
mod put;
mod recency;
mod runs;
mod scan;
mod slab;
mod space;
mod split;
mod staged;
mod stripes;
mod upkeep;
mod upload;
mod versions;
mod waiting;
mod worker;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kv_common::layout::superblock;
use kv_common::probe::TableView;
use kv_common::region::Words;

pub use format::{TableConfig, TableError};
pub use kv_common::check::{CheckFinding, CheckReport, SlotFault};
pub use space::SpaceKeeper;
pub use upkeep::{Clock, Signal, Upkeep};
pub use upload::AbandonedRun;
pub use waiting::Waiting;
pub use worker::Worker;

pub(crate) use draft::Landing;
pub(crate) use get::Value;
pub(crate) use modify::Change;
pub(crate) use put::{Outcome, Written};
pub(crate) use staged::value_bytes;

use expiry::Expiry;
use growth::Growth;
use index::Index;
use slab::Slab;
use space::Space;
use stripes::Stripes;
use versions::Versions;

/// What may pass between a look at the server's clock and its publication; and how often that is tried.
const PUBLISH_NS_MAX: u64 = 1_000_000;
const PUBLISH_TRIES: u32 = 3;

/// A table in a region. Workers write it, each through its own [`Worker`]; anybody reads it, without asking.
pub struct Table {
    region: Words,
    /// Identity, as readers see it. The directory in it is the first one: where a key is, `index` says.
    view: TableView,
    /// What splits and segments that are to be free wait by.
    clock: Clock,
    expiry: Expiry,
    stripes: Stripes,
    versions: Versions,
    /// Shared with the closures that give blocks back, which may outlive the table.
    slab: Arc<Slab>,
    index: Index,
    growth: Growth,
    /// Shared as the slab is.
    space: Arc<Space>,
    epochs: crossbeam_epoch::Collector,
    workers: usize,
    /// Bit `i`: worker `i` exists. A counter page has one writer.
    workers_taken: AtomicU64,
}

impl Table {
    /// The region.
    pub fn region(&self) -> &Words {
        &self.region
    }

    /// Publishes the server's clock for readers who judge expiries. One thread calls this, every few milliseconds.
    pub fn publish_clock(&self) {
        for _ in 0..PUBLISH_TRIES {
            let now_ns = self.now_ns();
            self.region.store(superblock::CLOCK_NS, now_ns);
            // Stopped between the two it has stored an old time, which readers take for the present because it is new.
            if self.now_ns().saturating_sub(now_ns) < PUBLISH_NS_MAX {
                break;
            }
        }
    }

    fn monotonic_ns(&self) -> u64 {
        (self.clock)()
    }

    /// Segments that hold index lines.
    pub fn index_segments(&self) -> u64 {
        self.index.segments()
    }

    /// Keys that each of the present index segments takes before it is split.
    pub fn keys_before_split(&self) -> u64 {
        self.index.keys_before_split()
    }

    /// Segments that hold nothing.
    pub fn free_segments(&self) -> u64 {
        self.slab.free_segments()
    }

    /// The place epoch, for hints: a place that was learned under another one must not be used.
    fn place_epoch(&self) -> u64 {
        self.region.load(superblock::PLACE_EPOCH)
    }
}
