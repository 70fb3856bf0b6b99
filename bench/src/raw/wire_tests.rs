//! Messages there and back, and bytes that are none.

use std::net::Ipv4Addr;

use kv_common::verbs::{Gid, Mtu};
use proptest::prelude::*;

use super::*;

fn test(queue_pairs: u32) -> Test {
    Test {
        operation: Operation::Send,
        connection: Connection::Uc,
        measure: Measure::Bandwidth,
        size_bytes: 0x1234,
        depth: 16,
        queue_pairs,
        iterations: 1000,
    }
}

fn ends(queue_pairs: u32) -> Ends {
    let endpoint = |number| Endpoint {
        queue_pair: number,
        sequence: 0xab_cdef,
        lid: 0,
        gid: Gid::from(Ipv4Addr::new(192, 0, 2, 1)),
        mtu: Mtu::B1024,
        reads_started_max: 16,
        reads_served_max: 16,
    };
    Ends {
        memory: RemoteMemory { address: 0x7fff_0000_1000, len_bytes: 4096, rkey: 0x99 },
        endpoints: (0..queue_pairs).map(endpoint).collect(),
    }
}

fn decoded(frame: &[u8]) -> Result<Message, WireError> {
    let (kind, len_bytes) = decode_head(frame.first_chunk().unwrap())?;
    assert_eq!(len_bytes, frame.len() - HEAD_BYTES);
    Message::decode(kind, &frame[HEAD_BYTES..])
}

#[test]
fn messages_come_back_as_they_were() {
    for message in [
        Message::Setup(test(1), ends(1)),
        Message::Setup(test(256), ends(256)),
        Message::Ready(ends(3)),
        Message::Refused("no device".into()),
        Message::Connected,
        Message::Done(u64::MAX - 1),
        Message::Bye,
    ] {
        assert_eq!(decoded(&message.to_frame()), Ok(message));
    }
}

/// Written down from the table at the head of the module.
#[test]
fn bytes_are_as_described() {
    let frame = Message::Setup(test(1), ends(1)).to_frame();
    let head = [b'k', b'v', b'r', b'1', 1, 0, 0, 0, 76, 0, 0, 0];
    let what = [2, 1, 1, 0, 0x34, 0x12, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0xe8, 3, 0, 0];
    let memory = [0, 0x10, 0, 0, 0xff, 0x7f, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0x99, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(frame[..12], head);
    assert_eq!(frame[12..32], what);
    assert_eq!(frame[32..56], memory);
    assert_eq!(frame[56..], ends(1).endpoints[0].to_bytes());
}

#[test]
fn what_is_no_message_is_refused_with_the_reason() {
    let setup = Message::Setup(test(1), ends(1)).to_frame();
    let with = |at: usize, byte: u8| {
        let mut frame = setup.clone();
        frame[at] = byte;
        decoded(&frame).unwrap_err().to_string()
    };
    for (at, byte, reason) in [
        (0, b'G', "no `kv-bench raw`"),
        (4, 7, "unknown kind 7"),
        (4, 2, "kind 2 with 76 bytes"),
        (5, 1, "reserved"),
        (12, 3, "an operation"),
        (13, 3, "a kind of connection"),
        (14, 2, "what to measure"),
        (15, 1, "reserved"),
        // READ on an unreliable connection; two queue pairs, and one endpoint.
        (12, 0, "UC has no READ"),
        (24, 2, "kind 1 with 76 bytes"),
        (53, 1, "reserved"),
        (66, 9, "MTU code 9"),
    ] {
        let error = with(at, byte);
        assert!(error.contains(reason), "byte {at} = {byte}: {error}");
    }
    let mut huge = *setup.first_chunk::<HEAD_BYTES>().unwrap();
    huge[8..].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(decode_head(&huge), Err(WireError::Length { kind: 1, .. })));
}

#[test]
fn a_long_refusal_is_cut_between_characters() {
    let text = format!("{}ä", "x".repeat(TEXT_MAX_BYTES - 1));
    let back = decoded(&Message::Refused(text).to_frame()).unwrap();
    assert_eq!(back, Message::Refused("x".repeat(TEXT_MAX_BYTES - 1)));
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(kind in 0u8..8, body in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(message) = Message::decode(kind, &body) {
            prop_assert_eq!(decoded(&message.to_frame()), Ok(message));
        }
    }

    #[test]
    fn a_damaged_setup_is_a_message_or_an_error(
        changes in prop::collection::vec((0usize..500, any::<u8>()), 1..4), cut in 0usize..500,
    ) {
        let mut frame = Message::Setup(test(3), ends(3)).to_frame();
        for (at, byte) in changes {
            let at = HEAD_BYTES + at % (frame.len() - HEAD_BYTES);
            frame[at] = byte;
        }
        let body = &frame[HEAD_BYTES..];
        for body in [body, &body[..cut.min(body.len())]] {
            if let Ok(Message::Setup(test, ends)) = Message::decode(1, body) {
                prop_assert_eq!(test.check(), Ok(()));
                prop_assert_eq!(ends.endpoints.len(), test.queue_pairs as usize);
            }
        }
    }

    #[test]
    fn any_head_is_a_bounded_length_or_an_error(head in any::<[u8; HEAD_BYTES]>(), is_ours: bool) {
        let mut head = head;
        if is_ours {
            head[..8].copy_from_slice(b"kvr1\x01\0\0\0");
        }
        if let Ok((_, len_bytes)) = decode_head(&head) {
            prop_assert!(len_bytes <= BODY_MAX_BYTES);
        }
    }
}
