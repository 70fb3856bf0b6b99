//! What is counted, one-sidedly readable, in the pages of the superblock.

/// Counters of a page, in order. Clients add up all pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)]
pub enum Counter {
    /// Keys present: inserts less deletes (wrapping).
    Keys,
    /// Bytes of blocks in use, rounding included (wrapping).
    BlockBytes,
    /// Bytes of keys and values present (wrapping).
    DataBytes,
    Requests,
    Puts,
    Inserts,
    UpdatesInPlace,
    UpdatesMoved,
    Deletes,
    /// Writes with a condition, and those of them whose condition did not hold.
    ConditionalWrites,
    ConditionsUnmet,
    GetsByServer,
    Refused,
    OverflowLines,
    Sessions,
    WakeUps,
    Adds,
    Appends,
    /// Splits of index segments that are done.
    Splits,
    /// Splits that have begun and are not done (wrapping).
    SplitsUnderWay,
    /// Keys that splits have copied.
    KeysMoved,
    /// Inserts that found no room and waited for a split.
    InsertsWaited,
    /// Blocks that were moved to empty their segment.
    BlocksMoved,
    /// Segments that were emptied and are free for any use.
    SegmentsReused,
    /// Writes that found no room and waited for a segment.
    WritesWaited,
    Touches,
    /// Keys present whose time ends, or is over and who are not removed yet (wrapping).
    ExpiringKeys,
    /// Keys that were removed because their time was over.
    Expired,
    /// Keys that were evicted.
    Evictions,
    /// Places that clients reported as hits.
    HitsReported,
    /// Large values whose upload was begun, and those of them that were given up before their end.
    Uploads,
    UploadsAbandoned,
}

/// Counters, their names, in the order of [`Counter`].
pub const COUNTER_NAMES: [&str; 32] = [
    "keys",
    "block_bytes",
    "data_bytes",
    "requests",
    "puts",
    "inserts",
    "updates_in_place",
    "updates_moved",
    "deletes",
    "conditional_writes",
    "conditions_unmet",
    "gets_by_server",
    "refused",
    "overflow_lines",
    "sessions",
    "wake_ups",
    "adds",
    "appends",
    "splits",
    "splits_under_way",
    "keys_moved",
    "inserts_waited",
    "blocks_moved",
    "segments_reused",
    "writes_waited",
    "touches",
    "expiring_keys",
    "expired",
    "evictions",
    "hits_reported",
    "uploads",
    "uploads_abandoned",
];

/// Counts of evicted keys by the seconds since they were used last: less than 1, less than 2, less than 4 and so on; the last
/// one has all others.
pub const EVICTED_AGES: usize = 16;

const _: () = assert!(COUNTER_NAMES.len() <= super::superblock::EVICTED_AGES);
