//! What the tests of the table share: a table in memory, and requests through the same bytes that a client would send.
#![allow(dead_code, reason = "each test file uses its part of it")]

pub(crate) mod world;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use kv_common::block::{self, Verdict};
use kv_common::hash::KeyHash;
use kv_common::large::{Assembled, Assembly};
use kv_common::layout::{LINE_WORDS, PAGE_WORDS, SEGMENT_WORDS, Slot, WINDOW_WORDS};
use kv_common::limits::{INLINE_VALUE_MAX_BYTES, OVERFLOW_CHAIN_MAX, SMALL_BLOCK_MAX_BYTES};
use kv_common::probe::{LineState, Matches, TableView, judge_overflow, judge_window};
use kv_common::region::{ReadWords, Words, bytes_of};
use kv_common::wire::{Condition, IndexHint, Op, Refusal, Reply, Request, Status, Value};
use kv_server::table::{Table, TableConfig, Worker};

pub(crate) const SESSION: u64 = 77;
/// The largest value of these tables: larger than a segment.
pub(crate) const VALUE_MAX_BYTES: usize = 3 << 20;
/// Bytes of a part of those values that come in parts.
const PART_BYTES: usize = 200_003;

thread_local! {
    static CLOCK_NS: Cell<u64> = const { Cell::new(1_700_000_000_000_000_000) };
}

/// The server's clock of tables that this thread works with: it stands until somebody moves it on.
pub(crate) fn clock_ns() -> u64 {
    CLOCK_NS.get()
}

/// Moves the clock on.
pub(crate) fn pass(ns: u64) {
    CLOCK_NS.set(CLOCK_NS.get() + ns);
}

pub(crate) fn config(workers: usize, expected_keys: Option<u64>) -> TableConfig {
    TableConfig {
        workers,
        expected_keys,
        grace_ns: kv_common::limits::GRACE_NS,
        value_max_bytes: VALUE_MAX_BYTES,
        page_bytes: 4096,
        table_id: 0x7ab1e,
        hash_seed: 0x5eed,
        incarnation: 1,
        first_version: 1,
        clock_ns,
        evicts: false,
    }
}

pub(crate) fn table(segments: usize, workers: usize, expected_keys: Option<u64>) -> Arc<Table> {
    let region = Words::zeroed(segments * SEGMENT_WORDS);
    Table::create(region, &config(workers, expected_keys)).expect("the region is large enough")
}

/// Keys of 8 bytes that share one home.
pub(crate) fn keys_of_one_home(count: usize) -> Vec<[u8; 8]> {
    let hash = |key: &[u8; 8]| KeyHash::new(config(1, None).hash_seed, key);
    let home = hash(&[0; 8]).home();
    (0u64..).map(u64::to_le_bytes).filter(|key| hash(key).home() == home).take(count).collect()
}

/// A reply as a whole, its chunks joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) version: u64,
    pub(crate) value: Vec<u8>,
    /// Bytes of the whole value, as the reply says.
    pub(crate) total_bytes: usize,
    pub(crate) hint: Option<IndexHint>,
}

impl Answer {
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        if let Status::Refused(refusal) = self.status { Some(refusal) } else { None }
    }
}

/// One client of one worker.
pub(crate) struct Client {
    pub(crate) worker: Worker,
    /// The time to live that goes with the next request.
    pub(crate) ttl_ns: Option<u64>,
    seq: u64,
}

