//! Any bytes may come as a request: each message is answered, and nothing breaks.

mod table_support;

use kv_common::hash::payload_hash;
use kv_common::limits::{INLINE_VALUE_MAX_BYTES, KEY_MAX_BYTES, REPLY_CHUNK_BYTES};
use kv_common::region::Words;
use kv_common::wire::{Condition, Malformed, Op, REQUEST_HEADER_BYTES, Refusal, Request, Status, Value};
use proptest::prelude::*;
use table_support::{Client, SESSION, VALUE_MAX_BYTES, table};

fn bytes_of(request: &Request<'_>) -> Vec<u8> {
    request.parts(&request.header()).concat()
}

#[test]
fn another_sessions_number_is_refused() {
    let table = table(8, 1, None);
    let mut client = Client::new(&table, 0);
    let value = Value::Inline(b"v");
    let request = Request::new(5, SESSION + 1, Op::Put, b"k", value);
    let answer = client.message(&bytes_of(&request), None, 5);
    assert_eq!(answer.refusal(), Some(Refusal::Malformed { reason: Malformed::Session }));
    assert_eq!(client.get(b"k").status, Status::NotFound);
}

#[test]
fn the_limits_themselves_are_legal_and_one_more_is_not() {
    let table = table(16, 1, None);
    let mut client = Client::new(&table, 0);
    let key = vec![b'k'; KEY_MAX_BYTES];
    for value_bytes in
        [0, 1, REPLY_CHUNK_BYTES, REPLY_CHUNK_BYTES + 1, INLINE_VALUE_MAX_BYTES, VALUE_MAX_BYTES]
    {
        let value: Vec<u8> = (0..value_bytes).map(|i| (i % 253) as u8).collect();
        assert_eq!(client.put(&key, &value).status, Status::Done, "{value_bytes} bytes");
        let answer = client.get(&key);
        assert_eq!(answer.status, Status::Done);
        assert!(answer.value == value, "{value_bytes} bytes");
    }
    // The header of a request is the client's; lengths beyond the limits are written into it by hand.
    let value = Value::Inline(b"");
    let request = Request::new(9, SESSION, Op::Put, &key, value);
    let mut long_key = bytes_of(&request);
    long_key.push(b'k');
    long_key[26..28].copy_from_slice(&(KEY_MAX_BYTES as u16 + 1).to_le_bytes());
    let found_bytes = KEY_MAX_BYTES as u64 + 1;
    assert_eq!(client.message(&long_key, None, 9).refusal(), Some(Refusal::KeyTooLong { found_bytes }));
    let mut no_key = bytes_of(&request);
    no_key.truncate(REQUEST_HEADER_BYTES);
    no_key[26..28].fill(0);
    assert_eq!(client.message(&no_key, None, 9).refusal(), Some(Refusal::KeyEmpty));
    table.check().expect("the table is sound");
}

#[test]
fn a_staged_value_that_changed_or_lies_outside_changes_nothing() {
    let table = table(8, 1, None);
    let mut client = Client::new(&table, 0);
    let staging = Words::zeroed(8);
    client.put(b"k", b"old");
    let staged = |offset_bytes, len_bytes, hash| Value::Staged { offset_bytes, len_bytes, hash };
    let mut put = |value, staging| client.request(Op::Put, Condition::Always, b"k", value, staging).refusal();
    let outside = |end_bytes, area_bytes| Some(Refusal::StagedOutside { end_bytes, area_bytes });
    assert_eq!(put(staged(0, 65, 0), Some(&staging)), outside(65, 64));
    assert_eq!(put(staged(u64::MAX, 1, 0), Some(&staging)), outside(u64::MAX, 64));
    assert_eq!(put(staged(0, 8, payload_hash(&[0; 8])), None), outside(8, 0));
    let found = payload_hash(&[0; 8]);
    assert_eq!(put(staged(3, 8, 1), Some(&staging)), Some(Refusal::StagedChanged { found }));
    assert_eq!(client.get(b"k").value, b"old");
    let good = client.request(Op::Put, Condition::Always, b"k", staged(3, 8, found), Some(&staging));
    assert_eq!((good.status, client.get(b"k").value), (Status::Done, vec![0; 8]));
}

#[test]
fn a_message_without_a_sequence_number_is_answered_under_zero() {
    let table = table(8, 1, None);
    let mut client = Client::new(&table, 0);
    for len in 0..REQUEST_HEADER_BYTES {
        let answer = client.message(&vec![0xff; len], None, 0);
        assert_eq!(answer.refusal(), Some(Refusal::Malformed { reason: Malformed::Short }));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn arbitrary_messages_are_answered(
        messages in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..120), any::<bool>(), 0u8..16, 0u8..16, 0u16..20, any::<bool>()), 1..50,
        ),
    ) {
        let table = table(8, 1, None);
        let mut client = Client::new(&table, 0);
        let staging = Words::zeroed(16);
        for (mut message, is_plausible, op, flags, key_bytes, is_staged) in messages {
            if is_plausible && message.len() >= REQUEST_HEADER_BYTES {
                let headers = REQUEST_HEADER_BYTES + if flags & 8 != 0 { 8 } else { 0 };
                let inline_bytes = message.len().saturating_sub(headers + key_bytes as usize) as u32;
                message[8..16].copy_from_slice(&SESSION.to_le_bytes());
                (message[24], message[25]) = (op, flags);
                message[26..28].copy_from_slice(&key_bytes.to_le_bytes());
                message[28..32].copy_from_slice(&inline_bytes.to_le_bytes());
            }
            let seq = message.get(..8).filter(|_| message.len() >= REQUEST_HEADER_BYTES);
            let seq = seq.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
            client.message(&message, is_staged.then_some(&staging), seq);
        }
        table.check().expect("the table is sound");
    }
}
