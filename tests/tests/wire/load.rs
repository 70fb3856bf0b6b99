//! A client under load: operations of all kinds, one after the other and many at once, each noted for the judge.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use kv_client::{Client, Conditional, Error, Options, Outcome, Stats, Ticket};
use kv_tests::oracle::{Call, OpId, Return, When};

use super::world::{World, found};
use crate::live::{Random, wait_for};

/// Short ones, ones that are staged, and ones of many packets.
const LENGTHS: [usize; 6] = [4, 40, 300, 1000, 5000, 60_000];
const INDEX_CACHE_BYTES: usize = 1 << 20;

/// Something was wrong, from the first error to the first operation afterwards that was done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    pub(crate) first_error: Instant,
    pub(crate) back: Instant,
}

/// What became of a player.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) timeout: Duration,
    pub(crate) outages: Vec<Outage>,
    /// By what they are. Any other error fails the test.
    pub(crate) errors: BTreeMap<&'static str, u64>,
    /// The longest call.
    pub(crate) longest: Duration,
    pub(crate) stats: Stats,
}

pub(crate) struct Player<'a> {
    world: &'a World,
    number: usize,
    client: Client,
    random: Random,
    /// Those that it may write, and whether it may delete them.
    keys: Vec<(usize, bool)>,
    /// The last version seen, by key.
    versions: HashMap<usize, u64>,
    /// The table of the last operation.
    life: u32,
    is_lost: Option<Instant>,
    report: Report,
}

