//! The peer: `DashMap<Vec<u8>, Vec<u8>>` in this process, hashed with xxh3, the value copied out.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use dashmap::DashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::deferred::{Deferred, batch_one_by_one, pipelined_by_deferring};
use super::{Factory, Store, StoreError};

/// Hashes the bytes of a key in one call, which is the fastest way for a map to use xxh3.
#[derive(Debug, Clone, Copy, Default)]
pub struct Xxh3Build;

/// The state between the parts of one key.
#[derive(Debug, Clone, Copy, Default)]
pub struct Xxh3Hasher(u64);

impl BuildHasher for Xxh3Build {
    type Hasher = Xxh3Hasher;

    #[inline]
    fn build_hasher(&self) -> Xxh3Hasher {
        Xxh3Hasher::default()
    }
}

impl Hasher for Xxh3Hasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    /// The length of the key, which comes before its bytes; xxh3 hashes it with them anyway.
    #[inline]
    fn write_usize(&mut self, _length: usize) {}

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

type Map = DashMap<Vec<u8>, Vec<u8>, Xxh3Build>;

/// Opens handles of one map.
#[derive(Debug, Clone, Default)]
pub struct DashMapFactory {
    map: Arc<Map>,
}

impl DashMapFactory {
    /// An empty map with room for `records`.
    pub fn with_capacity(records: usize) -> Self {
        Self { map: Arc::new(DashMap::with_capacity_and_hasher(records, Xxh3Build)) }
    }
}

/// A handle of the map.
#[derive(Debug)]
pub struct DashMapStore {
    map: Arc<Map>,
    scratch: Vec<u8>,
    deferred: Deferred,
}

impl Factory for DashMapFactory {
    type Handle = DashMapStore;

    fn open(&self) -> Result<DashMapStore, StoreError> {
        Ok(DashMapStore { map: Arc::clone(&self.map), scratch: Vec::new(), deferred: Deferred::default() })
    }

    fn transport(&self) -> String {
        "dashmap".into()
    }

    fn is_in_process(&self) -> bool {
        true
    }
}

impl Store for DashMapStore {
    #[inline]
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError> {
        let Some(found) = self.map.get(key) else { return Ok(false) };
        value.clear();
        value.extend_from_slice(found.value());
        Ok(true)
    }

    #[inline]
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        if let Some(mut old) = self.map.get_mut(key) {
            let old = old.value_mut();
            old.clear();
            old.extend_from_slice(value);
        } else {
            self.map.insert(key.to_vec(), value.to_vec());
        }
        Ok(())
    }

    batch_one_by_one!();
    pipelined_by_deferring!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Outcome, Request};

    #[test]
    fn a_key_is_hashed_like_its_bytes() {
        let found = Xxh3Build.hash_one(b"user1".to_vec());
        assert_eq!(found, xxhash_rust::xxh3::xxh3_64(b"user1"));
    }

    #[test]
    fn stores_replaces_and_misses() {
        let mut store = DashMapFactory::default().open().unwrap();
        let mut value = b"old contents".to_vec();
        assert_eq!(store.read(b"a", &mut value), Ok(false));
        store.write(b"a", b"1").unwrap();
        store.write(b"a", b"").unwrap();
        assert_eq!(store.read(b"a", &mut value), Ok(true));
        assert_eq!(value, b"");
        store.write(b"b", b"22").unwrap();
        let mut seen = Vec::new();
        store
            .multi_read(&[b"b", b"x", b"a"], |index, found| {
                seen.push((index, found.unwrap().map(<[u8]>::to_vec)))
            })
            .unwrap();
        assert_eq!(seen, [(0, Some(b"22".to_vec())), (1, None), (2, Some(Vec::new()))]);
    }

    #[test]
    fn completions_come_for_every_ticket() {
        let mut store = DashMapFactory::default().open().unwrap();
        let mut value = Vec::new();
        assert!(store.complete(true, &mut value).unwrap().is_none());
        let tickets = [Request::Write(b"k", b"v"), Request::Read(b"k"), Request::Read(b"x")]
            .map(|request| store.submit(request).unwrap());
        for (ticket, outcome) in
            tickets.into_iter().zip([Outcome::Written, Outcome::Found, Outcome::NotFound])
        {
            let done = store.complete(false, &mut value).unwrap().unwrap();
            assert_eq!((done.ticket, done.outcome), (ticket, Ok(outcome)));
        }
        assert_eq!(value, b"v");
    }
}
