use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn pair(capacity_words: usize) -> (Words, Words, Producer, Consumer) {
    let (control, ring) = (Words::zeroed(CONTROL_WORDS), Words::zeroed(capacity_words));
    let producer = Producer::new(control.clone(), ring.clone());
    let consumer = Consumer::new(control.clone(), ring.clone());
    (control, ring, producer, consumer)
}

fn popped(consumer: &mut Consumer) -> Option<Vec<u8>> {
    let mut out = vec![0xEE; 3];
    let length = consumer.try_pop(&mut out).expect("an honest producer")?;
    assert_eq!(length, out.len());
    Some(out)
}

/// A message whose bytes are all different from those of the one before.
fn message(length_bytes: usize, salt: u8) -> Vec<u8> {
    (0..length_bytes).map(|i| (i as u8).wrapping_mul(31) ^ salt).collect()
}

#[test]
fn a_message_of_several_parts_arrives_as_one() {
    let (_, _, mut producer, mut consumer) = pair(64);
    assert!(consumer.is_empty());
    producer.try_push(&[b"he", b"", b"llo, ", b"ring"]).unwrap();
    producer.try_push(&[]).unwrap();
    assert!(!consumer.is_empty());
    assert_eq!(popped(&mut consumer).as_deref(), Some(&b"hello, ring"[..]));
    assert_eq!(popped(&mut consumer).as_deref(), Some(&b""[..]));
    assert_eq!(popped(&mut consumer), None);
    assert!(consumer.is_empty());
}

#[test]
fn nothing_to_pop_leaves_the_buffer_alone() {
    let (_, _, _, mut consumer) = pair(64);
    let mut out = b"kept".to_vec();
    assert_eq!(consumer.try_pop(&mut out), Ok(None));
    assert_eq!(out, b"kept");
}

#[test]
fn the_limit_fits_and_one_byte_more_is_refused_for_good() {
    for capacity_words in [4, 8, 1024, DEFAULT_CAPACITY_BYTES / 8] {
        let (_, _, mut producer, mut consumer) = pair(capacity_words);
        let limit_bytes = producer.message_max_bytes();
        assert!(limit_bytes <= MESSAGE_MAX_BYTES);
        for salt in 0..20 {
            let largest = message(limit_bytes, salt);
            producer.try_push(&[&largest]).unwrap();
            assert_eq!(popped(&mut consumer), Some(largest));
        }
        let error = producer.try_push(&[&message(limit_bytes, 1), b"x"]).unwrap_err();
        assert_eq!(error, PushError::TooLarge { limit_bytes, found_bytes: limit_bytes + 1 });
    }
}

#[test]
fn full_is_told_and_ends_when_the_consumer_has_read() {
    let (_, _, mut producer, mut consumer) = pair(8);
    // Two words each; the eighth word stays free for the next header.
    for text in [b"aaaaaaaa", b"bbbbbbbb", b"cccccccc"] {
        producer.try_push(&[text]).unwrap();
    }
    assert_eq!(producer.room_bytes(), 0);
    assert_eq!(producer.try_push(&[b"d"]), Err(PushError::Full));
    assert_eq!(popped(&mut consumer).as_deref(), Some(&b"aaaaaaaa"[..]));
    assert_eq!(producer.room_bytes(), 16);
    producer.try_push(&[b"dddddddd"]).unwrap();
    assert_eq!(producer.room_bytes(), 0);
}

#[test]
fn room_is_exactly_what_can_be_pushed() {
    for already in 0..40 {
        let (_, _, mut producer, mut consumer) = pair(64);
        producer.try_push(&[&message(already, 1)]).unwrap();
        popped(&mut consumer).unwrap();
        producer.try_push(&[&message(256 - already, 2)]).unwrap();
        producer.try_push(&[&message(64, 2)]).unwrap();
        let room_bytes = producer.room_bytes();
        let one_more = message(room_bytes + 1, 3);
        assert_eq!(producer.try_push(&[&one_more]), Err(PushError::Full), "{room_bytes}");
        producer.try_push(&[&one_more[..room_bytes]]).unwrap();
    }
}

#[test]
fn bytes_of_older_messages_do_not_leak_into_the_padding() {
    let (_, ring, mut producer, _) = pair(64);
    producer.try_push(&[&[0xFF; 16]]).unwrap();
    producer.try_push(&[&[0xAA; 1]]).unwrap();
    assert_eq!(ring.load(4), 0xAA);
}

