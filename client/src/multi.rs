//! Many operations in one call, overlapped.

use std::collections::VecDeque;

use kv_common::hash::KeyHash;

use crate::driver::{GetNow, InScratch};
use crate::op::{Change, Outcome, Ticket, Write};
use crate::{Client, Error, Value, Version};

/// Keys whose lines and blocks are fetched into the processor's cache together, where READs are loads.
const FETCHED_AHEAD: usize = 16;
/// Operations that are in flight together: writes, and GETs where READs take time.
const POSTED_AHEAD: usize = 64;

impl Client {
    /// The values of many keys: one result per key, in their order; one that fails fails alone. READs are overlapped,
    /// so this is a few times faster than as many [`Client::get`]s.
    pub fn multi_get(&mut self, keys: &[impl AsRef<[u8]>]) -> Vec<Result<Option<Value>, Error>> {
        let mut results = Vec::with_capacity(keys.len());
        self.multi_get_with(keys, |_, result| {
            results.push(
                result.map(|found| found.map(|(bytes, version)| Value { bytes: bytes.to_vec(), version })),
            );
        });
        results
    }

    /// As [`Client::multi_get`], but lets `visit` look at each value, called once per key with its index, in order.
    pub fn multi_get_with<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut visit: impl FnMut(usize, Result<Option<(&[u8], Version)>, Error>),
    ) {
        // A place learned over one connection means nothing to the next: it is made anew here, or not before the end.
        let is_live = self.check_fork().and_then(|()| self.live().map(|_| ()));
        if let Err(error) = is_live {
            return (0..keys.len()).for_each(|index| visit(index, Err(error.clone())));
        }
        if !self.driver.gets_are_loads() {
            return self.multi_get_posted(keys, visit);
        }
        for (batch_index, batch) in keys.chunks(FETCHED_AHEAD).enumerate() {
            let place_epoch = self.driver.cache.place_epoch();
            let mut probes = [(KeyHash(0), None); FETCHED_AHEAD];
            for ((hash, _), key) in probes.iter_mut().zip(batch) {
                *hash = self.driver.prefetch_lines(key.as_ref());
            }
            for (hash, slot) in &mut probes[..batch.len()] {
                *slot = self.driver.prefetch_block(*hash);
            }
            for (i, (key, &(hash, slot))) in batch.iter().zip(&probes).enumerate() {
                let index = batch_index * FETCHED_AHEAD + i;
                let key = key.as_ref();
                let found = self
                    .check_key(key)
                    .and_then(|()| self.driver.get_at(key, hash, slot, place_epoch, &mut InScratch));
                match found {
                    Ok(GetNow::Found { version, value }) => {
                        visit(index, Ok(Some((self.driver.found_bytes(value), version))));
                    }
                    Ok(GetNow::FoundLarge { version }) => {
                        visit(index, Ok(Some((&self.driver.take_large(), version))));
                    }
                    Ok(GetNow::Absent) => visit(index, Ok(None)),
                    Ok(GetNow::Ask | GetNow::Submit) => {
                        let value = self.get(key);
                        visit(index, value.as_ref().map(borrowed).map_err(Clone::clone));
                    }
                    Err(error) => visit(index, Err(error)),
                }
            }
        }
    }

    /// The same where READs take time: the next GETs are under way while one is waited for.
    fn multi_get_posted<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut visit: impl FnMut(usize, Result<Option<(&[u8], Version)>, Error>),
    ) {
        self.each_posted(
            keys.len(),
            |client, index| {
                let key = keys[index].as_ref();
                client.check_key(key).and_then(|()| client.driver.submit_get_of_many(key))
            },
            |index, ended| {
                let value = ended.and_then(|outcome| match outcome {
                    Outcome::Get(result) => result,
                    _ => unreachable!("a GET ends as a GET"),
                });
                visit(index, value.as_ref().map(borrowed).map_err(Clone::clone));
            },
        );
    }

    /// Stores many pairs of key and value: the version of each, or what became of it, in their order; one that fails fails
    /// alone. Pairs of one key are stored in their order. Requests are under way together, so this is several times faster
    /// than as many [`Client::put`]s.
    pub fn multi_put(
        &mut self,
        pairs: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)],
    ) -> Vec<Result<Version, Error>> {
        let mut results = Vec::with_capacity(pairs.len());
        self.each_written(
            pairs.len(),
            |index| pairs[index].0.as_ref(),
            |client, index| {
                let value = pairs[index].1.as_ref();
                client.driver.check_value_bytes(value.len())?;
                Ok(Write::plain(Change::Put(value.to_vec())))
            },
            |ended| {
                results.push(ended.and_then(|outcome| match outcome {
                    Outcome::Put(result) => result,
                    _ => unreachable!("a PUT ends as a PUT"),
                }));
            },
        );
        results
    }

    /// Deletes many keys: whether each was there, in their order; one that fails fails alone. A key that is given twice is
    /// there only once. As fast as [`Client::multi_put`].
    pub fn multi_delete(&mut self, keys: &[impl AsRef<[u8]>]) -> Vec<Result<bool, Error>> {
        let mut results = Vec::with_capacity(keys.len());
        self.each_written(
            keys.len(),
            |index| keys[index].as_ref(),
            |_, _| Ok(Write::plain(Change::Delete)),
            |ended| {
                results.push(ended.and_then(|outcome| match outcome {
                    Outcome::Delete(result) => result,
                    _ => unreachable!("a DELETE ends as a DELETE"),
                }));
            },
        );
        results
    }

    fn each_written<'k>(
        &mut self,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        write: impl Fn(&Client, usize) -> Result<Write, Error>,
        mut visit: impl FnMut(Result<Outcome, Error>),
    ) {
        let is_live = self.check_fork().and_then(|()| self.live().map(|_| ()));
        if let Err(error) = is_live {
            return (0..count).for_each(|_| visit(Err(error.clone())));
        }
        self.each_posted(
            count,
            |client, index| {
                client.check_key(key(index))?;
                let write = write(client, index)?;
                client.driver.submit_write(key(index), write)
            },
            |_, ended| visit(ended),
        );
    }

    /// Submits operations in their order, so many ahead of the one that is waited for.
    fn each_posted(
        &mut self,
        count: usize,
        mut submit: impl FnMut(&mut Client, usize) -> Result<Ticket, Error>,
        mut visit: impl FnMut(usize, Result<Outcome, Error>),
    ) {
        let mut under_way: VecDeque<Result<Ticket, Error>> = VecDeque::new();
        let mut unposted = 0..count;
        for index in 0..count {
            while under_way.len() < POSTED_AHEAD && !unposted.is_empty() {
                let posted = submit(self, unposted.start);
                if matches!(posted, Err(Error::TooManyInFlight { .. })) && !under_way.is_empty() {
                    // One of these ends first.
                    break;
                }
                under_way.push_back(posted);
                unposted.start += 1;
            }
            let posted = under_way.pop_front().expect("one at least was posted or failed");
            visit(index, posted.map(|ticket| self.driver.wait_for(ticket)));
        }
    }
}

fn borrowed(found: &Option<Value>) -> Option<(&[u8], Version)> {
    found.as_ref().map(|value| (&value.bytes[..], value.version))
}
