use super::*;
use proptest::prelude::*;

const WELCOME: Welcome = Welcome {
    session: 7,
    table_id: 0x0102_0304_0506_0708,
    incarnation: 9,
    region_bytes: 32 << 20,
    page_bytes: 4096,
    ring_bytes: 65536,
    staging_bytes: 1 << 20,
    requests_in_flight: 64,
    server_pid: 4711,
};

/// The bytes as the picture at the top draws them.
#[test]
fn golden_hello_and_answers() {
    assert_eq!(&Hello::ours(Wanted::Shm).encode(), b"KVHELLO\n\x05\0\0\0\0\0\0\0");
    assert_eq!(&Hello::ours(Wanted::Tcp).encode(), b"KVHELLO\n\x05\0\0\0\x01\0\0\0");
    assert_eq!(&Hello::ours(Wanted::Rdma).encode(), b"KVHELLO\n\x05\0\0\0\x02\0\0\0");
    assert_eq!(&Hello::ours(Wanted::Offer).encode(), b"KVHELLO\n\x05\0\0\0\x03\0\0\0");
    assert_eq!(&Hello::ours(Wanted::RdmaCm).encode(), b"KVHELLO\n\x05\0\0\0\x04\0\0\0");
    let refused = Answer::Refused(HelloRefusal::WrongVersion { server: 1, client: 2 }).encode();
    assert_eq!(refused, b"KVANSWR\n\x05\0\0\0\x01\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
    let golden: &[u8] = b"KVANSWR\n\x05\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
        \x07\0\0\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\x09\0\0\0\0\0\0\0\
        \0\0\0\x02\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x10\0\0\0\0\0\x40\0\0\0\x67\x12\0\0";
    assert_eq!(Answer::Welcome(WELCOME).encode(), golden);
    assert_eq!(Answer::decode(golden), Ok(Answer::Welcome(WELCOME)));
}

#[test]
fn golden_offer() {
    let boot_id = *b"0123456789abcdef";
    let socket = SocketFile { path: "/run/kv.sock".into(), boot_id, device: 0x19, inode: 0x0102_0304 };
    let offer = Answer::Offer(Offer { socket, has_rdma: true });
    let golden: &[u8] = b"KVANSWR\n\x05\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
        0123456789abcdef\x19\0\0\0\0\0\0\0\x04\x03\x02\x01\0\0\0\0\x01\0\0\0\x0c\0\0\0/run/kv.sock";
    assert_eq!(offer.encode(), golden);
    assert_eq!(Answer::decode(golden), Ok(offer));
    for end in 0..golden.len() {
        assert!(Answer::decode(&golden[..end]).is_err());
    }
    let mut unknown = golden.to_vec();
    unknown[REFUSAL_BYTES + 32] = 2;
    assert_eq!(Answer::decode(&unknown), Err(AnswerError::Field { field: "offer flags", found: 2 }));
    unknown[16] = 2;
    assert_eq!(Answer::decode(&unknown), Err(AnswerError::Field { field: "what follows", found: 2 }));
    assert_eq!(
        Answer::decode(&[golden, b"x"].concat()),
        Err(AnswerError::Field { field: "path length", found: 12 })
    );
}

#[test]
fn what_is_no_hello_is_refused_with_the_reason() {
    let hello = Hello::ours(Wanted::Tcp).encode();
    for end in 0..HELLO_BYTES {
        assert_eq!(Hello::decode(&hello[..end]), Err(HelloRefusal::Garbage));
    }
    assert_eq!(Hello::decode(b"GET / HTTP/1.1\r\nHost: x\r\n"), Err(HelloRefusal::Garbage));
    assert_eq!(Hello::decode(&[&hello[..], b"x"].concat()), Err(HelloRefusal::Garbage));
    let other = [&Hello { version: 9, wanted: Wanted::Shm }.encode()[..], b"more"].concat();
    assert_eq!(Hello::decode(&other), Err(HelloRefusal::WrongVersion { server: 5, client: 9 }));
    let answer = Answer::Welcome(WELCOME).encode();
    for end in 0..ANSWER_BYTES {
        assert!(Answer::decode(&answer[..end]).is_err());
    }
}

#[test]
fn answers_of_other_versions_and_damaged_ones_are_named() {
    let mut answer = Answer::Welcome(WELCOME).encode();
    answer[8] = 5;
    assert_eq!(Answer::decode(&answer), Err(AnswerError::WrongVersion { found: 5 }));
    let mut refusal = Answer::Refused(HelloRefusal::Garbage).encode();
    refusal[12] = 99;
    assert_eq!(Answer::decode(&refusal), Err(AnswerError::UnknownStatus { found: 99 }));
    assert_eq!(Answer::decode(b"HTTP/1.1"), Err(AnswerError::NotAServer));
    for (field, welcome) in [
        ("session", Welcome { session: 0, ..WELCOME }),
        ("region size", Welcome { region_bytes: (32 << 20) + 8, ..WELCOME }),
        ("ring size", Welcome { ring_bytes: 65537, ..WELCOME }),
        ("staging size", Welcome { staging_bytes: u64::MAX, ..WELCOME }),
        ("page size", Welcome { page_bytes: 0, ..WELCOME }),
        ("requests in flight", Welcome { requests_in_flight: 0, ..WELCOME }),
    ] {
        let error = Answer::decode(&Answer::Welcome(welcome).encode()).unwrap_err();
        assert!(matches!(error, AnswerError::Field { field: found, .. } if found == field), "{error}");
    }
}

proptest! {
    #[test]
    fn refusals_round_trip(status in 1u32..10, a: u32, b: u32) {
        if let Some(refusal) = HelloRefusal::decode(status, a.into(), b.into()) {
            prop_assert!(!refusal.to_string().is_empty());
            let bytes = Answer::Refused(refusal).encode();
            prop_assert_eq!(bytes.len(), REFUSAL_BYTES);
            prop_assert_eq!(Answer::decode(&bytes), Ok(Answer::Refused(refusal)));
        }
    }

    #[test]
    fn arbitrary_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
        let _ = (Hello::decode(&bytes), Answer::decode(&bytes));
    }

    #[test]
    fn arbitrary_bytes_behind_the_magic(bytes in proptest::collection::vec(any::<u8>(), 0..100), status in 0u8..11) {
        let mut answer = [&ANSWER_MAGIC[..], &[3, 0, 0, 0, status, 0, 0, 0], &bytes].concat();
        let _ = Answer::decode(&answer);
        answer.truncate(ANSWER_BYTES);
        if let Ok(answer) = Answer::decode(&answer) {
            prop_assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
        let _ = Hello::decode(&[&HELLO_MAGIC[..], &bytes].concat());
    }
}
