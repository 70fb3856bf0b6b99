//! Numbers for new records, and the prefix of them that may be read.
//!
//! A new record has the next number that no thread has used. It may be read once it and every record before it is
//! acknowledged: `latest` draws from that contiguous prefix, so it never asks for a record that may not be there.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use thiserror::Error;

use super::zipfian::Draw;

/// Inserts that may be acknowledged ahead of the oldest one that is not. YCSB's number.
const WINDOW: u64 = 1 << 20;

/// An insert has been without an acknowledgement for so long that the window behind it is full.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("record {oldest} is not acknowledged while record {acknowledged} is, {WINDOW} or more after it")]
pub struct WindowFull {
    oldest: u64,
    acknowledged: u64,
}

/// Numbers for inserts, without gaps and without duplicates across threads.
#[derive(Debug)]
pub struct InsertCounter {
    next: AtomicU64,
    /// Records 0 to `acknowledged - 1` are acknowledged.
    acknowledged: AtomicU64,
    window: Box<[AtomicBool]>,
    sweep: Mutex<()>,
}

impl InsertCounter {
    /// Records 0 to `records - 1` are there; the next insert is number `records`.
    pub fn new(records: u64) -> Self {
        Self {
            next: AtomicU64::new(records),
            acknowledged: AtomicU64::new(records),
            window: (0..WINDOW).map(|_| AtomicBool::new(false)).collect(),
            sweep: Mutex::new(()),
        }
    }

    /// The number of a new record. It must end in [`InsertCounter::acknowledge`]; a thread whose insert failed
    /// tries the same number again, or the prefix stays where it is.
    pub fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// How many records, counted from number 0, are all acknowledged.
    #[inline]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    fn slot(&self, number: u64) -> &AtomicBool {
        &self.window[(number % WINDOW) as usize]
    }

    /// Says that record `number` has been stored.
    ///
    /// # Errors
    /// [`WindowFull`] if `number` is too far ahead of the oldest record that is not acknowledged.
    pub fn acknowledge(&self, number: u64) -> Result<(), WindowFull> {
        let oldest = self.acknowledged();
        if number - oldest >= WINDOW {
            return Err(WindowFull { oldest, acknowledged: number });
        }
        self.slot(number).store(true, Ordering::SeqCst);
        // Whoever holds the lock looks again after giving it back, so a mark made meanwhile is not left behind.
        while self.slot(self.acknowledged.load(Ordering::SeqCst)).load(Ordering::SeqCst) {
            let Ok(_sweeping) = self.sweep.try_lock() else { break };
            let mut end = self.acknowledged.load(Ordering::SeqCst);
            while self.slot(end).swap(false, Ordering::SeqCst) {
                end += 1;
            }
            self.acknowledged.store(end, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// The record that YCSB's `latest` reads: as many before the newest acknowledged one as the draw's rank says.
/// Like there, record 0 is not drawn (unless it is the only one).
#[inline]
pub fn latest_number(draw: Draw, acknowledged: u64) -> u64 {
    let newest = acknowledged.saturating_sub(1);
    newest - draw.rank(newest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::workload::zipfian::{Gray, THETA};

    #[test]
    fn the_prefix_waits_for_the_oldest() {
        let inserts = InsertCounter::new(10);
        let numbers: Vec<u64> = (0..4).map(|_| inserts.take()).collect();
        assert_eq!(numbers, [10, 11, 12, 13]);
        inserts.acknowledge(11).unwrap();
        inserts.acknowledge(13).unwrap();
        assert_eq!(inserts.acknowledged(), 10);
        inserts.acknowledge(10).unwrap();
        assert_eq!(inserts.acknowledged(), 12);
        inserts.acknowledge(12).unwrap();
        assert_eq!(inserts.acknowledged(), 14);
    }

    #[test]
    fn a_window_that_is_full_is_an_error() {
        let inserts = InsertCounter::new(0);
        for number in 1..WINDOW {
            inserts.acknowledge(number).unwrap();
        }
        assert_eq!(inserts.acknowledge(WINDOW), Err(WindowFull { oldest: 0, acknowledged: WINDOW }));
        inserts.acknowledge(0).unwrap();
        assert_eq!(inserts.acknowledged(), WINDOW);
        inserts.acknowledge(WINDOW).unwrap();
        assert_eq!(inserts.acknowledged(), WINDOW + 1);
    }

    #[test]
    fn threads_get_no_gaps_and_no_duplicates_and_read_only_what_is_acknowledged() {
        const START: u64 = 100;
        const EACH: usize = 20_000;
        const THREADS: usize = 4;
        let inserts = InsertCounter::new(START);
        let stored: Vec<AtomicBool> =
            (0..START as usize + THREADS * EACH).map(|n| AtomicBool::new((n as u64) < START)).collect();
        let mut numbers: Vec<u64> = std::thread::scope(|scope| {
            let worker = |thread| {
                let (inserts, stored) = (&inserts, &stored);
                move || {
                    let mut rng = Rng::for_thread(1, thread);
                    let gray = Gray::new(START, THETA);
                    let mut mine = Vec::new();
                    for _ in 0..EACH {
                        let number = inserts.take();
                        mine.push(number);
                        stored[number as usize].store(true, Ordering::Release);
                        inserts.acknowledge(number).unwrap();
                        let read = latest_number(gray.draw(rng.next_f64()), inserts.acknowledged());
                        assert!(stored[read as usize].load(Ordering::Acquire), "record {read} is not there");
                    }
                    mine
                }
            };
            let threads: Vec<_> = (0..THREADS).map(|t| scope.spawn(worker(t))).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        numbers.sort_unstable();
        let expected: Vec<u64> = (START..START + (THREADS * EACH) as u64).collect();
        assert_eq!(numbers, expected);
        assert_eq!(inserts.acknowledged(), START + (THREADS * EACH) as u64);
    }

    #[test]
    fn the_newest_is_the_most_popular() {
        let gray = Gray::new(1000, THETA);
        assert_eq!(latest_number(gray.draw(0.0), 1000), 999);
        assert_eq!(latest_number(gray.draw(0.99), 1), 0);
        let mut rng = Rng::new(3);
        let newest_tenth =
            (0..10_000).filter(|_| latest_number(gray.draw(rng.next_f64()), 1000) >= 900).count();
        assert!(newest_tenth > 6_000, "{newest_tenth} of 10000 draws among the newest tenth");
    }
}
