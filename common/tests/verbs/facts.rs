//! What the device does that no specification promises.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kv_common::region::Words;
use kv_common::verbs::{Completed, ReadSink, RemoteReadable, SendBatch};

use crate::setup::{Taken, connected, side, side_of, take_one};

const LINES: usize = 32;
const WORDS_PER_LINE: usize = 8;
const WORDS: usize = LINES * WORDS_PER_LINE;
/// READs during which stores were made, after which enough was seen.
const RACING: usize = 3_000;
/// READs in all, if stores are rare because there is one processor for both sides.
const READS_MAX: usize = 100_000;

/// Stores the count `n` to every word of line `n % LINES`, `n` rising, until `done`. In all words but the last it is there
/// four times, in 16 bits each, so that a word that is not whole shows; in the last one in full.
fn store_counts(words: &Words, counted: &AtomicU64, done: &AtomicBool) {
    let mut count = 0_u64;
    while !done.load(Ordering::Relaxed) {
        count += 1;
        let line = count as usize % LINES * WORDS_PER_LINE;
        for at in line..line + WORDS_PER_LINE - 1 {
            words.store(at, (count & 0xffff) * 0x0001_0001_0001_0001);
        }
        words.store(line + WORDS_PER_LINE - 1, count);
        counted.store(count, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Seen {
    reads: usize,
    racing: usize,
    torn: Option<u64>,
    ascending: usize,
    descending: usize,
    unexpected: Option<Taken>,
}

#[test]
#[ignore = "needs an RDMA device"]
fn words_are_whole_under_concurrent_stores() {
    let Some(a) = side("words_are_whole_under_concurrent_stores") else { return };
    let b = side_of(a.context.clone());
    let (mut reader, _served) = connected(&a, &b);
    let region = b.memory::<RemoteReadable>(WORDS * 8);
    let sink = a.memory::<ReadSink>(WORDS * 8);
    let remote = region.remote().range(0, WORDS as u64 * 8).unwrap();
    let (counted, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut seen = Seen::default();
    std::thread::scope(|scope| {
        scope.spawn(|| store_counts(region.words(), &counted, &done));
        let mut batch = SendBatch::with_capacity(1);
        let mut words = [0; WORDS];
        while seen.racing < RACING
            && seen.reads < READS_MAX
            && seen.torn.is_none()
            && seen.unexpected.is_none()
        {
            let before = counted.load(Ordering::Relaxed);
            batch.read(1, sink.range(0, WORDS as u64 * 8).unwrap(), remote).unwrap().signalled();
            reader.post_send(&mut batch).unwrap();
            let taken = take_one(&a.queue);
            seen.unexpected = (taken != (1, Ok(Completed::Read))).then_some(taken);
            seen.reads += 1;
            seen.racing += usize::from(counted.load(Ordering::Relaxed) != before);
            sink.words().read_only().copy_out(0, &mut words);
            look_at(&words, &mut seen);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(seen.unexpected, None);
    assert_eq!(seen.torn, None, "a word is made of two stores");
    println!("{} of {} READs raced with stores; no word was torn", seen.racing, seen.reads);
    println!(
        "order of neighbouring lines: {} times ascending, {} times descending, else unknown",
        seen.ascending, seen.descending
    );
    assert!(seen.racing >= RACING, "only {} READs raced with stores: nothing was shown", seen.racing);
}

/// Looks for words that are not whole, and for neighbouring lines that were certainly fetched in ascending or in descending
/// order: at any moment all lines hold counts of the last `LINES` stores (give or take the one under way), so a line whose
/// count is larger by more than that was fetched later.
fn look_at(words: &[u64; WORDS], seen: &mut Seen) {
    for line in words.chunks_exact(WORDS_PER_LINE) {
        let torn =
            line[..WORDS_PER_LINE - 1].iter().find(|&&word| (word & 0xffff) * 0x0001_0001_0001_0001 != word);
        seen.torn = seen.torn.or(torn.copied());
    }
    for line in 1..LINES {
        let count = |line: usize| words[line * WORDS_PER_LINE + WORDS_PER_LINE - 1];
        seen.ascending += usize::from(count(line) > count(line - 1) + LINES as u64 + 1);
        seen.descending += usize::from(count(line - 1) > count(line) + LINES as u64 + 1);
    }
}
