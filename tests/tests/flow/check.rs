//! A client checks the whole table by READs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use kv_client::{Checked, Client, Outcome, PutOptions};

use crate::live::server::{Needs, Start};
use crate::live::{Random, value_of, wait_for};

/// So many that the one index segment is split: at 133,038 keys.
const SMALL_KEYS: u64 = 140_000;
/// So many that the writers bring it about.
const KEYS_BEFORE: u64 = 130_000;
/// Writers, and writes of each.
const WRITERS: u64 = 2;
const WRITES: u64 = 12_000;

fn submit_all(client: &mut Client, count: u64, submit: impl Fn(&mut Client, u64)) {
    for first in (0..count).step_by(250) {
        for i in first..count.min(first + 250) {
            submit(client, i);
        }
        while let Some(done) = client.wait().unwrap() {
            assert!(
                matches!(done.outcome, Outcome::Put(Ok(_)) | Outcome::Delete(Ok(_))),
                "{:?}",
                done.outcome
            );
        }
    }
}

/// Sound, and all of it judged: so nothing was written meanwhile, not even by a split or a sweep.
fn judged(client: &mut Client) -> Checked {
    wait_for("a check between splits", || {
        let checked = client.check(|_| {}).unwrap();
        assert!(checked.is_sound(), "{:#?}", checked.findings);
        let unjudged = &checked.unjudged;
        (!unjudged.sums && unjudged.slots == 0 && unjudged.half_done.is_empty()).then_some(checked)
    })
}

pub(crate) fn a_table_is_sound_after_all_kinds_of_writes(start: Start) {
    let server = start(Needs { memory: "64MiB", expected_keys: 1, workers: 2, ..Needs::default() });
    let (mut writer, mut client) = (server.connect_for_setup(), server.connect());
    let empty = judged(&mut client);
    assert_eq!((empty.report.keys, empty.report.index_segments), (0, 1));
    submit_all(&mut writer, SMALL_KEYS, |client, i| {
        client.submit_put(&i.to_le_bytes(), &value_of(i, 12)).unwrap();
    });
    submit_all(&mut writer, SMALL_KEYS / 10, |client, i| {
        client.submit_delete(&(10 * i).to_le_bytes()).unwrap();
    });
    let (mut large_bytes, mut expiring) = (0, 0);
    for (i, len_bytes) in (0u64..).zip([0, 100, 5000, 40_000, 320_000, 400_000, 1_000_003]) {
        let key = [b'v', i as u8];
        writer.put(&key, &value_of(i, len_bytes)).unwrap();
        writer.put(&key, &value_of(i + 1, len_bytes)).unwrap();
        let ttl = PutOptions::from(Duration::from_secs(3600));
        writer.put_with(&[b't', i as u8], &value_of(i, len_bytes), ttl).unwrap();
        large_bytes += 2 * len_bytes as u64;
        expiring += 1;
    }
    let mut seen = 0;
    let checked = client.check(|_| seen += 1).unwrap();
    assert!(checked.is_sound() && seen > 0, "{:#?}", checked.findings);
    let report = judged(&mut client).report;
    let keys = SMALL_KEYS - SMALL_KEYS / 10 + 2 * expiring;
    assert_eq!((report.keys, report.expiring_keys), (keys, expiring));
    assert_eq!(report.data_bytes, (keys - 2 * expiring) * 20 + 4 * expiring + large_bytes);
    assert!(report.index_segments >= 2, "{report:?}");
    // Pages of 65,520 bytes of payload: 400,000 bytes take 7, 1,000,003 take 16; each twice.
    assert_eq!((report.large_keys, report.used_pages), (4, 2 * (7 + 16)));
    let counters = client.server_stat().unwrap().counters;
    assert_eq!(counters["gets_by_server"], 0, "a check asks for nothing");
}

/// One of the writes that change what a check reads: keys come and go, values move between classes and pages.
fn write(client: &mut Client, writer: u64, random: &mut Random) {
    let hot = [writer as u8, random.below(60) as u8];
    match random.below(16) {
        0..5 => {
            let new = [&[b'n', writer as u8][..], &random.next().to_le_bytes()].concat();
            client.submit_put(&new, b"new").unwrap();
        }
        5..7 => {
            client.submit_delete(&hot).unwrap();
        }
        7 if random.below(40) == 0 => {
            client.submit_put(&hot, &value_of(1, 350_000 + random.below(300_000) as usize)).unwrap();
        }
        7..12 => {
            client.submit_put(&hot, &value_of(2, random.below(3000) as usize)).unwrap();
        }
        _ => {
            client.submit_put(&hot, &value_of(3, 100)).unwrap();
        }
    }
}

pub(crate) fn a_check_finds_nothing_while_writers_go_on(start: Start) {
    let server = start(Needs { memory: "128MiB", expected_keys: 1, workers: 2, ..Needs::default() });
    // Close to the split of the one index segment.
    submit_all(&mut server.connect_for_setup(), KEYS_BEFORE, |client, i| {
        client.submit_put(&i.to_le_bytes(), b"old").unwrap();
    });
    let mut client = server.connect();
    let mut writers: Vec<Client> = (0..WRITERS).map(|_| server.connect_for_setup()).collect();
    let running = AtomicU64::new(WRITERS);
    let (mut checks, mut unjudged) = (0, 0);
    thread::scope(|scope| {
        for (writer, client) in (0..).zip(&mut writers) {
            let running = &running;
            scope.spawn(move || {
                let mut random = Random::new(writer);
                for _ in 0..WRITES / 16 {
                    for _ in 0..16 {
                        write(client, writer, &mut random);
                    }
                    while client.wait().unwrap().is_some() {}
                }
                running.fetch_sub(1, Ordering::Release);
            });
        }
        while running.load(Ordering::Acquire) > 0 {
            let checked = client.check(|_| {}).unwrap();
            assert!(checked.is_sound(), "check {checks}: {:#?}", checked.findings);
            checks += 1;
            unjudged += u64::from(checked.unjudged.sums);
        }
    });
    println!("{checks} checks under fire, sums were not judged in {unjudged}");
    let report = judged(&mut client).report;
    assert!(report.keys > KEYS_BEFORE && report.index_segments >= 2, "{report:?}");
}