/// A user's value that is full of perfect headers never becomes a record, at whatever place of the ring it comes to lie.
#[test]
fn payload_cannot_forge_a_record() {
    for lead_words in 0..32 {
        let (_, _, mut producer, mut consumer) = pair(32);
        let mut sequence = 0;
        for _ in 0..lead_words {
            producer.try_push(&[]).unwrap();
            assert_eq!(popped(&mut consumer).unwrap(), b"");
            sequence += 1;
        }
        for lap in 0..40 {
            // Headers of an empty message with the next few sequence numbers, one of which is the one due there.
            let forged: Vec<u8> =
                (0..14 + lap % 2).flat_map(|i| header(sequence + i, 0).to_le_bytes()).collect();
            producer.try_push(&[&forged]).unwrap();
            sequence += 1;
            assert_eq!(popped(&mut consumer).as_deref(), Some(&forged[..]));
            assert_eq!(popped(&mut consumer), None, "a forged record was believed");
        }
    }
}

#[test]
fn sequence_numbers_wrap_around() {
    let (_, _, mut producer, mut consumer) = pair(64);
    (producer.sequence, consumer.sequence) = (u32::MAX, u32::MAX);
    for text in [b"last ", b"first"] {
        producer.try_push(&[text]).unwrap();
        assert_eq!(popped(&mut consumer).as_deref(), Some(&text[..]));
    }
}

#[test]
fn every_malformed_header_has_its_own_error_and_it_stays() {
    let limit_bytes = 256;
    let cases = [
        (1, RingError::BadHeader { found: 1 }),
        (PRESENT | 1 << 24, RingError::BadHeader { found: PRESENT | 1 << 24 }),
        (header(1, 3), RingError::BadSequence { expected: 0, found: 1 }),
        (header(0, 257), RingError::BadLength { limit_bytes, found_bytes: 257 }),
        (
            header(0, LENGTH_MASK as usize),
            RingError::BadLength { limit_bytes, found_bytes: LENGTH_MASK as usize },
        ),
    ];
    for (word, expected) in cases {
        let (_, ring, _, mut consumer) = pair(64);
        ring.store(0, word);
        assert_eq!(consumer.try_pop(&mut Vec::new()), Err(expected));
        ring.store(0, 0);
        assert_eq!(consumer.try_pop(&mut Vec::new()), Err(expected), "it stays broken");
        assert!(!consumer.is_empty() && !consumer.prepare_sleep(), "nobody sleeps on a broken ring");
    }
}

#[test]
fn progress_that_cannot_be_is_an_error() {
    for (claimed, high) in [(9, 8), (u64::MAX, 8), (3, 8)] {
        let (control, _, mut producer, mut consumer) = pair(8);
        producer.try_push(&[b"12345678"]).unwrap();
        producer.try_push(&[b"12345678"]).unwrap();
        popped(&mut consumer).unwrap();
        popped(&mut consumer).unwrap();
        assert_eq!(producer.room_bytes(), 32);
        producer.try_push(&[b"12345678"]).unwrap();
        producer.try_push(&[b"12345678"]).unwrap();
        control.store(PROGRESS_WORD, claimed);
        let error = RingError::BadProgress { low: 4, high, found: claimed };
        assert_eq!(producer.try_push(&[&[0; 32]]), Err(PushError::Broken(error)));
        assert_eq!(producer.room_bytes(), 0);
    }
}

#[test]
fn the_sleep_flag_is_seen_and_taken_back() {
    let (_, _, mut producer, mut consumer) = pair(64);
    assert!(!producer.needs_wake());
    assert!(consumer.prepare_sleep());
    assert!(producer.needs_wake());
    consumer.woke();
    assert!(!producer.needs_wake());
    producer.try_push(&[b"x"]).unwrap();
    assert!(!consumer.prepare_sleep());
    assert!(!producer.needs_wake(), "who does not sleep need not be woken");
}

#[test]
fn two_threads_exchange_a_million_words_in_order() {
    let (_, _, mut producer, mut consumer) = pair(1024);
    let pushing = std::thread::spawn(move || {
        for i in 0..50_000_u64 {
            let payload = vec![i as u8; (i % 211) as usize];
            while let Err(error) = producer.try_push(&[&i.to_le_bytes(), &payload]) {
                assert_eq!(error, PushError::Full);
                std::thread::yield_now();
            }
        }
    });
    let mut out = Vec::new();
    for i in 0..50_000_u64 {
        while consumer.try_pop(&mut out).unwrap().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(out[..8], i.to_le_bytes());
        assert_eq!(out[8..], vec![i as u8; (i % 211) as usize]);
    }
    pushing.join().unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize, u8),
    Pop,
}

