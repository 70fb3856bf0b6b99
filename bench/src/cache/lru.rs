//! An exact LRU of so many bytes: what the store's hit ratio is held against.

/// No record.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Link {
    newer: u32,
    older: u32,
    is_in: bool,
}

/// Records by their number, in the order of their last use.
#[derive(Debug)]
pub struct Lru {
    links: Vec<Link>,
    newest: u32,
    oldest: u32,
    used_bytes: u64,
    capacity_bytes: u64,
}

impl Lru {
    /// An empty one, of records with numbers below `records`.
    pub fn new(records: u32, capacity_bytes: u64) -> Self {
        let links = vec![Link { newer: NONE, older: NONE, is_in: false }; records as usize];
        Self { links, newest: NONE, oldest: NONE, used_bytes: 0, capacity_bytes }
    }

    /// Uses a record: true if it was there. If not it is there now, and the oldest ones have gone for it. `bytes` says how
    /// large a record is.
    pub fn use_record(&mut self, record: u32, bytes: impl Fn(u32) -> u64) -> bool {
        let was_in = self.links[record as usize].is_in;
        if was_in {
            self.unlink(record);
        } else {
            self.used_bytes += bytes(record);
        }
        self.link_newest(record);
        while self.used_bytes > self.capacity_bytes && self.oldest != record {
            let oldest = self.oldest;
            self.unlink(oldest);
            self.used_bytes -= bytes(oldest);
        }
        was_in
    }

    fn link_newest(&mut self, record: u32) {
        let older = std::mem::replace(&mut self.newest, record);
        self.links[record as usize] = Link { newer: NONE, older, is_in: true };
        match self.links.get_mut(older as usize) {
            Some(link) => link.newer = record,
            None => self.oldest = record,
        }
    }

    fn unlink(&mut self, record: u32) {
        let Link { newer, older, .. } = self.links[record as usize];
        self.links[record as usize].is_in = false;
        match self.links.get_mut(newer as usize) {
            Some(link) => link.older = older,
            None => self.newest = older,
        }
        match self.links.get_mut(older as usize) {
            Some(link) => link.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn it_is_a_list_in_the_order_of_use() {
        let bytes = |record: u32| 1 + u64::from(record % 7);
        let (mut lru, mut list, mut rng) = (Lru::new(100, 60), Vec::new(), Rng::new(3));
        for _ in 0..20_000 {
            let record = rng.below(10 + rng.clone().below(90)) as u32;
            let before = list.len();
            list.retain(|&other| other != record);
            let was_in = list.len() < before;
            list.push(record);
            while list.iter().map(|&record| bytes(record)).sum::<u64>() > 60 {
                list.remove(0);
            }
            assert_eq!(lru.use_record(record, bytes), was_in);
        }
    }

    #[test]
    fn a_record_larger_than_everything_is_there_alone() {
        let mut lru = Lru::new(3, 10);
        let bytes = |record| if record == 2 { 50 } else { 5 };
        assert_eq!([0, 1, 0, 1].map(|record| lru.use_record(record, bytes)), [false, false, true, true]);
        assert_eq!([2, 2, 0].map(|record| lru.use_record(record, bytes)), [false, true, false]);
    }
}
