//! GETs by RDMA need no processor time of the server, and cost as many READs as they should.

use std::time::{Duration, Instant};

use kv_client::{Client, Error, Options};

use crate::live::bypass::{self, KEYS, get, load};
use crate::live::server::{Site, Transport};
use crate::live::{PATIENCE, device, not_run, value_of, wait_for};

/// Short, because tests wait for it; nothing depends on how short.
const TIMEOUT: Duration = Duration::from_millis(1000);

#[test]
#[ignore = "needs an RDMA device"]
fn ten_thousand_gets_go_on_while_the_server_is_stopped() {
    let _alone = crate::alone();
    let site = Site::over(Transport::Verbs);
    let server = site.serve();
    load(&site);
    let mut warm = site.connect(PATIENCE);
    warm.warm_up().unwrap();
    let mut cold = Client::connect_with(
        &site.url(),
        &Options { timeout: PATIENCE, index_cache_bytes: 64, ..Options::default() },
    )
    .unwrap();
    let mut writer = site.connect(TIMEOUT);
    server.freeze();
    for round in 0..10 {
        let client = if round < 5 { &mut warm } else { &mut cold };
        for i in 0..KEYS {
            get(client, i);
        }
        assert_eq!(client.exists(&(KEYS + round).to_le_bytes()), Ok(false));
        let keys: Vec<[u8; 8]> = (0..2 * KEYS).map(u64::to_le_bytes).collect();
        let found = client.multi_get(&keys).into_iter().filter(|found| found.as_ref().unwrap().is_some());
        assert_eq!(found.count() as u64, KEYS);
    }
    assert_eq!(warm.stats().asked_server + cold.stats().asked_server, 0);
    let checked = warm.check(|_| {}).unwrap();
    assert!(checked.is_sound() && checked.report.keys == KEYS, "{checked:?}");
    // Writes end by their deadline, typed, and are done when the server goes on.
    let written = writer.put(b"written", b"while stopped");
    assert!(matches!(written, Err(Error::OutcomeUnknown { .. })), "{written:?}");
    let large = writer.put(b"large", &value_of(1, 100_000));
    assert!(matches!(large, Err(Error::OutcomeUnknown { .. })), "{large:?}");
    server.thaw();
    wait_for("an answer", || writer.put(b"again", b"value").ok());
    assert_eq!(writer.get(b"written").unwrap().unwrap().bytes, b"while stopped");
    assert_eq!(writer.get(b"large").unwrap().unwrap().bytes, value_of(1, 100_000));
}

#[test]
#[ignore = "needs an RDMA device"]
fn gets_take_no_processor_time_of_the_server() {
    let _alone = crate::alone();
    bypass::gets_take_no_processor_time_of_the_server(Transport::Verbs);
}

/// A READ of less than one packet is a packet each way, and both are sent by this device.
#[test]
#[ignore = "needs an RDMA device"]
fn the_device_has_sent_as_many_packets_as_the_reads_that_the_client_counts() {
    let _alone = crate::alone();
    const GETS: u64 = 20_000;
    let site = Site::over(Transport::Verbs);
    let _server = site.serve();
    let mut warm = site.connect(PATIENCE);
    for i in 0..KEYS {
        warm.put(&i.to_le_bytes(), &value_of(i, 64)).unwrap();
    }
    warm.warm_up().unwrap();
    let mut cold = Client::connect_with(
        &site.url(),
        &Options { timeout: PATIENCE, index_cache_bytes: 64, ..Options::default() },
    )
    .unwrap();
    for (client, reads_per_get) in [(&mut warm, 1.00), (&mut cold, 2.02)] {
        let (reads, packets, began) = (client.stats().reads, device::sent_packets(), Instant::now());
        for i in 0..GETS {
            let found = client.get_with(&(i % KEYS).to_le_bytes(), |bytes, _| bytes.len()).unwrap();
            assert_eq!(found, Some(64));
        }
        let reads = client.stats().reads - reads;
        assert!(reads as f64 / GETS as f64 <= reads_per_get + 0.001, "{reads} READs for {GETS} GETs");
        let (Some(before), Some(after)) = (packets, device::sent_packets()) else {
            not_run("packets per READ", "this device does not count packets");
            return;
        };
        // The place epoch is read once a second; a late acknowledgement makes the device repeat itself.
        let more = 2 * (began.elapsed().as_secs() + 2) + reads / 50;
        let sent = after - before;
        assert!((2 * reads..=2 * reads + more).contains(&sent), "{sent} packets for {reads} READs");
    }
}
