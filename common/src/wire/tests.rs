//! The bytes of messages, and messages of any bytes.

use super::*;
use proptest::prelude::*;

fn message(request: &Request) -> Vec<u8> {
    request.parts(&request.header()).concat()
}

#[test]
fn golden_request() {
    let value = Value::Inline(b"v");
    let request = Request { condition: Condition::Version(3), ..Request::new(1, 2, Op::Put, b"k", value) };
    let golden = b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x02\x06\x01\0\x01\0\0\0kv";
    assert_eq!(message(&request), golden);
    assert_eq!(Request::decode(golden), Ok(request));
    let request =
        Request { ttl_ns: Some(0x1234), ..Request::new(1, 2, Op::GetAndTouch, b"k", Value::Inline(b"")) };
    let golden =
        b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x07\x08\x01\0\0\0\0\0\x34\x12\0\0\0\0\0\0k";
    assert_eq!(message(&request), golden);
    assert_eq!(Request::decode(golden), Ok(request));
}

#[test]
fn refusals_name_the_reason() {
    let put = |key: &[u8], value: &[u8]| {
        let mut bytes = vec![0; 24];
        bytes.extend_from_slice(&[2, 0]);
        bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        [&bytes[..], key, value].concat()
    };
    let refusal = |bytes: &[u8]| Request::decode(bytes).unwrap_err().1;
    assert_eq!(refusal(&[0; 31]), Refusal::Malformed { reason: Malformed::Short });
    assert_eq!(refusal(&put(b"", b"v")), Refusal::KeyEmpty);
    assert_eq!(refusal(&put(&[1; KEY_MAX_BYTES + 1], b"")), Refusal::KeyTooLong { found_bytes: 1025 });
    assert!(Request::decode(&put(&[1; KEY_MAX_BYTES], &[])).is_ok());
    let staged = Value::Staged { offset_bytes: 0, len_bytes: VALUE_MAX_BYTES as u32 + 1, hash: 0 };
    let too_large = message(&Request::new(1, 2, Op::Put, b"k", staged));
    assert!(matches!(refusal(&too_large), Refusal::ValueTooLarge { .. }));
    let mut truncated = put(b"key", b"value");
    truncated.pop();
    assert_eq!(refusal(&truncated), Refusal::Malformed { reason: Malformed::Length });
}

fn any_condition() -> impl Strategy<Value = Condition> {
    (0u8..4, any::<u64>()).prop_map(|(kind, operand)| Condition::decode(kind, operand))
}

#[test]
fn conditions_hold_of_what_they_name() {
    let holds = |condition: Condition| [None, Some(7), Some(8)].map(|version| condition.holds(version));
    assert_eq!(holds(Condition::Always), [true, true, true]);
    assert_eq!(holds(Condition::Absent), [true, false, false]);
    assert_eq!(holds(Condition::Present), [false, true, true]);
    assert_eq!(holds(Condition::Version(7)), [false, true, false]);
}

#[test]
fn conditions_belong_to_writes_and_an_add_has_eight_bytes() {
    let request = |op, condition, value| {
        let request = Request { condition, ..Request::new(1, 2, op, b"key", Value::Inline(value)) };
        Request::decode(&message(&request)).map(|_| ()).map_err(|(_, refusal)| refusal)
    };
    let malformed = |reason| Err(Refusal::Malformed { reason });
    assert_eq!(request(Op::Get, Condition::Present, b""), malformed(Malformed::UnknownFlags));
    assert_eq!(request(Op::Delete, Condition::Present, b""), Ok(()));
    assert_eq!(request(Op::Delete, Condition::Always, b"value"), malformed(Malformed::Length));
    assert_eq!(request(Op::Add, Condition::Always, &[0; 8]), Ok(()));
    assert_eq!(request(Op::Get, Condition::Always, &[0; 8]), Ok(()));
    assert_eq!(request(Op::PutEnd, Condition::Present, b""), Ok(()));
    assert_eq!(request(Op::PutBegin, Condition::Present, &[0; 8]), malformed(Malformed::UnknownFlags));
    for value in [&[][..], &[0; 7], &[0; 9]] {
        assert_eq!(request(Op::Add, Condition::Always, value), malformed(Malformed::Length));
    }
}