impl Client {
    pub(crate) fn new(table: &Arc<Table>, worker: usize) -> Client {
        Client { worker: Worker::new(table, worker), ttl_ns: None, seq: 0 }
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Answer {
        self.write(Op::Put, Condition::Always, key, value)
    }

    pub(crate) fn compare_and_set(&mut self, key: &[u8], version: u64, value: &[u8]) -> Answer {
        self.write(Op::Put, Condition::Version(version), key, value)
    }

    pub(crate) fn delete(&mut self, key: &[u8]) -> Answer {
        self.write(Op::Delete, Condition::Always, key, &[])
    }

    /// In as many answers as it takes.
    pub(crate) fn get(&mut self, key: &[u8]) -> Answer {
        let mut answer = self.write(Op::Get, Condition::Always, key, &[]);
        while answer.value.len() < answer.total_bytes {
            let from = (answer.value.len() as u64).to_le_bytes();
            let next = self.request(Op::Get, Condition::Always, key, Value::Inline(&from), None);
            assert_eq!(
                (next.status, next.version),
                (Status::Done, answer.version),
                "nobody writes meanwhile"
            );
            assert!(!next.value.is_empty(), "each answer brings some");
            answer.value.extend_from_slice(&next.value);
        }
        answer
    }

    /// A put whose value comes in parts.
    pub(crate) fn upload(&mut self, condition: Condition, key: &[u8], value: &[u8]) -> Answer {
        let begun = self.begin(key, value.len() as u64);
        if begun.status != Status::Done {
            return begun;
        }
        for part in value.chunks(PART_BYTES) {
            assert_eq!(self.part(part).status, Status::Done);
        }
        self.write(Op::PutEnd, condition, key, &[])
    }

    pub(crate) fn begin(&mut self, key: &[u8], value_bytes: u64) -> Answer {
        self.write(Op::PutBegin, Condition::Always, key, &value_bytes.to_le_bytes())
    }

    pub(crate) fn part(&mut self, bytes: &[u8]) -> Answer {
        self.write(Op::PutPart, Condition::Always, &[], bytes)
    }

    /// Inline, staged, or a large one of an odd length in parts, as a client would choose.
    pub(crate) fn write(&mut self, op: Op, condition: Condition, key: &[u8], value: &[u8]) -> Answer {
        if op == Op::Put && value.len() > SMALL_BLOCK_MAX_BYTES && value.len() % 2 == 1 {
            return self.upload(condition, key, value);
        }
        let (value, staging) = sent(value);
        self.request(op, condition, key, value, staging.as_ref())
    }

    pub(crate) fn request(
        &mut self,
        op: Op,
        condition: Condition,
        key: &[u8],
        value: Value<'_>,
        staging: Option<&Words>,
    ) -> Answer {
        self.seq += 1;
        let ttl_ns = self.ttl_ns.take();
        let request = Request { condition, ttl_ns, ..Request::new(self.seq, SESSION, op, key, value) };
        let message = request.parts(&request.header()).concat();
        self.message(&message, staging, self.seq)
    }

    /// Sends any bytes and joins the replies, which must carry `seq`.
    pub(crate) fn message(&mut self, message: &[u8], staging: Option<&Words>, seq: u64) -> Answer {
        let mut answer: Option<Answer> = None;
        let (mut has_more, mut total_bytes) = (true, 0);
        self.worker.handle(SESSION, message, staging, &mut |reply| {
            let bytes = [&reply.header()[..], reply.chunk].concat();
            let reply = Reply::decode(&bytes).expect("the server's replies can be read");
            assert!(has_more, "no reply after the last");
            assert_eq!(reply.seq, seq);
            (has_more, total_bytes) = (reply.has_more, reply.total_bytes as usize);
            let Reply { status, version, hint, .. } = reply;
            let new = Answer { status, version, value: Vec::new(), total_bytes, hint };
            let answer = answer.get_or_insert(new);
            assert_eq!((answer.status, answer.version), (status, version), "one reply in parts");
            answer.value.extend_from_slice(reply.chunk);
        });
        let answer = answer.expect("every request is answered");
        assert!(!has_more && answer.value.len() <= total_bytes, "the reply is whole");
        answer
    }
}

/// How a client would send a value that goes in one piece: in the message, or in a staging area.
pub(crate) fn sent(value: &[u8]) -> (Value<'_>, Option<Words>) {
    if value.len() <= INLINE_VALUE_MAX_BYTES {
        return (Value::Inline(value), None);
    }
    let staging = Words::zeroed(value.len().div_ceil(8) + 2);
    let mut words = vec![0u64; value.len().div_ceil(8)];
    kv_common::region::bytes_of_mut(&mut words)[..value.len()].copy_from_slice(value);
    staging.copy_in(1, &words);
    let hash = kv_common::hash::payload_hash(value);
    (Value::Staged { offset_bytes: 8, len_bytes: value.len() as u32, hash }, Some(staging))
}

/// A value whose time is not over by the clock counts as one without end; what is left of `Expiring` is over.
pub(crate) fn live(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Expiring { version, value, expires_ns } if expires_ns > clock_ns() => {
            Verdict::Found { version, value }
        }
        verdict => verdict,
    }
}

