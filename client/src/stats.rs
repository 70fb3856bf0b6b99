//! What a client counted.

/// Counters of one client since it connected. Nobody else can know them: the server does not see one-sided reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// GETs ended, found or not.
    pub gets: u64,
    /// GETs that found the key.
    pub hits: u64,
    /// GETs that proved that the key is absent.
    pub misses: u64,
    /// Writes ended, of every kind.
    pub writes: u64,
    /// READs of the region made for GETs, index and blocks (not those at connect and warm-up).
    pub reads: u64,
    /// Bytes of those READs.
    pub read_bytes: u64,
    /// Large values, those above 320 KiB, that were read page by page.
    pub large_values: u64,
    /// GETs into registered memory that left the value where its READ ended.
    pub values_in_place: u64,
    /// GETs whose place came from the index cache and was right.
    pub index_cache_hits: u64,
    /// GETs that asked the index cache first.
    pub index_cache_lookups: u64,
    /// Bytes of the index cache.
    pub index_cache_bytes: u64,
    /// Looked again because a block was torn by its writer.
    pub retries_torn: u64,
    /// Looked again because a large block was another one when its last pages were read. Also counted as torn, or stale.
    pub retries_large: u64,
    /// Looked again because a cached place held something else by now.
    pub retries_stale: u64,
    /// Looked again because a block was dead or being written.
    pub retries_dead: u64,
    /// Tried the next match, since the fingerprint was another key's.
    pub other_keys: u64,
    /// Looked again because an overflow line had been given to another home.
    pub overflow_reused: u64,
    /// Overflow lines that were read.
    pub overflow_reads: u64,
    /// Looked again because a lookup took longer than GRACE.
    pub slow_lookups: u64,
    /// Asked the server because a line in which the key was not found was being split.
    pub moving_misses: u64,
    /// Looked again with a new directory.
    pub directory_refreshes: u64,
    /// Started over because the place epoch had been read too long ago when a READ came back; never over shared memory.
    pub leases_expired: u64,
    /// Dropped all places because the place epoch had changed.
    pub place_epochs: u64,
    /// GETs that waited for another look at the server's clock before they could say whether a key's time is over.
    pub clock_looks: u64,
    /// GETs that were answered by the server, for whatever cause.
    pub asked_server: u64,
    /// GETs that waited for a write of the same client to the same key.
    pub waited_for_own_write: u64,
    /// Hits that were reported to a server that evicts. Of all hits a sample is; what finds no credit is dropped.
    pub hits_reported: u64,
    /// Operations that ended by their deadline.
    pub timeouts: u64,
    /// Connections made anew after one was lost.
    pub reconnects: u64,
}