impl<'a> Player<'a> {
    pub(crate) fn new(world: &'a World, number: usize, timeout: Duration) -> Player<'a> {
        let options = Options { timeout, index_cache_bytes: INDEX_CACHE_BYTES, ..Options::default() };
        // Several that connect at once may take longer than that.
        let client = wait_for("a connection", || Client::connect_with(&world.url, &options).ok());
        let (outages, errors) = (Vec::new(), BTreeMap::new());
        let report = Report { timeout, outages, errors, longest: Duration::ZERO, stats: client.stats() };
        Player {
            life: world.life(&client),
            world,
            number,
            client,
            random: Random::new(number as u64),
            keys: world.keys_of(number),
            versions: HashMap::new(),
            is_lost: None,
            report,
        }
    }

    /// Plays until the world is over, and on until it can.
    pub(crate) fn play(mut self) -> Report {
        while !self.world.is_over() {
            match self.random.below(20) {
                0 => self.multi_get(),
                1..4 => self.many_at_once(),
                4 => self.delete(),
                5..8 => self.compare_and_set(),
                8..11 => self.put(),
                _ => self.get(),
            }
            if self.is_lost.is_some() {
                self.come_back();
            }
        }
        self.report.stats = self.client.stats();
        self.report
    }

    fn get(&mut self) {
        let key = self.random.below(self.world.key_count() as u64) as usize;
        self.one(key, Call::Get, |client, key, _| client.get(key).map(found));
    }

    fn put(&mut self) {
        let (key, _) = self.own_key();
        let call = Call::Put { len_bytes: self.length(), ttl_ns: None };
        self.one(key, call, |client, key, value| client.put(key, value).map(Return::Stored));
    }

    fn delete(&mut self) {
        let (key, may_delete) = self.own_key();
        if may_delete {
            self.one(key, Call::Delete, |client, key, _| client.delete(key).map(Return::Deleted));
        }
    }

    fn compare_and_set(&mut self) {
        let (key, _) = self.own_key();
        let Some(&expected) = self.versions.get(&key) else { return };
        let call = Call::PutIf { when: When::Version(expected), len_bytes: self.length(), ttl_ns: None };
        self.one(key, call, |client, key, value| {
            client.compare_and_set(key, expected, value).map(|outcome| match outcome {
                Conditional::Done(version) => Return::Stored(version),
                Conditional::Mismatch(version) => Return::Mismatch(version),
                Conditional::NotFound => Return::Absent,
            })
        });
    }

    fn multi_get(&mut self) {
        let begun: Vec<_> = (0..self.world.key_count())
            .map(|key| self.world.begin(self.life, self.number, key, Call::Get))
            .collect();
        let keys: Vec<&[u8]> = begun.iter().map(|(_, key, _)| key.as_slice()).collect();
        let began = Instant::now();
        let results = self.client.multi_get(&keys);
        self.called(began);
        for (key, ((op, ..), result)) in begun.iter().zip(results).enumerate() {
            self.note(*op, key, Call::Get, result.map(found));
        }
    }

    /// A PUT and a GET of each of some keys, all in flight together. The GETs see what was put before them.
    fn many_at_once(&mut self) {
        let mut tickets: HashMap<Ticket, (OpId, usize, Call)> = HashMap::new();
        let keys = self.keys.clone();
        for (key, _) in keys.into_iter().skip(self.random.below(3) as usize).step_by(3) {
            for call in [Call::Put { len_bytes: LENGTHS[key % 4], ttl_ns: None }, Call::Get] {
                let (op, name, value) = self.world.begin(self.life, self.number, key, call);
                let submitted = match call {
                    Call::Get => self.client.submit_get(&name),
                    _ => self.client.submit_put(&name, &value),
                };
                match submitted {
                    Ok(ticket) => drop(tickets.insert(ticket, (op, key, call))),
                    Err(error) => self.note(op, key, call, Err(error)),
                }
            }
        }
        let began = Instant::now();
        while let Some(done) = self.client.wait().unwrap() {
            let (op, key, call) = tickets.remove(&done.ticket).expect("each completes once");
            let result = match done.outcome {
                Outcome::Get(result) => result.map(found),
                Outcome::Put(result) => result.map(Return::Stored),
                outcome => panic!("{outcome:?}"),
            };
            self.note(op, key, call, result);
        }
        self.called(began);
        assert!(tickets.is_empty(), "{tickets:?} never completed");
    }

    fn one(
        &mut self,
        key: usize,
        call: Call,
        act: impl FnOnce(&mut Client, &[u8], &[u8]) -> Result<Return, Error>,
    ) {
        let (op, name, value) = self.world.begin(self.life, self.number, key, call);
        let began = Instant::now();
        let result = act(&mut self.client, &name, &value);
        self.called(began);
        self.note(op, key, call, result);
    }

    fn called(&mut self, began: Instant) {
        self.report.longest = self.report.longest.max(began.elapsed());
    }

    fn note(&mut self, op: OpId, key: usize, call: Call, result: Result<Return, Error>) {
        let back = match result {
            Ok(back) => {
                assert_eq!(
                    self.world.life(&self.client),
                    self.life,
                    "another table, without an error before"
                );
                self.world.count_done(self.number);
                back
            }
            Err(error) => self.error(&error),
        };
        if let Return::Found { version, .. } | Return::Stored(version) | Return::Mismatch(version) = back {
            self.versions.insert(key, version);
        }
        match (call, &back) {
            (Call::Put { .. }, Return::Stored(_)) => self.world.count_put(true),
            // The server counts those whose condition does not hold, too.
            (Call::PutIf { .. }, Return::Stored(_) | Return::Mismatch(_) | Return::Absent) => {
                self.world.count_put(true);
            }
            (Call::Put { .. } | Call::PutIf { .. }, Return::Unknown) => self.world.count_put(false),
            _ => {}
        }
        self.world.end(op, back);
    }

    /// What an error says to the judge.
    fn error(&mut self, error: &Error) -> Return {
        self.is_lost.get_or_insert_with(Instant::now);
        let (name, back) = match error {
            Error::Broken(_) => ("connection lost", Return::NoEffect),
            Error::Timeout { .. } => ("no answer in time", Return::NoEffect),
            Error::OutcomeUnknown { .. } => ("outcome unknown", Return::Unknown),
            error => panic!("an error that nothing here explains: {error}"),
        };
        *self.report.errors.entry(name).or_default() += 1;
        self.world.count_error();
        back
    }

    /// Asks until there is an answer. By then the client may be connected to another table.
    fn come_back(&mut self) {
        wait_for("the client comes back", || {
            let began = Instant::now();
            let result = self.client.ping();
            self.called(began);
            match result {
                Ok(_) => Some(()),
                Err(error) => {
                    self.error(&error);
                    None
                }
            }
        });
        let first_error = self.is_lost.take().expect("it was lost");
        self.report.outages.push(Outage { first_error, back: Instant::now() });
        let life = self.world.life(&self.client);
        if life != self.life {
            self.life = life;
            self.versions.clear();
        }
    }

    fn own_key(&mut self) -> (usize, bool) {
        self.keys[self.random.below(self.keys.len() as u64) as usize]
    }

    fn length(&mut self) -> usize {
        LENGTHS[self.random.below(LENGTHS.len() as u64) as usize]
    }
}