/// Sweeps the whole index twice for keys whose time is over; the clock goes on meanwhile.
pub(crate) fn sweep(worker: &mut Worker, table: &Table) {
    let lines = table.index_segments() * kv_common::layout::SEGMENT_LINES;
    for _ in 0..2 * lines / 64 {
        pass(2_000_000);
        worker.sweep_expired();
    }
}

/// What one look at the region says.
pub(crate) enum Look {
    Found {
        version: u64,
        value: Vec<u8>,
    },
    Absent,
    /// A client would look again, or ask the server.
    Unclear,
}

/// One GET as a client does it, by nothing but reading.
pub(crate) fn look(region: &ReadWords, view: &TableView, key: &[u8]) -> Look {
    let began = Instant::now();
    let hash = view.hash(key);
    let home = view.home(hash);
    let mut is_moving_here = false;
    let mut matches = Matches::none();
    let mut window = [0; WINDOW_WORDS];
    region.copy_out(home.word(), &mut window);
    let mut state = judge_window(&window, hash, &mut matches);
    for _ in 0..=OVERFLOW_CHAIN_MAX {
        let LineState::Answers { next, is_moving } = state else { return Look::Unclear };
        is_moving_here |= is_moving;
        if !matches.is_empty() {
            break;
        }
        if next == 0 {
            let is_quick = began.elapsed().as_nanos() < u128::from(view.grace_ns);
            return if is_quick && !is_moving_here { Look::Absent } else { Look::Unclear };
        }
        let mut line = [0; LINE_WORDS];
        region.copy_out(home.sibling(next).word(), &mut line);
        state = judge_overflow(&line, home.in_segment() as u16, hash, &mut matches);
    }
    for &slot in matches.slots() {
        if let Some((version, value)) = look_at_pages(region, view, key, slot) {
            return Look::Found { version, value };
        }
        let Some(words) = view.block_words(slot) else { continue };
        let mut block = vec![0; words];
        region.copy_out(slot.place().word(), &mut block);
        match live(block::judge(&block, key, slot.place(), view.table_id)) {
            Verdict::Found { version, value } => {
                return Look::Found { version, value: bytes_of(&block)[value].to_vec() };
            }
            Verdict::Expiring { .. } => return Look::Absent,
            _ => {}
        }
    }
    Look::Unclear
}

/// The same of a large block.
fn look_at_pages(region: &ReadWords, view: &TableView, key: &[u8], slot: Slot) -> Option<(u64, Vec<u8>)> {
    let mut words = vec![0; PAGE_WORDS];
    region.copy_out(view.first_page(slot)?.page_word(0), &mut words);
    let mut assembly = Assembly::begin(&words, key, slot, view).ok()?;
    while let Some(piece) = assembly.piece(assembly.pages_fed()) {
        words.resize(piece.len_words, 0);
        region.copy_out(piece.at_word, &mut words);
        assembly.feed(&words);
    }
    let Assembled { version, expires_ns, value } = assembly.finish(view.table_id)?;
    expires_ns.is_none_or(|expires_ns| expires_ns > clock_ns()).then_some((version, value))
}
