//! What the clients of a test have in common: the history of all operations, and when it is over.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use kv_client::{Client, Options};
use kv_tests::oracle::{Call, Checked, Key, OpId, Oracle, Return};

use super::load::{Player, Report};
use crate::live::{PATIENCE, wait_for};

/// Keys that everybody writes, and keys of each player that only it writes and never deletes.
const SHARED_KEYS: usize = 12;
const OWN_KEYS: usize = 2;

/// All operations of some players on the servers at one address.
pub(crate) struct World {
    pub(crate) url: String,
    oracle: Mutex<Oracle>,
    /// The tables that were there, in the order in which they were met: each is a life of its own.
    tables: Mutex<Vec<u64>>,
    is_over: AtomicBool,
    has_failed: AtomicBool,
    errors: AtomicU64,
    /// Operations that each player has done without an error.
    done: Vec<AtomicU64>,
    /// PUTs acknowledged, and PUTs of unknown outcome.
    puts: AtomicU64,
    puts_unknown: AtomicU64,
}

/// Ends the world when it is dropped: also when a test fails, whose players would go on else.
struct Ends<'a>(&'a World);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Notes that a player failed.
struct Fails<'a>(&'a World);

impl Drop for Fails<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.has_failed.store(true, Ordering::Relaxed);
        }
    }
}

impl World {
    pub(crate) fn new(url: String, players: usize) -> World {
        let shared = (0..SHARED_KEYS).map(|i| (format!("shared {i}"), false));
        let own = (0..players * OWN_KEYS).map(|i| (format!("of one {i}"), true));
        let keys = shared
            .chain(own)
            .map(|(name, is_single_writer)| Key { bytes: name.into_bytes(), is_single_writer });
        World {
            url,
            oracle: Mutex::new(Oracle::new(keys.collect())),
            tables: Mutex::default(),
            is_over: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            errors: AtomicU64::new(0),
            done: (0..players).map(|_| AtomicU64::new(0)).collect(),
            puts: AtomicU64::new(0),
            puts_unknown: AtomicU64::new(0),
        }
    }

    /// Lets players play, each with a timeout of its own, while `script` does to them what it does.
    pub(crate) fn play(&self, timeouts: &[Duration], script: impl FnOnce(&World)) -> Vec<Report> {
        assert_eq!(timeouts.len(), self.done.len());
        thread::scope(|scope| {
            let ends = Ends(self);
            let play = |(number, &timeout): (usize, &Duration)| {
                scope.spawn(move || {
                    let _fails = Fails(self);
                    Player::new(self, number, timeout).play()
                })
            };
            let players: Vec<ScopedJoinHandle<'_, Report>> = timeouts.iter().enumerate().map(play).collect();
            script(self);
            drop(ends);
            players.into_iter().map(|player| player.join().expect("a player failed")).collect()
        })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Waits until every player has done so many operations from now on, without an error.
    pub(crate) fn wait_for_operations(&self, count: u64) {
        let done = || self.done.iter().map(|done| done.load(Ordering::Relaxed));
        let enough: Vec<u64> = done().map(|done| done + count).collect();
        wait_for("every player goes on", || {
            assert!(!self.has_failed.load(Ordering::Relaxed), "a player failed");
            done().zip(&enough).all(|(done, enough)| done >= *enough).then_some(())
        });
    }

    /// The numbers of the keys that this player may write, and whether it may delete them.
    pub(crate) fn keys_of(&self, player: usize) -> Vec<(usize, bool)> {
        let own = SHARED_KEYS + player * OWN_KEYS..SHARED_KEYS + (player + 1) * OWN_KEYS;
        (0..SHARED_KEYS).map(|key| (key, true)).chain(own.map(|key| (key, false))).collect()
    }

    pub(crate) fn key_count(&self) -> usize {
        self.oracle.lock().unwrap().keys().len()
    }

    /// The life of the table that a client is connected to.
    pub(crate) fn life(&self, client: &Client) -> u32 {
        let (mut tables, table) = (self.tables.lock().unwrap(), client.connection().table_id);
        let life = tables.iter().position(|&known| known == table).unwrap_or_else(|| {
            tables.push(table);
            tables.len() - 1
        });
        life as u32
    }

    /// Tables that were met.
    pub(crate) fn tables(&self) -> usize {
        self.tables.lock().unwrap().len()
    }

    /// An operation begins. The key, and the value if it writes one.
    pub(crate) fn begin(&self, life: u32, player: usize, key: usize, call: Call) -> (OpId, Vec<u8>, Vec<u8>) {
        let mut oracle = self.oracle.lock().unwrap();
        let op = oracle.begin(life, player as u32, key, call);
        let value = match call {
            Call::Put { .. } | Call::PutIf { .. } => oracle.value(op),
            Call::Get | Call::Delete | Call::DeleteIf { .. } => Vec::new(),
        };
        (op, oracle.keys()[key].bytes.clone(), value)
    }

    /// It ends.
    pub(crate) fn end(&self, op: OpId, back: Return) {
        let judged = self.oracle.lock().unwrap().end(op, back);
        if let Err(wrong) = judged {
            panic!("{wrong}");
        }
    }

    pub(crate) fn count_put(&self, is_known: bool) {
        let counter = if is_known { &self.puts } else { &self.puts_unknown };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Errors of all players so far.
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    pub(crate) fn count_done(&self, player: usize) {
        self.done[player].fetch_add(1, Ordering::Relaxed);
    }

    /// Reads every key once more, as somebody new, and judges the whole history.
    pub(crate) fn judge(&self) -> Checked {
        let options = Options { timeout: PATIENCE, ..Options::default() };
        let mut client = Client::connect_with(&self.url, &options).unwrap();
        let life = self.life(&client);
        for key in 0..self.key_count() {
            let (op, key, _) = self.begin(life, self.done.len(), key, Call::Get);
            self.end(op, found(client.get(&key).unwrap()));
        }
        if self.tables() == 1 {
            // Each acknowledged PUT once, each unknown one once or not at all.
            let (puts, unknown) =
                (self.puts.load(Ordering::Relaxed), self.puts_unknown.load(Ordering::Relaxed));
            let counted = client.server_stat().unwrap().counters["puts"];
            assert!(
                (puts..=puts + unknown).contains(&counted),
                "{counted} PUTs for {puts} and {unknown} unknown"
            );
        }
        let began = Instant::now();
        let checked = self.oracle.lock().unwrap().check().unwrap_or_else(|wrong| panic!("{wrong}"));
        println!("judged in {:?}: {checked:?}", began.elapsed());
        checked
    }
}

/// What a GET says to the judge.
pub(crate) fn found(value: Option<kv_client::Value>) -> Return {
    value.map_or(Return::Absent, |value| Return::Found { version: value.version, bytes: value.bytes })
}

/// Errors of all players, by what they are.
pub(crate) fn all_errors(reports: &[Report]) -> BTreeMap<&'static str, u64> {
    let mut all = BTreeMap::new();
    for (name, count) in reports.iter().flat_map(|report| &report.errors) {
        *all.entry(*name).or_default() += count;
    }
    all
}
