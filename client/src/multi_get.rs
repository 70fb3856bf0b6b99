//! Many GETs in one call, overlapped.

use std::collections::VecDeque;

use kv_common::hash::KeyHash;

use crate::driver::{GetNow, InScratch};
use crate::op::{Outcome, Ticket};
use crate::{Client, Error, Value, Version};

/// Keys whose lines and blocks are fetched into the processor's cache together, where READs are loads.
const FETCHED_AHEAD: usize = 16;
/// GETs that are in flight together, where READs take time.
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
        if !self.driver.reads_are_loads() {
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
                    .check(key)
                    .and_then(|()| self.driver.get_at(key, hash, slot, place_epoch, &mut InScratch));
                match found {
                    Ok(GetNow::Found { version, value }) => {
                        visit(index, Ok(Some((self.driver.found_bytes(value), version))));
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
        let mut under_way: VecDeque<Result<Ticket, Error>> = VecDeque::new();
        let mut unposted = keys.iter().map(AsRef::as_ref).peekable();
        for index in 0..keys.len() {
            while let Some(key) = unposted.peek().filter(|_| under_way.len() < POSTED_AHEAD) {
                let posted = self.check(key).and_then(|()| self.driver.submit_get_of_many(key));
                if matches!(posted, Err(Error::TooManyInFlight { .. })) && !under_way.is_empty() {
                    // One of these ends first.
                    break;
                }
                under_way.push_back(posted);
                unposted.next();
            }
            let posted = under_way.pop_front().expect("one at least was posted or failed");
            let value = posted.and_then(|ticket| match self.driver.wait_for(ticket) {
                Outcome::Get(result) => result,
                _ => unreachable!("a GET ends as a GET"),
            });
            visit(index, value.as_ref().map(borrowed).map_err(Clone::clone));
        }
    }
}

fn borrowed(found: &Option<Value>) -> Option<(&[u8], Version)> {
    found.as_ref().map(|value| (&value.bytes[..], value.version))
}
