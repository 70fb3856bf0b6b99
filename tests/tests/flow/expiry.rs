//! Keys whose time ends.

use std::time::Duration;

use kv_client::{Condition, Conditional, Error, PutOptions, Refusal, TTL_MAX, TimeToLive};

use crate::live::server::{Needs, Start};
use crate::live::wait_for;

const SOON: Duration = Duration::from_millis(300);
const LATE: Duration = Duration::from_secs(3600);

pub(crate) fn keys_end_and_count_as_absent(start: Start) {
    let server = start(Needs { memory: "128MiB", ..Needs::default() });
    let mut client = server.connect();
    let mut other = server.connect();
    let names: Vec<Vec<u8>> = (0..200_u8).map(|i| vec![b'k', i]).collect();
    let gone = |i: usize| !i.is_multiple_of(4);
    for (i, name) in names.iter().enumerate() {
        // Inline and staged, ending anywhere in a word; and some without an end.
        let value = vec![i as u8; if i % 50 == 0 { 20_000 } else { i }];
        let ttl = gone(i).then_some(SOON);
        let mut options = PutOptions::from(Condition::Absent);
        options.ttl = ttl;
        assert!(matches!(client.put_with(name, &value, options), Ok(Conditional::Done(_))));
    }
    // By one-sided GETs, single and many, of two clients; those without an end stay.
    wait_for("the ends of the keys", || {
        let results = other.multi_get(&names);
        (0..names.len()).all(|i| gone(i) == matches!(results[i], Ok(None))).then_some(())
    });
    for (i, name) in names.iter().enumerate() {
        wait_for("the end of one key", || (client.exists(name).unwrap() != gone(i)).then_some(()));
        assert_eq!(client.ttl(name) == Ok(TimeToLive::Absent), gone(i));
    }
    // As for every write: absent.
    assert_eq!(client.delete(&names[1]), Ok(false));
    assert_eq!(client.put_with(&names[1], b"no", Condition::Present), Ok(Conditional::NotFound));
    assert_eq!(client.touch(&names[1], None), Ok(Conditional::NotFound));
    assert_eq!(client.get_and_touch(&names[1], None), Ok(None));
    assert_eq!(client.append(&names[2], b"new").unwrap().value_bytes, 3);
    assert_eq!(client.add(&names[3], 7).unwrap().value, 7);
    assert!(matches!(client.put_with(&names[5], b"new", Condition::Absent), Ok(Conditional::Done(_))));
    for name in [&names[2], &names[3], &names[5]] {
        assert_eq!(client.ttl(name), Ok(TimeToLive::Forever));
    }
    // The others' space comes back by itself.
    wait_for("the background", || (client.server_stat().unwrap().counters["keys"] == 53).then_some(()));
    // Those that were written anew may have been removed before that.
    assert!((147..=150).contains(&client.server_stat().unwrap().counters["expired"]));
}

pub(crate) fn times_to_live_out_of_range_are_refused(start: Start) {
    let server = start(Needs::default());
    let mut client = server.connect();
    client.put(b"key", b"1").unwrap();
    for (ttl, found_ns) in [
        (Duration::ZERO, 0),
        (TTL_MAX + Duration::from_nanos(1), 3_153_600_000_000_000_001),
        (Duration::MAX, u64::MAX),
    ] {
        let refused = Error::Refused(Refusal::TtlOutOfRange { found_ns });
        assert_eq!(client.put_with(b"key", b"2", PutOptions::from(ttl)), Err(refused.clone()));
        assert_eq!(client.touch(b"key", Some(ttl)), Err(refused.clone()));
        assert_eq!(client.get_and_touch(b"key", Some(ttl)), Err(refused));
    }
    assert_eq!(client.get(b"key").unwrap().unwrap().bytes, b"1");
    assert!(matches!(client.touch(b"key", Some(TTL_MAX)), Ok(Conditional::Done(_))));
    let Ok(TimeToLive::Left(left)) = client.ttl(b"key") else { panic!("it has an end") };
    assert!(left <= TTL_MAX && left > TTL_MAX - LATE, "{left:?}");
    assert_eq!(client.get(b"key").unwrap().unwrap().bytes, b"1");
}

pub(crate) fn touches_move_the_end(start: Start) {
    let server = start(Needs::default());
    let mut client = server.connect();
    let put = client.put_with(b"key", b"1", PutOptions::from(LATE)).unwrap().done().unwrap();
    let TimeToLive::Left(left) = client.ttl(b"key").unwrap() else { panic!("it has an end") };
    assert!(left <= LATE && left > LATE / 2, "{left:?}");
    // Adds and appends leave it as it is; a put does not.
    assert_eq!(client.add(b"key", 1).unwrap().value, 2);
    client.append(b"key", b"3").unwrap();
    assert!(matches!(client.ttl(b"key"), Ok(TimeToLive::Left(_))));
    let Ok(Conditional::Done(touched)) = client.touch(b"key", None) else { panic!("it is there") };
    assert!(touched > put);
    assert_eq!(client.ttl(b"key"), Ok(TimeToLive::Forever));
    let value = client.get_and_touch(b"key", Some(LATE)).unwrap().unwrap();
    assert_eq!(value.bytes, b"23");
    assert_eq!(client.get(b"key").unwrap().unwrap(), value);
    assert!(matches!(client.ttl(b"key"), Ok(TimeToLive::Left(_))));
    client.put(b"key", b"4").unwrap();
    assert_eq!(client.ttl(b"key"), Ok(TimeToLive::Forever));
    // A large value comes in several messages.
    let large: Vec<u8> = (0..100_000_u32).map(|i| i as u8).collect();
    client.put(b"large", &large).unwrap();
    assert_eq!(client.get_and_touch(b"large", Some(SOON)).unwrap().unwrap().bytes, large);
    wait_for("its end", || client.get(b"large").unwrap().is_none().then_some(()));
    assert_eq!(client.touch(b"absent", Some(LATE)), Ok(Conditional::NotFound));
    assert_eq!(client.ttl(b"absent"), Ok(TimeToLive::Absent));
}
