//! The model checker on the ring's own source: `RUSTFLAGS="--cfg loom" cargo test -p kv-common --lib --release loom`.
//!
//! What it shows: for two threads and a few messages, every interleaving and every order of stores that release,
//! acquire and the fences allow leads to the right messages, in order, with no lost wake-up.
//!
//! What it cannot show: it treats SeqCst loads and stores as acquire and release, so the hand-over to sleep is written
//! with SeqCst *fences*, which it does order among themselves (without either fence `no_wake_up_is_lost` deadlocks in
//! the checker: tried). It does not let a relaxed store become visible before an earlier load of the same thread, so it
//! would not miss the release and acquire of the progress word, which keep a place from being stored to before its
//! loads are done (tried: without them nothing fails here); those two rest on the rules of the memory model alone. It
//! explores no more than a few threads and messages, and knows nothing of another process that breaks the rules: that
//! is what the random tests are for.

use loom::sync::Arc;
use loom::sync::Notify;
use loom::thread;

use super::{CONTROL_WORDS, Consumer, Producer, PushError};
use crate::region::Words;

fn pair(capacity_words: usize) -> (Producer, Consumer) {
    let (control, ring) = (Words::zeroed(CONTROL_WORDS), Words::zeroed(capacity_words));
    (Producer::new(control.clone(), ring.clone()), Consumer::new(control, ring))
}

fn push(producer: &mut Producer, payload: u64) {
    while let Err(error) = producer.try_push(&[&payload.to_le_bytes()]) {
        assert_eq!(error, PushError::Full);
        crate::sync::spin_loop();
    }
}

fn pop(consumer: &mut Consumer, out: &mut Vec<u8>) -> bool {
    consumer.try_pop(out).expect("an honest producer breaks no rule").is_some()
}

/// Four words hold one message and the next header, so that places are used again at once: what is published is whole,
/// in order, and never what the place held before.
#[test]
fn loom_messages_arrive_whole_and_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = pair(4);
        let pushing = thread::spawn(move || {
            for i in 1..=3 {
                push(&mut producer, i);
            }
        });
        let mut out = Vec::new();
        for i in 1..=3_u64 {
            while !pop(&mut consumer, &mut out) {
                crate::sync::spin_loop();
            }
            assert_eq!(out, i.to_le_bytes());
        }
        assert!(!pop(&mut consumer, &mut out));
        pushing.join().unwrap();
    });
}

/// Whoever sees a record sees a header place behind it that is zero or holds the next record, even if an older payload
/// that looked like a header lay there.
#[test]
fn loom_payload_never_becomes_a_header() {
    loom::model(|| {
        let (mut producer, mut consumer) = pair(8);
        let forged = super::header(2, 0);
        // Words 1 and 2 hold what will be taken for the header of record 2 or 3 if it is not cleared in time.
        let payload = [forged.to_le_bytes(), forged.to_le_bytes(), forged.to_le_bytes()].concat();
        let mut out = Vec::new();
        producer.try_push(&[&payload]).unwrap();
        assert!(pop(&mut consumer, &mut out));
        producer.try_push(&[&payload[..16]]).unwrap();
        assert!(pop(&mut consumer, &mut out));
        let pushing = thread::spawn(move || producer.try_push(&[b"12345678"]).unwrap());
        let mut seen = 0;
        for _ in 0..2 {
            if pop(&mut consumer, &mut out) {
                assert_eq!(out, b"12345678");
                seen += 1;
            }
        }
        pushing.join().unwrap();
        seen += u64::from(pop(&mut consumer, &mut out));
        assert_eq!(seen, 1);
        assert!(!pop(&mut consumer, &mut out));
    });
}

/// A consumer that sleeps whenever it is told that it may gets every message: the checker reports a deadlock if a
/// wake-up is lost.
#[test]
fn loom_no_wake_up_is_lost() {
    loom::model(|| {
        let (mut producer, mut consumer) = pair(8);
        let doorbell = Arc::new(Notify::new());
        let ringing = Arc::clone(&doorbell);
        let pushing = thread::spawn(move || {
            for i in 1..=2 {
                push(&mut producer, i);
                if producer.needs_wake() {
                    ringing.notify();
                }
            }
        });
        let mut out = Vec::new();
        for i in 1..=2_u64 {
            while !pop(&mut consumer, &mut out) {
                if consumer.prepare_sleep() {
                    doorbell.wait();
                    consumer.woke();
                }
            }
            assert_eq!(out, i.to_le_bytes());
        }
        pushing.join().unwrap();
    });
}

/// The word memory's way to publish: relaxed stores of the payload, a release store of the word that says "ready", and
/// on the other side `load_acquire` and a copy.
#[test]
fn loom_published_words_are_seen() {
    loom::model(|| {
        let words = Words::zeroed(3);
        let written = words.clone();
        let writer = thread::spawn(move || {
            written.copy_in(1, &[7, 8]);
            written.store_release(0, 1);
        });
        if words.load_acquire(0) == 1 {
            let mut out = [0; 2];
            words.copy_out(1, &mut out);
            assert_eq!(out, [7, 8]);
        }
        writer.join().unwrap();
    });
}

/// The reader's way to validate: what is loaded after `copy_out` is not older than the copy, so a version that did not
/// change before and after means that the copy is of that version.
#[test]
fn loom_a_copy_is_not_newer_than_what_is_loaded_after_it() {
    loom::model(|| {
        let words = Words::zeroed(2);
        let written = words.clone();
        let writer = thread::spawn(move || {
            written.store_release(0, 1);
            written.store_release(1, 1);
        });
        let mut copied = [0];
        words.copy_out(1, &mut copied);
        if copied[0] == 1 {
            assert_eq!(words.load(0), 1, "the earlier store must be visible");
        }
        writer.join().unwrap();
    });
}
