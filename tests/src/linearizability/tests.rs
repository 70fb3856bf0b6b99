//! Histories of a few operations.

use super::*;

const MS: u64 = 1_000_000;

fn op(client: u32, start: u64, end: u64, kind: Kind) -> Op {
    let clock_ns = (start * MS, if end == 0 { u64::MAX } else { end * MS });
    Op { client, start, end: (end != 0).then_some(end), clock_ns, expires_ns: None, kind }
}

fn put(version: u64) -> Kind {
    Kind::Put { version: Some(version), short: None }
}

fn is_explained(ops: &[Op]) -> bool {
    check(ops, false) == Verdict::Explained
}

#[test]
fn reads_agree_with_a_moment_between_their_start_and_end() {
    let write = |write| Kind::GetWrite { write };
    let history = |kind, start, end| vec![op(0, 1, 2, put(1)), op(0, 4, 8, put(2)), op(1, start, end, kind)];
    let sorted = |mut ops: Vec<Op>| {
        ops.sort_by_key(|op| op.start);
        ops
    };
    assert!(is_explained(&sorted(history(write(0), 5, 6))), "still the old value");
    assert!(is_explained(&sorted(history(write(1), 5, 6))), "already the new value");
    assert!(!is_explained(&sorted(history(write(0), 9, 10))), "the old value after the write");
    assert!(!is_explained(&sorted(history(Kind::GetAbsent, 9, 10))), "nothing deleted it");
    let back = [op(0, 1, 2, put(1)), op(0, 4, 20, put(2)), op(1, 5, 6, write(1)), op(1, 7, 8, write(0))];
    assert!(!is_explained(&back), "new, then old");
}

#[test]
fn unknown_writes_happen_late_or_never() {
    let unknown = op(0, 3, 0, Kind::Put { version: None, short: None });
    let get = |write| op(1, 10, 11, Kind::GetWrite { write });
    let again = |write| op(1, 12, 13, Kind::GetWrite { write });
    assert!(is_explained(&[op(0, 1, 2, put(1)), unknown.clone(), get(0)]));
    assert!(is_explained(&[op(0, 1, 2, put(1)), unknown.clone(), get(0), again(1)]));
    assert!(!is_explained(&[op(0, 1, 2, put(1)), unknown, get(1), again(0)]));
}

#[test]
fn a_key_that_may_vanish_does_not_come_back() {
    let absent = |start, end| op(1, start, end, Kind::GetAbsent);
    let found = |start, end| op(1, start, end, Kind::GetWrite { write: 0 });
    let put_absent =
        Kind::PutIf { when: When::Absent, result: Some(IfResult::Done), version: Some(2), short: None };
    let not_found = Kind::Delete { found: Some(false) };
    for (explained, then) in [
        (true, vec![absent(3, 4), absent(5, 6)]),
        (true, vec![found(3, 4), absent(5, 6)]),
        (false, vec![absent(3, 4), found(5, 6)]),
        (true, vec![op(1, 3, 4, put_absent.clone())]),
        (false, vec![op(1, 3, 4, put_absent), found(5, 6)]),
        (true, vec![op(1, 3, 4, not_found.clone())]),
        (false, vec![op(1, 3, 4, not_found), found(5, 6)]),
    ] {
        let ops = [vec![op(0, 1, 2, put(1))], then].concat();
        assert_eq!(check(&ops, true) == Verdict::Explained, explained, "{ops:?}");
    }
}

#[test]
fn a_client_sees_its_own_writes_in_flight() {
    let ops =
        |client| [op(0, 1, 2, put(1)), op(0, 3, 9, put(2)), op(client, 4, 5, Kind::GetWrite { write: 0 })];
    assert!(is_explained(&ops(1)));
    assert!(!is_explained(&ops(0)));
}

#[test]
fn deletes_of_a_key_that_is_not_there_do_not_stand_in_for_others() {
    let delete = |found| Kind::Delete { found: Some(found) };
    assert!(is_explained(&[op(0, 1, 2, put(1)), op(1, 3, 9, delete(true)), op(2, 4, 5, delete(false))]));
    assert!(!is_explained(&[op(0, 1, 2, put(1)), op(1, 3, 4, delete(false)), op(2, 5, 6, delete(true))]));
}

