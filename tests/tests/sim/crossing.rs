//! READs that cross a split: some of their words are fetched before certain steps of it, the others after them.
//!
//! No chance in it: each pair of moments and each way to cut a READ is played. Random seeds come to the most dangerous of these
//! now and then only, since a READ must last from one step to the other and no longer.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kv_client::{Client, Options};
use kv_common::adversary::Mutant;
use kv_common::check;
use kv_common::hash::KeyHash;
use kv_common::layout::{HOMES, LINE_WORDS, SEGMENT_WORDS, SegmentKind, WINDOW_WORDS, superblock};
use kv_common::limits::{GRACE_NS, VALUE_MAX_DEFAULT_BYTES};
use kv_common::region::Words;
use kv_common::transport::sim::Rng;
use kv_common::transport::{Broken, Event, ReadBuffer, ReadNow, SendError, Transport};
use kv_server::table::{Table, TableConfig, Upkeep, Worker};

use crate::keys;
use crate::server::Memory;
use crate::stage::perform;

const SEGMENTS: usize = 10;
/// Most of them have the same home: it has overflow lines, and still has some when half of its keys are gone.
const KEYS: usize = 60;
const VALUE: &[u8] = b"value";
const SESSION: u64 = 1;
/// READs that are in flight at once: all keys are looked for in the same moment.
const READS_MAX: usize = 64;
/// What goes by while a client looks for events in vain: little against GRACE.
const TICK_NS: u64 = 1000;
/// Looks in vain after which a client has nothing else to do: a client may look for a while before it waits.
const POLLS_IN_VAIN: u32 = 200;

/// Moments of a split: the end of each of its steps, and the one before the keys' home is cleared.
const MOMENTS: [Moment; 6] =
    [Moment::Asked, Moment::Moved, Moment::Deepened, Moment::AboutToClear, Moment::Cleared, Moment::Unmarked];

#[derive(Clone, Copy, Debug)]
enum Moment {
    Asked,
    Moved,
    Deepened,
    AboutToClear,
    Cleared,
    Unmarked,
}

/// A way to cut READs of one length in two.
#[derive(Clone, Copy)]
struct Cut {
    name: &'static str,
    /// READs of so many words are cut; others are served at once.
    words: usize,
    /// Which words are fetched at the first moment; the others are at the second.
    is_first: fn(usize) -> bool,
}

const CUTS: [Cut; 7] = [
    Cut { name: "behind the window", words: WINDOW_WORDS, is_first: |_| true },
    Cut { name: "window, headers first", words: WINDOW_WORDS, is_first: is_header },
    Cut { name: "window, slots first", words: WINDOW_WORDS, is_first: |word| !is_header(word) },
    Cut { name: "window, home line first", words: WINDOW_WORDS, is_first: |word| word < LINE_WORDS },
    Cut { name: "window, next line first", words: WINDOW_WORDS, is_first: |word| word >= LINE_WORDS },
    Cut { name: "overflow line, header first", words: LINE_WORDS, is_first: is_header },
    Cut { name: "overflow line, slots first", words: LINE_WORDS, is_first: |word| !is_header(word) },
];

fn is_header(word: usize) -> bool {
    word.is_multiple_of(LINE_WORDS)
}