fn step(limit_bytes: usize) -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..limit_bytes + 10, any::<u8>()).prop_map(|(length, salt)| Step::Push(length, salt)),
        2 => (0..20_usize, any::<u8>()).prop_map(|(length, salt)| Step::Push(length, salt)),
        4 => Just(Step::Pop),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The ring is a queue of at most capacity words, for every capacity, size and interleaving.
    #[test]
    fn the_ring_is_a_queue(
        (capacity_words, steps) in (2..9_u32).prop_flat_map(|bits| {
            let capacity_words = 1_usize << bits;
            (Just(capacity_words), prop::collection::vec(step(capacity_words * 4), 1..300))
        })
    ) {
        let (_, _, mut producer, mut consumer) = pair(capacity_words);
        let mut model: VecDeque<Vec<u8>> = VecDeque::new();
        for step in steps {
            match step {
                Step::Push(length_bytes, salt) => {
                    let bytes = message(length_bytes, salt);
                    let (front, back) = bytes.split_at(length_bytes / 3);
                    let used: usize = model.iter().map(|m| 1 + m.len().div_ceil(8)).sum();
                    let expected = if length_bytes > capacity_words * 4 {
                        Err(PushError::TooLarge { limit_bytes: capacity_words * 4, found_bytes: length_bytes })
                    } else if used + 1 + length_bytes.div_ceil(8) + 1 > capacity_words {
                        Err(PushError::Full)
                    } else {
                        Ok(())
                    };
                    prop_assert_eq!(producer.try_push(&[front, back]), expected);
                    if expected.is_ok() {
                        model.push_back(bytes);
                    }
                }
                Step::Pop => {
                    prop_assert_eq!(consumer.is_empty(), model.is_empty());
                    prop_assert_eq!(popped(&mut consumer), model.pop_front());
                }
            }
        }
    }

    /// A producer that stores any words, sometimes nearly right ones, cannot make the consumer panic or loop, and once
    /// the ring is broken it stays so.
    #[test]
    fn a_hostile_producer_only_breaks_its_ring(
        stores in prop::collection::vec((any::<prop::sample::Index>(), hostile_word()), 1..200),
        pops_after_each in 1..4_usize,
    ) {
        let (control, ring, _, mut consumer) = pair(64);
        let mut out = Vec::new();
        let mut broken = None;
        for (at, word) in stores {
            let at = at.index(64 + CONTROL_WORDS);
            if at < 64 { ring.store(at, word) } else { control.store(at - 64, word) }
            for _ in 0..pops_after_each {
                let result = consumer.try_pop(&mut out);
                prop_assert!(out.len() <= 256);
                if let Some(error) = broken {
                    prop_assert_eq!(result, Err(error));
                }
                broken = result.err();
                consumer.prepare_sleep();
                consumer.woke();
            }
        }
    }

    /// A consumer that stores any words into the ring and its control lines cannot make the producer panic, loop, or
    /// store outside of the ring's rules.
    #[test]
    fn a_hostile_consumer_only_breaks_its_ring(
        stores in prop::collection::vec((any::<prop::sample::Index>(), hostile_word(), 0..300_usize), 1..200),
    ) {
        let (control, ring, mut producer, _) = pair(64);
        for (at, word, length_bytes) in stores {
            let at = at.index(64 + CONTROL_WORDS);
            if at < 64 { ring.store(at, word) } else { control.store(at - 64, word) }
            let _ = producer.try_push(&[&message(length_bytes, 7)]);
            producer.needs_wake();
            prop_assert!(producer.room_bytes() <= 256);
            prop_assert!(producer.tail <= producer.head && producer.head - producer.tail <= 64);
        }
    }
}

/// Words of every kind: any, small, and headers that are right but for one field, or right.
fn hostile_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..200_u64,
        (0..8_u32, 0..300_usize).prop_map(|(sequence, length)| header(sequence, length)),
        (0..3_u32, 0..1_usize << LENGTH_BITS).prop_map(|(sequence, length)| header(sequence, length)),
    ]
}