#[test]
fn versions_rise_and_compare_and_set_compares() {
    assert!(!is_explained(&[op(0, 1, 2, put(5)), op(0, 3, 4, put(4))]));
    let cas = |expected, result, version| Kind::PutIf {
        when: When::Version(expected),
        result: Some(result),
        version,
        short: None,
    };
    assert!(is_explained(&[op(0, 1, 2, put(1)), op(1, 3, 4, cas(1, IfResult::Done, Some(2)))]));
    assert!(!is_explained(&[op(0, 1, 2, put(1)), op(1, 3, 4, cas(7, IfResult::Done, Some(8)))]));
    assert!(is_explained(&[op(0, 1, 2, put(1)), op(1, 3, 4, cas(7, IfResult::Mismatch(1), None))]));
    assert!(!is_explained(&[op(0, 1, 2, put(1)), op(1, 3, 4, cas(7, IfResult::NotFound, None))]));
    let absent =
        |result, version| Kind::PutIf { when: When::Absent, result: Some(result), version, short: None };
    assert!(is_explained(&[op(0, 1, 2, absent(IfResult::Done, Some(1)))]));
    assert!(!is_explained(&[op(0, 1, 2, put(1)), op(1, 3, 4, absent(IfResult::Done, Some(2)))]));
    assert!(is_explained(&[op(0, 1, 2, put(1)), op(1, 3, 4, absent(IfResult::Mismatch(1), None))]));
    assert!(!is_explained(&[op(0, 1, 2, absent(IfResult::NotFound, None))]));
    // Of two that insert if absent, one does.
    assert!(!is_explained(&[
        op(0, 1, 6, absent(IfResult::Done, Some(1))),
        op(1, 2, 5, absent(IfResult::Done, Some(2))),
    ]));
    let delete_if = |when, result| Kind::DeleteIf { when, result: Some(result) };
    let version = |expected| delete_if(When::Version(expected), IfResult::Done);
    assert!(is_explained(&[op(0, 1, 2, put(1)), op(1, 3, 4, version(1)), op(1, 5, 6, Kind::GetAbsent)]));
    assert!(!is_explained(&[op(0, 1, 2, put(1)), op(0, 3, 4, put(2)), op(1, 5, 6, version(1))]));
    let mismatch = delete_if(When::Version(1), IfResult::Mismatch(1));
    assert!(!is_explained(&[op(0, 1, 2, put(1)), op(1, 3, 4, mismatch)]));
    let deletes = [
        op(0, 1, 2, put(1)),
        op(0, 3, 6, Kind::Delete { found: Some(true) }),
        op(1, 4, 5, Kind::Delete { found: Some(true) }),
    ];
    assert!(!is_explained(&deletes), "deleted twice");
}

#[test]
fn values_are_there_until_their_time_is_over() {
    let expires_ns = Some((100 * MS, 102 * MS));
    let with = |put: Kind, other: Op| is_explained(&[Op { expires_ns, ..op(0, 1, 2, put) }, other]);
    let found = Kind::GetWrite { write: 0 };
    // Readers are off by 50 ms at most, the server's answers are exact.
    for (start, end, may_find, may_miss) in
        [(10, 49, true, false), (10, 50, true, true), (151, 160, true, true), (152, 153, false, true)]
    {
        assert_eq!(with(put(1), op(1, start, end, found.clone())), may_find, "{start}");
        assert_eq!(with(put(1), op(1, start, end, Kind::GetAbsent)), may_miss, "{start}");
    }
    let absent =
        |result| Kind::PutIf { when: When::Absent, result: Some(result), version: None, short: None };
    for (start, end, is_there, is_gone) in
        [(10, 99, true, false), (101, 102, true, true), (102, 103, false, true)]
    {
        assert_eq!(with(put(1), op(1, start, end, absent(IfResult::Mismatch(1)))), is_there, "{start}");
        assert_eq!(with(put(1), op(1, start, end, absent(IfResult::Done))), is_gone, "{start}");
        assert_eq!(with(put(1), op(1, start, end, Kind::Delete { found: Some(true) })), is_there);
        assert_eq!(with(put(1), op(1, start, end, Kind::Delete { found: Some(false) })), is_gone);
    }
    // Written anew, it does not end.
    let again = [
        Op { expires_ns, ..op(0, 1, 2, put(1)) },
        op(0, 3, 4, put(2)),
        op(1, 300, 301, Kind::GetWrite { write: 1 }),
    ];
    assert!(is_explained(&again));
    assert!(!is_explained(&[again[0].clone(), again[1].clone(), op(1, 300, 301, Kind::GetAbsent)]));
}