thread_local! {
    /// The server of the crossing that is played.
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

/// A table, and how far its split is.
struct Server {
    table: Arc<Table>,
    worker: Worker,
    now_ns: Arc<AtomicU64>,
    /// Of the keys.
    home: u64,
}

impl Server {
    fn new(hash_seed: u64, home: u64) -> Server {
        let now_ns = Arc::new(AtomicU64::new(1));
        let clock = Arc::clone(&now_ns);
        let config = TableConfig {
            workers: 1,
            expected_keys: Some(1000),
            grace_ns: GRACE_NS,
            page_bytes: 4096,
            table_id: 1,
            hash_seed,
            incarnation: 1,
            first_version: 1,
            clock_ns: || 1,
            evicts: false,
            value_max_bytes: VALUE_MAX_DEFAULT_BYTES,
        };
        let region = Words::zeroed(SEGMENTS * SEGMENT_WORDS);
        let clock = Arc::new(move || clock.load(Ordering::Relaxed));
        let table = Table::create_with_clock(region, &config, clock).expect("the region fits a table");
        let worker = Worker::new(&table, 0);
        Server { table, worker, now_ns, home }
    }

    /// Lets the split of the only index segment go on until the end of this home's turn.
    fn grow_to(&self, home: u64) {
        while let Upkeep::WaitNs(wait_ns) = self.table.grow(&mut |done| done != home) {
            self.now_ns.fetch_add(wait_ns, Ordering::Relaxed);
        }
    }

    /// From the moment before to this one.
    fn come_to(&self, moment: Moment) {
        match moment {
            Moment::Asked => {
                let segment = check::view_of(self.table.region()).expect("a table").directory()[0];
                assert!(self.table.want_split(segment), "it has not been split");
            }
            Moment::AboutToClear => self.grow_to(self.home - 1),
            Moment::Moved | Moment::Deepened | Moment::Cleared | Moment::Unmarked => {
                self.grow_to(HOMES - 1);
            }
        }
    }

    fn answer(&mut self, message: &[u8], staging: &Words) -> Vec<u8> {
        let mut answer = Vec::new();
        self.worker.handle(SESSION, message, Some(staging), &mut |reply| {
            answer = [&reply.header()[..], reply.chunk].concat();
        });
        answer
    }
}

fn with_server<T>(act: impl FnOnce(&mut Server) -> T) -> T {
    SERVER.with_borrow_mut(|server| act(server.as_mut().expect("it is there while a crossing is played")))
}

/// A connection whose READs are cut at a moment of the split.
struct Crossing {
    cut: Option<Cut>,
    /// The moments to come to when nothing else can be done.
    left: &'static [Moment],
    posted: Vec<(u64, usize, ReadBuffer)>,
    polls_in_vain: u32,
    events: VecDeque<Event>,
    staging: Words,
}

/// True for words of index lines.
fn is_index(word: usize) -> bool {
    let entry = superblock::SEGMENT_TABLE + word / SEGMENT_WORDS;
    with_server(|server| server.table.region().load(entry) == SegmentKind::Index as u64)
}

impl Crossing {
    fn fetch(at_word: usize, buffer: &mut ReadBuffer, is_wanted: impl Fn(usize) -> bool) {
        with_server(|server| {
            for i in (0..buffer.len()).filter(|&i| is_wanted(i)) {
                buffer[i] = server.table.region().load(at_word + i);
            }
        });
    }
}

impl Crossing {
    /// Nothing else can be done: the split goes on, and the READs that were held back get their other words.
    fn go_on(&mut self) {
        self.polls_in_vain = 0;
        if self.posted.is_empty() {
            return;
        }
        for &moment in std::mem::take(&mut self.left) {
            with_server(|server| server.come_to(moment));
        }
        let cut = self.cut.take();
        for (token, at_word, mut buffer) in self.posted.drain(..) {
            let is_first = cut.expect("only cut READs were held back").is_first;
            Crossing::fetch(at_word, &mut buffer, |i| !is_first(i));
            self.events.push_back(Event::Read { token, buffer, result: Ok(()) });
        }
    }
}

impl Transport for Crossing {
    fn read_now(&mut self, _at_word: usize, _out: &mut [u64]) -> Result<ReadNow, Broken> {
        Ok(ReadNow::Post)
    }

    fn post_read(&mut self, token: u64, at_word: usize, mut buffer: ReadBuffer) {
        match self.cut {
            Some(cut) if cut.words == buffer.len() && is_index(at_word) => {
                Crossing::fetch(at_word, &mut buffer, cut.is_first);
                self.posted.push((token, at_word, buffer));
            }
            _ => {
                Crossing::fetch(at_word, &mut buffer, |_| true);
                self.events.push_back(Event::Read { token, buffer, result: Ok(()) });
            }
        }
    }

    fn reads_are_loads(&self) -> bool {
        false
    }

    fn reads_in_flight_max(&self) -> usize {
        READS_MAX
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<(), SendError> {
        let answer = with_server(|server| server.answer(&parts.concat(), &self.staging));
        self.events.push_back(Event::Message(answer));
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Event>, Broken> {
        if self.events.is_empty() {
            with_server(|server| server.now_ns.fetch_add(TICK_NS, Ordering::Relaxed));
            self.polls_in_vain += 1;
            if self.polls_in_vain >= POLLS_IN_VAIN {
                self.go_on();
            }
        }
        Ok(self.events.pop_front())
    }

    fn wait(&mut self, _until_ns: u64) {
        self.go_on();
    }

    fn now_ns(&self) -> u64 {
        with_server(|server| server.now_ns.load(Ordering::Relaxed))
    }

    fn staging(&self) -> &Words {
        &self.staging
    }

    fn name(&self) -> &'static str {
        "crossing"
    }
}

fn connect(cut: Option<Cut>, left: &'static [Moment]) -> Client {
    let staging = Words::zeroed(64);
    let transport =
        Crossing { cut, left, posted: Vec::new(), polls_in_vain: 0, events: VecDeque::new(), staging };
    let region_words = SEGMENTS * SEGMENT_WORDS;
    Client::over(Box::new(transport), SESSION, region_words, Duration::ZERO, &Options::default())
        .expect("the server is up")
}

/// Plays all crossings. The error says what is wrong; without one it is their number.
pub(crate) fn play(memory: &Memory, mutant: Option<Mutant>) -> Result<u64, String> {
    perform(memory, mutant, || {
        let mut rng = Rng::new(1);
        let (hash_seed, keys) = keys::draw(&mut rng, KEYS);
        let mut homes: Vec<u64> = keys.iter().map(|key| KeyHash::new(hash_seed, key).home()).collect();
        homes.sort_unstable();
        let crowded = homes.chunk_by(|a, b| a == b).max_by_key(|same| same.len());
        let home = crowded.expect("there are keys")[0];
        let mut crossings = 0;
        for first in 0..MOMENTS.len() {
            for cut in CUTS {
                for second in first + 1..MOMENTS.len() {
                    let result = cross(hash_seed, home, &keys, cut, first, second);
                    SERVER.set(None);
                    result?;
                    crossings += 1;
                }
            }
        }
        Ok(crossings)
    })
}

fn cross(
    hash_seed: u64,
    home: u64,
    keys: &[Vec<u8>],
    cut: Cut,
    first: usize,
    second: usize,
) -> Result<(), String> {
    SERVER.set(Some(Server::new(hash_seed, home)));
    let mut writer = connect(None, &[]);
    for key in keys {
        writer.put(key, VALUE).expect("there is room");
    }
    with_server(|server| MOMENTS[..=first].iter().for_each(|&moment| server.come_to(moment)));
    let mut reader = connect(Some(cut), &MOMENTS[first + 1..=second]);
    let found = reader.multi_get(keys);
    for (key, found) in keys.iter().zip(found) {
        let is_right = matches!(&found, Ok(Some(value)) if value.bytes == VALUE);
        if !is_right {
            let (from, to) = (MOMENTS[first], MOMENTS[second]);
            return Err(format!(
                "{found:?} for a key that is present; READ cut {}, from {from:?} to {to:?}: {key:?}",
                cut.name
            ));
        }
    }
    let report = with_server(|server| server.table.check());
    report.map(drop).map_err(|findings| format!("the table is damaged: {findings:?}"))
}
