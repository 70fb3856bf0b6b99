//! What was counted while seeds were played.

use kv_client::Stats;
use kv_common::transport::sim::FabricCounts;
use kv_tests::oracle::Checked;

use crate::server::Grown;

/// What the clients of one or many seeds counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) stats: Stats,
    pub(crate) fabric: FabricCounts,
    pub(crate) checked: Checked,
    /// As of the last life of each server.
    pub(crate) grown: Grown,
    /// Writes of unknown outcome, as the clients were told.
    pub(crate) unknown: u64,
    /// Requests that the server refused: no room.
    pub(crate) refused: u64,
    /// Writes of values whose time ends.
    pub(crate) expiring_writes: u64,
    /// Times that the server was stopped.
    pub(crate) stops: u64,
    /// Servers killed.
    pub(crate) kills: u64,
    pub(crate) steps: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, stats: &Stats) {
        sum_stats(&mut self.stats, stats);
    }

    /// Adds what another seed counted.
    pub(crate) fn merge(&mut self, other: &Totals) {
        self.add(&other.stats);
        let (sum, fabric) = (&mut self.fabric, &other.fabric);
        sum.reads += fabric.reads;
        sum.racing_gets += fabric.racing_gets;
        sum.retransmissions += fabric.retransmissions;
        sum.breaks += fabric.breaks;
        sum.requests_lost += fabric.requests_lost;
        sum.replies_lost += fabric.replies_lost;
        sum.requests_after_break += fabric.requests_after_break;
        sum.stalls += fabric.stalls;
        self.checked.histories += other.checked.histories;
        self.checked.operations += other.checked.operations;
        self.checked.unknown += other.checked.unknown;
        let (sum, grown) = (&mut self.grown, &other.grown);
        sum.splits += grown.splits;
        sum.splits_at_end += grown.splits_at_end;
        sum.keys_moved += grown.keys_moved;
        sum.inserts_waited += grown.inserts_waited;
        sum.copied_at_end += grown.copied_at_end;
        sum.segments_reused += grown.segments_reused;
        sum.blocks_moved += grown.blocks_moved;
        sum.writes_waited += grown.writes_waited;
        sum.expired += grown.expired;
        sum.evictions += grown.evictions;
        sum.hits_reported += grown.hits_reported;
        self.unknown += other.unknown;
        self.refused += other.refused;
        self.expiring_writes += other.expiring_writes;
        self.stops += other.stops;
        self.kills += other.kills;
        self.steps += other.steps;
    }
}

/// Sums over clients.
fn sum_stats(into: &mut Stats, of: &Stats) {
    let Stats {
        gets,
        hits,
        misses,
        writes,
        reads,
        read_bytes,
        large_values,
        values_in_place,
        index_cache_hits,
        index_cache_lookups,
        index_cache_bytes: _,
        retries_torn,
        retries_large,
        retries_stale,
        retries_dead,
        other_keys,
        overflow_reused,
        overflow_reads,
        slow_lookups,
        moving_misses,
        directory_refreshes,
        leases_expired,
        place_epochs,
        clock_looks,
        asked_server,
        waited_for_own_write,
        hits_reported,
        timeouts,
        reconnects,
    } = *of;
    into.gets += gets;
    into.hits += hits;
    into.misses += misses;
    into.writes += writes;
    into.reads += reads;
    into.read_bytes += read_bytes;
    into.large_values += large_values;
    into.retries_large += retries_large;
    into.values_in_place += values_in_place;
    into.index_cache_hits += index_cache_hits;
    into.index_cache_lookups += index_cache_lookups;
    into.retries_torn += retries_torn;
    into.retries_stale += retries_stale;
    into.retries_dead += retries_dead;
    into.other_keys += other_keys;
    into.overflow_reused += overflow_reused;
    into.overflow_reads += overflow_reads;
    into.slow_lookups += slow_lookups;
    into.moving_misses += moving_misses;
    into.directory_refreshes += directory_refreshes;
    into.leases_expired += leases_expired;
    into.place_epochs += place_epochs;
    into.clock_looks += clock_looks;
    into.asked_server += asked_server;
    into.waited_for_own_write += waited_for_own_write;
    into.hits_reported += hits_reported;
    into.timeouts += timeouts;
    into.reconnects += reconnects;
}
