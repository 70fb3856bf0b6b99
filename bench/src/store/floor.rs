//! The floor: the least that any hash table does for a GET of a value that is not in the processor's caches. Hash the
//! key, load one word of an index, copy the value from where the word says. Nothing is compared or checked.
//!
//! The index has as many bytes as the store's, 64 for every 5.25 keys (seven slots a line, 75 % of them full), and
//! the values lie as far apart as the store's blocks. Index words have four bytes here, so that few keys share one:
//! 85 % of the keys have a value of their own, which makes the floor a little faster than fair. Both areas are asked for on huge pages
//! as the store's region is.

use std::io;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::deferred::{Deferred, batch_one_by_one, pipelined_by_deferring};
use super::pages::Area;
use super::{Factory, Store, StoreError};
use crate::rng::Rng;
use crate::workload::keys::KeyFormat;

/// Header of the store's blocks, in bytes.
const BLOCK_HEADER_BYTES: usize = 24;
/// Blocks start at multiples of this many bytes.
const GRANULE_BYTES: usize = 16;
const LINE_BYTES: u64 = 64;
/// Keys of a line at 75 % fill, times four.
const QUARTER_KEYS_PER_LINE: u64 = 21;
const WORD_BYTES: usize = 4;

/// Bytes of the store's index for `records` keys at 75 % fill.
pub fn index_bytes(records: u64) -> u64 {
    (records * 4).div_ceil(QUARTER_KEYS_PER_LINE).max(1) * LINE_BYTES
}

#[derive(Debug)]
struct Table {
    index: Area,
    words: u64,
    values: Area,
    block_bytes: usize,
    value_bytes: usize,
}

/// Opens handles of one floor.
#[derive(Debug, Clone)]
pub struct FloorFactory {
    table: Arc<Table>,
}

impl Table {
    /// Where in the index the word for `key` starts.
    #[inline]
    fn word_at(&self, key: &[u8]) -> usize {
        ((u128::from(xxh3_64(key)) * u128::from(self.words)) >> 64) as usize * WORD_BYTES
    }
}

impl FloorFactory {
    /// A floor for the keys of `records` records (fewer than 2^32) with values of `value_bytes`, filled. With `huge`,
    /// on huge pages as far as there are any.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(records: u64, keys: KeyFormat, value_bytes: usize, huge: bool) -> io::Result<Self> {
        let blocks = u32::try_from(records)
            .map_err(|_| io::Error::other(format!("{records} records; the floor holds fewer than 2^32")))?;
        let block_bytes =
            (BLOCK_HEADER_BYTES + keys.bytes_max() + value_bytes).next_multiple_of(GRANULE_BYTES);
        let mut values = Area::new(blocks as usize * block_bytes, huge)?;
        let mut rng = Rng::new(1);
        for word in values.bytes_mut().chunks_exact_mut(8) {
            word.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        let bytes = index_bytes(records) as usize;
        let words = (bytes / WORD_BYTES) as u64;
        let mut table = Table { index: Area::new(bytes, huge)?, words, values, block_bytes, value_bytes };
        let mut key = vec![0; keys.bytes_max()];
        // Of keys that share a word, the last one has its own value, and the others read that one.
        for block in 0..blocks {
            let key_bytes = keys.write(u64::from(block), &mut key);
            let at = table.word_at(&key[..key_bytes]);
            table.index.bytes_mut()[at..at + WORD_BYTES].copy_from_slice(&block.to_le_bytes());
        }
        Ok(Self { table: Arc::new(table) })
    }

    /// Bytes of the index.
    pub fn index_bytes(&self) -> u64 {
        self.table.words * WORD_BYTES as u64
    }
}

/// A handle of the floor.
#[derive(Debug)]
pub struct FloorStore {
    table: Arc<Table>,
    scratch: Vec<u8>,
    deferred: Deferred,
}

impl Factory for FloorFactory {
    type Handle = FloorStore;

    fn open(&self) -> Result<FloorStore, StoreError> {
        Ok(FloorStore { table: Arc::clone(&self.table), scratch: Vec::new(), deferred: Deferred::default() })
    }

    fn transport(&self) -> String {
        "floor".into()
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("floor_index_pages", self.table.index.describe()),
            ("floor_value_pages", self.table.values.describe()),
        ]
    }
}

impl Store for FloorStore {
    #[inline]
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError> {
        let table = &*self.table;
        let word_at = table.word_at(key);
        let mut block = [0; WORD_BYTES];
        block.copy_from_slice(&table.index.bytes()[word_at..word_at + WORD_BYTES]);
        let at = u32::from_le_bytes(block) as usize * table.block_bytes;
        value.clear();
        value.extend_from_slice(&table.values.bytes()[at..at + table.value_bytes]);
        Ok(true)
    }

    /// The floor's values are made when it is; a write changes nothing.
    fn write(&mut self, _key: &[u8], _value: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }

    batch_one_by_one!();
    pipelined_by_deferring!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_as_large_as_the_stores() {
        // 64 bytes for 5.25 keys are 12.19 bytes per key.
        assert_eq!(index_bytes(1_000_000), 12_190_528);
        let floor = FloorFactory::new(1_000_000, KeyFormat::default(), 8, false).unwrap();
        assert_eq!(floor.index_bytes(), 12_190_528);
    }

    #[test]
    fn reads_give_the_asked_bytes_and_touch_most_blocks() {
        let mut store = FloorFactory::new(10_000, KeyFormat::default(), 64, true).unwrap().open().unwrap();
        let mut value = Vec::new();
        let mut values = std::collections::HashSet::new();
        for number in 0..10_000 {
            let key = KeyFormat::default().key(number);
            assert!(store.read(&key, &mut value).unwrap());
            assert_eq!(value.len(), 64);
            values.insert(value.clone());
        }
        // Keys fall on 3.05 words each: (1 - e^(-1 / 3.05)) * 3.05 = 85 % of them have one of their own.
        assert!((8_300..8_800).contains(&values.len()), "{} different values for 10000 keys", values.len());
    }

    #[test]
    fn the_smallest_floor_works() {
        let mut store = FloorFactory::new(1, KeyFormat::default(), 0, false).unwrap().open().unwrap();
        let mut value = vec![1];
        assert!(store.read(b"k", &mut value).unwrap());
        assert!(value.is_empty());
    }
}
