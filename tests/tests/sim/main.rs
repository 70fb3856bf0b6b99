//! The whole store over a fabric that does its worst: real client, real table, simulated network, thread and time.
//!
//! ```text
//! plan     draws everything from a seed
//! world    lets tasks run, breaks, kills
//! player   a client: its random script (player/draw), and what each operation returned, told to the oracle
//! buffers  GETs into registered memory
//! server   a worker of the table, suspended between any two stores
//! keys     keys that are in each other's way
//! tasks    coroutines
//! totals   what was counted
//! ```
//!
//! A failure prints its seed and the command that plays it again. `KV_SIM_SEEDS` is the number of seeds to play,
//! from `KV_SIM_SEED` on; with `KV_SIM_MUTANT` too, the share of them that find this deliberate fault is printed.

mod buffers;
mod keys;
mod plan;
mod player;
mod server;
mod tasks;
mod totals;
mod world;

use kv_common::adversary::Mutant;
use kv_tests::oracle::UNDECIDED;
use plan::HAULS;
use totals::Totals;
use world::{memory, play};

fn env(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|error| panic!("{name}={value}: {error}")))
}

/// Seeds that a run plays if it is not told otherwise.
const SEEDS: u64 = 200;
/// And so many with values in pages.
const HAUL_SEEDS: u64 = 12;

#[test]
fn random_seeds_find_nothing_wrong() {
    let memory = memory();
    let mut totals = Totals::default();
    let (first, count) = (env("KV_SIM_SEED"), env("KV_SIM_SEEDS"));
    let seeds =
        first.unwrap_or(0)..first.unwrap_or(0) + count.unwrap_or(if first.is_some() { 1 } else { SEEDS });
    let is_single = seeds.end - seeds.start == 1;
    let hauls = if (first, count) == (None, None) { HAULS..HAULS + HAUL_SEEDS } else { 0..0 };
    for seed in seeds.chain(hauls) {
        match play(&memory, seed, None) {
            Ok(report) => {
                if is_single {
                    println!("{report:#?}");
                }
                totals.merge(&report.totals);
            }
            Err(wrong) => panic!(
                "seed {seed}: {wrong}\nplay it again: KV_SIM_SEED={seed} cargo test -p kv-tests --test sim random_seeds -- --nocapture"
            ),
        }
    }
    println!("{totals:#?}");
    if (first, count) == (None, None) {
        assert_rare_branches(&totals);
    }
}

/// A simulation without races, or without the branches that races lead to, would prove nothing. The seeds of a run without
/// `KV_SIM_SEEDS` must reach these by chance alone. (A stale directory and another place epoch cannot happen as long as
/// segments are neither split nor given another kind.)
fn assert_rare_branches(totals: &Totals) {
    let (stats, fabric) = (&totals.stats, &totals.fabric);
    for (what, found, least) in [
        ("GETs that raced with stores", fabric.racing_gets, 10_000),
        ("torn blocks", stats.retries_torn, 100),
        ("stale places", stats.retries_stale, 1000),
        ("large values read page by page", stats.large_values, 100),
        ("large blocks that were others when their last pages were read", stats.retries_large, 1),
        ("blocks that were not live", stats.retries_dead, 1000),
        ("blocks of other keys", stats.other_keys, 1000),
        ("overflow lines that were read", stats.overflow_reads, 1000),
        ("overflow lines that were given away meanwhile", stats.overflow_reused, 1),
        ("lookups slower than GRACE", stats.slow_lookups, 100),
        ("READs that came back after the lease", stats.leases_expired, 1),
        ("GETs answered by the server", stats.asked_server, 1000),
        ("GETs behind a write of their client", stats.waited_for_own_write, 1000),
        ("values left where a READ ended", stats.values_in_place, 1000),
        ("GETs from the index cache", stats.index_cache_hits, 10_000),
        ("writes of unknown outcome", totals.unknown, 100),
        ("refusals", totals.refused, 1),
        ("broken connections", fabric.breaks, 100),
        ("READs that were sent again", fabric.retransmissions, 100),
        ("requests lost", fabric.requests_lost, 100),
        ("replies lost", fabric.replies_lost, 100),
        ("servers killed", totals.kills, 10),
        ("histories judged", totals.checked.histories, 1000),
    ] {
        assert!(found >= least, "{found} {what}, at least {least} are wanted");
    }
    assert!(stats.index_cache_hits <= stats.index_cache_lookups, "a hit is a lookup");
}

#[test]
fn a_seed_determines_everything() {
    let memory = memory();
    for seed in [1, 2, 3] {
        assert_eq!(play(&memory, seed, None), play(&memory, seed, None), "seed {seed}");
    }
}

/// Seeds within which the general simulation must find a deliberate fault.
const MUTANT_SEEDS_MAX: u64 = 200;

#[test]
fn every_mutant_is_found() {
    let memory = memory();
    let wanted = std::env::var("KV_SIM_MUTANT").ok();
    let is_wanted = |mutant: &&Mutant| wanted.as_ref().is_none_or(|wanted| *wanted == format!("{mutant:?}"));
    let first = env("KV_SIM_SEED").unwrap_or(0);
    let mut alive = Vec::new();
    for mutant in Mutant::ALL.iter().filter(is_wanted) {
        // A judge that gave up has found nothing.
        let find =
            |seed| play(&memory, seed, Some(*mutant)).err().filter(|wrong| !wrong.starts_with(UNDECIDED));
        if let (Some(_), Some(seeds)) = (&wanted, env("KV_SIM_SEEDS")) {
            let found = (first..first + seeds).filter(|&seed| find(seed).is_some()).count();
            println!("{mutant:?}: found by {found} of {seeds} seeds");
            continue;
        }
        let is_of_pages = matches!(mutant, Mutant::CheckOnlyHead | Mutant::SkipMarkers);
        let first = if is_of_pages { HAULS + first } else { first };
        match (first..first + MUTANT_SEEDS_MAX).find_map(|seed| Some((seed, find(seed)?))) {
            Some((seed, wrong)) => {
                let wrong = wrong.lines().next().unwrap_or_default();
                println!("{mutant:?}: seed {seed}: {wrong}");
            }
            None => alive.push(mutant),
        }
    }
    assert!(alive.is_empty(), "not found within {MUTANT_SEEDS_MAX} seeds: {alive:?}");
}
