//! `cache`: the store as a cache of more records than it has room for. Each operation is a GET; a miss is followed by a PUT.
//!
//! The same operations are then played on an exact LRU of as many bytes of keys and values as the store held at the end: a
//! difference is that of what goes, not of how densely records lie.

pub mod lru;

use std::time::Instant;

use kv_client::{Client, Options, ServerStat};
use serde::Serialize;

use crate::store::StoreError;
use crate::store::kv::store_error;
use crate::workload::keys::fnv_hash;
use crate::workload::{Chooser, WorkloadPlan};

use lru::Lru;

/// Bytes at the start of a value that name its record.
const VALUE_BYTES_MIN: usize = 8;

/// What is run.
#[derive(Debug)]
pub struct CachePlan {
    /// Records, their keys and popularity.
    pub workload: WorkloadPlan,
    /// Smallest and largest value; each record has its size.
    pub value_bytes: (usize, usize),
    /// Operations before the measurement, and in it.
    pub warmup: u64,
    /// See `warmup`.
    pub operations: u64,
}

/// What was found.
#[derive(Debug, Serialize)]
pub struct CacheResult {
    /// Operations that were measured.
    pub operations: u64,
    /// Those of them that found the record.
    pub hits: u64,
    /// The same of the LRU.
    pub lru_hits: u64,
    /// Bytes of keys and values that the store held at the end, and the LRU at most.
    pub data_bytes: u64,
    /// Keys that the store held at the end.
    pub keys: u64,
    /// Operations per second, PUTs counted with the GETs that they follow.
    pub operations_per_s: f64,
    /// Keys that the server evicted, in the warm-up too.
    pub evictions: u64,
    /// Hits that the server was told of, in the warm-up too.
    pub hits_reported: u64,
}

impl CacheResult {
    /// The share of operations that found the record.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.operations.max(1) as f64
    }

    /// The same of the LRU.
    pub fn lru_hit_ratio(&self) -> f64 {
        self.lru_hits as f64 / self.operations.max(1) as f64
    }

    /// How many percentage points the store is above the LRU.
    pub fn points_above_lru(&self) -> f64 {
        (self.hit_ratio() - self.lru_hit_ratio()) * 100.0
    }

    /// For people.
    pub fn text(&self) -> String {
        format!(
            "cache: {} operations, {:.0}/s\n\
             hit ratio      {:.4}\n\
             exact LRU      {:.4}  over the same operations, of {} bytes of keys and values, which the store held\n\
             difference     {:+.2} percentage points\n\
             server         {} keys, {} evicted, {} hits reported",
            self.operations,
            self.operations_per_s,
            self.hit_ratio(),
            self.lru_hit_ratio(),
            self.data_bytes,
            self.points_above_lru(),
            self.keys,
            self.evictions,
            self.hits_reported,
        )
    }
}

impl CachePlan {
    /// Bytes of the value of a record.
    fn value_bytes_of(&self, record: u32) -> usize {
        let (least, most) = self.value_bytes;
        let spread = (most - least) as u64 + 1;
        (least + (fnv_hash(u64::from(record)) % spread) as usize).max(VALUE_BYTES_MIN)
    }

    /// Writes the value of a record.
    fn write_value(&self, record: u32, value: &mut Vec<u8>) {
        value.clear();
        value.extend_from_slice(&u64::from(record).to_le_bytes());
        value.resize(self.value_bytes_of(record), record as u8);
    }

    /// The hits of an LRU of so many bytes over the same operations.
    fn lru_hits(&self, records: &[u32], capacity_bytes: u64) -> u64 {
        let mut key = vec![0; self.workload.keys.bytes_max()];
        let sizes: Vec<u64> = (0..self.workload.records as u32)
            .map(|record| {
                let key_bytes = self.workload.keys.write(u64::from(record), &mut key);
                (key_bytes + self.value_bytes_of(record)) as u64
            })
            .collect();
        let mut lru = Lru::new(self.workload.records as u32, capacity_bytes);
        let hits = records.iter().map(|&record| lru.use_record(record, |record| sizes[record as usize]));
        hits.skip(self.warmup as usize).filter(|&is_hit| is_hit).count() as u64
    }
}

/// Runs it over a connection of its own.
///
/// # Errors
/// Those of the store; [`StoreError::Failed`] if a value is not that of its key.
pub fn run(url: &str, options: &Options, plan: &CachePlan) -> Result<CacheResult, StoreError> {
    let mut client = Client::connect_with(url, options).map_err(store_error)?;
    let chooser = Chooser::new(&plan.workload)
        .ok_or_else(|| StoreError::Failed("a cache needs a distribution that is drawn from".into()))?;
    let mut rng = crate::rng::Rng::new(plan.workload.seed);
    let records: Vec<u32> = (0..plan.warmup + plan.operations)
        .map(|_| chooser.number(&mut rng, plan.workload.records) as u32)
        .collect();
    let (mut key, mut value, mut hits) = (vec![0; plan.workload.keys.bytes_max()], Vec::new(), 0);
    let mut began = Instant::now();
    for (i, &record) in records.iter().enumerate() {
        if i as u64 == plan.warmup {
            (began, hits) = (Instant::now(), 0);
        }
        let key_bytes = plan.workload.keys.write(u64::from(record), &mut key);
        let key = &key[..key_bytes];
        if client.get_to_vec(key, &mut value).map_err(store_error)?.is_some() {
            if value.len() != plan.value_bytes_of(record) || value[..8] != u64::from(record).to_le_bytes() {
                return Err(StoreError::Failed(format!("record {record} has another one's value")));
            }
            hits += 1;
        } else {
            plan.write_value(record, &mut value);
            client.put(key, &value).map_err(store_error)?;
        }
    }
    let operations_per_s = plan.operations as f64 / began.elapsed().as_secs_f64();
    let stat = client.server_stat().map_err(store_error)?;
    let counter = |stat: &ServerStat, name| stat.counters.get(name).copied().unwrap_or(0);
    let data_bytes = counter(&stat, "data_bytes");
    Ok(CacheResult {
        operations: plan.operations,
        hits,
        lru_hits: plan.lru_hits(&records, data_bytes),
        data_bytes,
        keys: counter(&stat, "keys"),
        operations_per_s,
        evictions: counter(&stat, "evictions"),
        hits_reported: counter(&stat, "hits_reported"),
    })
}