#[test]
fn times_to_live_have_bounds() {
    let request = |op, ttl_ns| {
        let request = Request { ttl_ns: Some(ttl_ns), ..Request::new(1, 2, op, b"key", Value::Inline(b"")) };
        Request::decode(&message(&request)).map(|request| request.ttl_ns).map_err(|(_, refusal)| refusal)
    };
    for op in [Op::Put, Op::Touch, Op::GetAndTouch] {
        for ttl_ns in [1, 3_153_600_000_000_000_000] {
            assert_eq!(request(op, ttl_ns), Ok(Some(ttl_ns)));
        }
        for found_ns in [0, 3_153_600_000_000_000_001, u64::MAX] {
            assert_eq!(request(op, found_ns), Err(Refusal::TtlOutOfRange { found_ns }));
        }
    }
    assert_eq!(request(Op::Delete, 1), Err(Refusal::Malformed { reason: Malformed::UnknownFlags }));
}

fn any_refusal() -> impl Strategy<Value = Refusal> {
    (16u8..33, 1u64..7, any::<u64>()).prop_map(|(code, a, b)| Refusal::decode(code, a, b).unwrap())
}

proptest! {
    #[test]
    fn requests_round_trip(
        seq: u64, session: u64, condition in any_condition(), ttl_ns in proptest::option::of(1..=TTL_MAX_NS), op in 1usize..15,
        key in proptest::collection::vec(any::<u8>(), 1..64),
        bytes: Vec<u8>, staged: Option<(u64, u64)>,
    ) {
        let op = Op::ALL[op];
        let key = if op.has_key() { key } else { Vec::new() };
        let value = match (op, staged) {
            (Op::Add | Op::PutBegin | Op::Scan | Op::Clear, _) => Value::Inline(&[1, 2, 3, 4, 5, 6, 7, 0xff]),
            (Op::Put | Op::Append | Op::PutPart, None) => Value::Inline(&bytes),
            (Op::Put | Op::Append | Op::PutPart, Some((offset_bytes, hash))) => Value::Staged { offset_bytes, len_bytes: 1 << 20, hash },
            _ => Value::Inline(&[]),
        };
        let condition = if op.is_write() { condition } else { Condition::Always };
        let ttl_ns = ttl_ns.filter(|_| op.takes_ttl());
        let request = Request { condition, ttl_ns, ..Request::new(seq, session, op, &key, value) };
        let bytes = message(&request);
        prop_assert_eq!(Request::decode(&bytes), Ok(request));
        for cut in 0..bytes.len() {
            prop_assert!(Request::decode(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn replies_round_trip(
        seq: u64, version: u64, refusal in any_refusal(), status in 0usize..4, chunk: Vec<u8>, has_more: bool,
        hint: Option<(u64, u64, u64)>,
    ) {
        let status = [Status::Done, Status::NotFound, Status::Unmet, Status::Refused(refusal)][status];
        let refused = matches!(status, Status::Refused(_));
        let hint = hint.filter(|_| !refused).map(|(place_epoch, line, slot)| IndexHint {
            place_epoch, line: LineNumber(line), slot_index: (line % 7) as u16, slot: Slot(slot),
        });
        let total_bytes = chunk.len() as u32 + 5;
        let reply = Reply { seq, status, version, total_bytes, has_more, hint, chunk: &chunk };
        let bytes = [&reply.header()[..], &chunk].concat();
        let decoded = Reply::decode(&bytes).unwrap();
        let expected_version = if refused { decoded.version } else { version };
        prop_assert_eq!(decoded, Reply { version: expected_version, ..reply });
    }

    #[test]
    fn arbitrary_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
        let _ = Request::decode(&bytes);
        let _ = Reply::decode(&bytes);
    }

    #[test]
    fn arbitrary_bytes_behind_plausible_headers(mut bytes in proptest::collection::vec(any::<u8>(), 32..96), op in 0u8..17, flags in 0u8..17) {
        (bytes[24], bytes[25]) = (op, flags);
        bytes[26..32].copy_from_slice(&[3, 0, (op & 1) * 4, 0, 0, 0]);
        let _ = Request::decode(&bytes);
    }
}
