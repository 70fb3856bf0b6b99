//! The server as a task: one worker of the real table, over the fabric.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use kv_common::adversary::{set_pause_hook, set_store_hook};
use kv_common::hash::KeyHash;
use kv_common::layout::{
    Counter, HOME_LINES, LINE_WORDS, SEGMENT_LINES, SEGMENT_WORDS, SegmentKind, superblock,
};
use kv_common::limits::VALUE_MAX_DEFAULT_BYTES;
use kv_common::region::{WORD_BYTES, Words};
use kv_common::transport::sim::{Fabric, Received, Rng};
use kv_common::wire::{Op, Reply, Request};
use kv_server::table::{SpaceKeeper, Table, TableConfig, Upkeep, Waiting, Worker};

use crate::tasks::{Task, pause};

thread_local! {
    /// Where the time comes from.
    static CLOCK: RefCell<Option<Fabric>> = const { RefCell::new(None) };
}

fn server_clock_ns() -> u64 {
    CLOCK.with_borrow(|fabric| fabric.as_ref().map_or(0, Fabric::now_ns))
}

/// Bytes of memory that are cleared together when a table is given up.
const PAGE_BYTES: usize = 4096;

/// What a store to the region does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stores {
    /// Nothing: the world itself stores.
    Quiet,
    /// Time goes by slowly: the table is being made.
    Making,
    /// Each is a scheduling point.
    Serving,
}

/// Stores that nobody looks at, of which one in so many is a step: time goes by, and little of it.
const DULL_STORES_PER_STEP: u32 = 256;
/// Once in so many turns in which a segment only waits for its lease to end, that time is over.
const PASS_ONE_IN: u64 = 200;
/// Turns between the wish for a split and its begin, at most: readers come to be on their way across it.
const TURNS_BEFORE_SPLIT_MAX: u64 = 1000;
/// Segments that splits leave for blocks.
const FREE_SEGMENTS_MIN: u64 = 5;

/// The region, and which of its pages were stored to.
pub(crate) struct Memory {
    words: Words,
    touched: Rc<[Cell<bool>]>,
    mode: Rc<Cell<Stores>>,
    keys: Rc<RefCell<Keys>>,
}

/// Where keys may be.
#[derive(Default)]
struct Keys {
    all: Vec<(Vec<u8>, KeyHash)>,
    /// Numbers of their home lines and the next ones. A split passes through all others, too.
    lines: BTreeSet<u64>,
}

impl Memory {
    /// A zeroed region.
    pub(crate) fn new(segments: usize) -> Memory {
        let words = Words::zeroed(segments * kv_common::layout::SEGMENT_WORDS);
        let pages = words.len_words() * 8 / PAGE_BYTES;
        Memory {
            touched: (0..pages).map(|_| Cell::new(false)).collect(),
            words,
            mode: Rc::new(Cell::new(Stores::Quiet)),
            keys: Rc::default(),
        }
    }

    /// The region of a table with so many segments.
    pub(crate) fn region(&self, segments: usize) -> Words {
        self.words.sub(0, segments * SEGMENT_WORDS)
    }

    /// There are these keys.
    pub(crate) fn set_keys(&self, all: Vec<(Vec<u8>, KeyHash)>) {
        let lines = all.iter().flat_map(|(_, hash)| [hash.home(), hash.home() + 1]).collect();
        self.keys.replace(Keys { all, lines });
    }

    /// From now on stores of this thread to the region are steps of the fabric.
    pub(crate) fn hook(&self, fabric: &Fabric) {
        let (base, bytes) = (self.words.address_of(0), self.words.len_words() * 8);
        let (touched, mode, fabric) = (Rc::clone(&self.touched), Rc::clone(&self.mode), fabric.clone());
        let (words, keys) = (self.words.clone(), Rc::clone(&self.keys));
        let waiting = fabric.clone();
        set_pause_hook(Some(Rc::new(move || {
            waiting.step();
            waiting.pause();
        })));
        let made = Cell::new(0u32);
        set_store_hook(Some(Rc::new(move |address| {
            let offset = address.wrapping_sub(base);
            if offset >= bytes || mode.get() == Stores::Quiet {
                return;
            }
            touched[offset / PAGE_BYTES].set(true);
            made.set(made.get().wrapping_add(1));
            let is_dull =
                mode.get() == Stores::Making || is_dull(&words, offset / WORD_BYTES, &keys.borrow().lines);
            if !is_dull || made.get().is_multiple_of(DULL_STORES_PER_STEP) {
                fabric.before_store(address);
            }
        })));
    }

    /// Zeroes what was stored to, without the hook.
    pub(crate) fn clear(&self) {
        self.mode.set(Stores::Quiet);
        for (page, touched) in self.touched.iter().enumerate() {
            if touched.replace(false) {
                self.words.copy_in(page * PAGE_BYTES / 8, &[0; PAGE_BYTES / 8]);
            }
        }
    }
}

/// True for words of home lines where no key can be, and of segments that nobody is led to.
fn is_dull(words: &Words, word: usize, lines: &BTreeSet<u64>) -> bool {
    let line = (word % SEGMENT_WORDS / LINE_WORDS) as u64;
    debug_assert!(line < SEGMENT_LINES);
    let kind = words.load(superblock::SEGMENT_TABLE + word / SEGMENT_WORDS);
    kind == SegmentKind::Free as u64
        || (kind == SegmentKind::Index as u64 && line < HOME_LINES && !lines.contains(&line))
}

/// Called with the key of each write before it is carried out, and with one whose segment is being split.
pub(crate) type OnWrite = Rc<dyn Fn(&[u8])>;

/// How a server behaves.
#[derive(Clone, Debug)]
pub(crate) struct ServerPlan {
    pub(crate) hash_seed: u64,
    /// Between two requests the worker is idle once in so many.
    pub(crate) idle_one_in: u64,
    /// Segments of the region.
    pub(crate) segments: usize,
    pub(crate) grace_ns: u64,
    /// Between two requests some index segment wants to be split once in so many, ...
    pub(crate) split_one_in: u64,
    /// ... and splits go on once in so many, ...
    pub(crate) grow_one_in: u64,
    /// ... by one home or more: each time once in so many it is the last one.
    pub(crate) grow_ends_one_in: u64,
    /// Between two requests segments are emptied and made free once in so many, if there are too few.
    pub(crate) keep_one_in: u64,
    /// Once in so many a segment is emptied for no reason but chance.
    pub(crate) empty_one_in: u64,
    /// Whether it evicts; and once in so many turns for no reason but chance, blocks of one of these sizes.
    pub(crate) evicts: bool,
    pub(crate) evict_one_in: u64,
    pub(crate) evict_bytes: Vec<usize>,
}

/// A server: a table and the task that serves it.
pub(crate) struct Server {
    task: Task,
    table: Rc<Cell<Option<Arc<Table>>>>,
    is_draining: Rc<Cell<bool>>,
}

impl Server {
    /// A server that will make its table when it runs first, and then says in `is_up` that it can be connected to.
    /// `on_write` is told the key of each write before it is carried out.
    pub(crate) fn start(
        memory: &Memory,
        fabric: &Fabric,
        plan: &ServerPlan,
        rng: &mut Rng,
        is_up: &Rc<Cell<bool>>,
        on_write: OnWrite,
    ) -> Server {
        let made: Rc<Cell<Option<Arc<Table>>>> = Rc::default();
        let is_draining = Rc::new(Cell::new(false));
        let config = TableConfig {
            workers: 1,
            expected_keys: Some(1000),
            grace_ns: plan.grace_ns,
            value_max_bytes: VALUE_MAX_DEFAULT_BYTES,
            page_bytes: PAGE_BYTES as u64,
            table_id: rng.next_u64(),
            hash_seed: plan.hash_seed,
            incarnation: rng.next_u64(),
            first_version: 1 + rng.below(1 << 40),
            clock_ns: server_clock_ns,
            evicts: plan.evicts,
        };
        CLOCK.set(Some(fabric.clone()));
        let (words, mode, fabric) = (memory.region(plan.segments), Rc::clone(&memory.mode), fabric.clone());
        let (table, draining, is_up) = (Rc::clone(&made), Rc::clone(&is_draining), Rc::clone(is_up));
        let (mut rng, plan, keys) = (rng.fork(), plan.clone(), Rc::clone(&memory.keys));
        let task = Task::new(move || {
            mode.set(Stores::Making);
            let clock = fabric.clone();
            let made = Table::create_with_clock(words, &config, Arc::new(move || clock.now_ns()));
            let made = made.expect("the region fits a table");
            mode.set(Stores::Serving);
            table.set(Some(Arc::clone(&made)));
            is_up.set(true);
            let keeper = SpaceKeeper::new(&made);
            let grower = Grower {
                table: made.clone(),
                keys,
                plan,
                at_stake: RefCell::default(),
                held_turns: Cell::default(),
            };
            serve(&fabric, Worker::new(&made, 0), keeper, &draining, &mut rng, &grower, &*on_write);
        });
        Server { task, table: made, is_draining }
    }

    /// Publishes its clock, if it is up: the work of another thread than the worker's.
    pub(crate) fn publish_clock(&self) {
        if let Some(table) = self.table.take() {
            table.publish_clock();
            self.table.set(Some(table));
        }
    }

    /// Lets it run for a while.
    pub(crate) fn run(&mut self) {
        assert!(!self.task.run(), "a server ends when it is told to");
    }

    /// Kills it between two stores: nothing of it stores any more.
    pub(crate) fn kill(self, memory: &Memory) {
        memory.mode.set(Stores::Quiet);
        drop(self.table.take());
        drop(self.task);
    }

    /// Ends it in peace, with no request left, and checks the table. Splits may be under way. Returns what the table counted.
    pub(crate) fn end(mut self) -> Result<Grown, String> {
        self.is_draining.set(true);
        while !self.task.run() {}
        let table = self.table.take().expect("it has served");
        let report = table.check().map_err(|error| format!("the table is damaged: {error:?}"))?;
        let sum = |counter: Counter| {
            let load = |page: usize| table.region().load(page + counter as usize);
            superblock::counter_pages(1).map(load).fold(0, u64::wrapping_add)
        };
        Ok(Grown {
            splits: sum(Counter::Splits),
            splits_at_end: sum(Counter::SplitsUnderWay),
            keys_moved: sum(Counter::KeysMoved),
            inserts_waited: sum(Counter::InsertsWaited),
            copied_at_end: report.copied_keys,
            segments_reused: sum(Counter::SegmentsReused),
            blocks_moved: sum(Counter::BlocksMoved),
            writes_waited: sum(Counter::WritesWaited),
            expired: sum(Counter::Expired),
            evictions: sum(Counter::Evictions),
            hits_reported: sum(Counter::HitsReported),
        })
    }
}

/// What a table counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grown {
    pub(crate) splits: u64,
    /// Splits under way when the table was checked, and keys that they had copied and not cleared.
    pub(crate) splits_at_end: u64,
    pub(crate) copied_at_end: u64,
    pub(crate) keys_moved: u64,
    pub(crate) inserts_waited: u64,
    pub(crate) segments_reused: u64,
    pub(crate) blocks_moved: u64,
    pub(crate) writes_waited: u64,
    /// Keys that were removed because their time was over.
    pub(crate) expired: u64,
    pub(crate) evictions: u64,
    pub(crate) hits_reported: u64,
}

/// Splits index segments, for no reason but chance.
struct Grower {
    table: Arc<Table>,
    keys: Rc<RefCell<Keys>>,
    plan: ServerPlan,
    /// A key whose segment is being split.
    at_stake: RefCell<Vec<u8>>,
    /// Turns until splits go on.
    held_turns: Cell<u64>,
}

impl Grower {
    fn turn(&self, rng: &mut Rng, on_write: &dyn Fn(&[u8])) {
        if rng.one_in(self.plan.split_one_in) && self.table.free_segments() > FREE_SEGMENTS_MIN {
            let view = kv_common::check::view_of(self.table.region()).expect("the table is there");
            let keys = self.keys.borrow();
            let (key, hash) = &keys.all[rng.below(keys.all.len() as u64) as usize];
            if self.table.want_split(view.home(*hash).segment()) {
                self.at_stake.replace(key.clone());
                self.held_turns.set(rng.below(TURNS_BEFORE_SPLIT_MAX));
                on_write(key);
            }
        }
        let held_turns = self.held_turns.get();
        self.held_turns.set(held_turns.saturating_sub(1));
        if held_turns > 0 || !rng.one_in(self.plan.grow_one_in) {
            return;
        }
        // Others may have their turn before and after any home of which there are keys.
        let mut goes_on = |home: u64| {
            let is_lively = self.keys.borrow().lines.range(home..=home + 1).next().is_some();
            !is_lively || !rng.one_in(self.plan.grow_ends_one_in)
        };
        if self.table.grow(&mut goes_on) == Upkeep::Busy {
            on_write(&self.at_stake.borrow());
        }
    }
}

/// Requests that wait for room, and those behind them of the same connections, oldest first.
#[derive(Default)]
struct Parked(Vec<(Received, Waiting)>);

impl Parked {
    /// The next request that may be tried: a new one, or a parked one whose turn it is.
    fn next(&mut self, fabric: &Fabric, rng: &mut Rng) -> Option<(Received, Waiting)> {
        let at = rng.below(1 + self.0.len() as u64) as usize;
        let is_first = |at: usize| self.0[..at].iter().all(|(other, _)| other.link != self.0[at].0.link);
        if at < self.0.len() && is_first(at) {
            return Some(self.0.remove(at));
        }
        let request = fabric.receive()?;
        if self.0.iter().any(|(other, _)| other.link == request.link) {
            self.0.push((request, Waiting::default()));
            return None;
        }
        Some((request, Waiting::default()))
    }

    /// It is the oldest of its connection.
    fn park(&mut self, request: Received, waiting: Waiting) {
        let at = self.0.iter().position(|(other, _)| other.link == request.link).unwrap_or(self.0.len());
        self.0.insert(at, (request, waiting));
    }
}

fn serve(
    fabric: &Fabric,
    mut worker: Worker,
    mut keeper: SpaceKeeper,
    is_draining: &Cell<bool>,
    rng: &mut Rng,
    grower: &Grower,
    on_write: &dyn Fn(&[u8]),
) {
    let mut parked = Parked::default();
    loop {
        for session in fabric.take_ended() {
            worker.abandon(session);
        }
        if let Some((request, mut waiting)) = parked.next(fabric, rng) {
            let link = request.link;
            if let Ok(write) = Request::decode(&request.message)
                && (write.op.is_write() || write.op == Op::PutBegin)
            {
                on_write(write.key);
            }
            let mut reply =
                |reply: &Reply<'_>| fabric.reply(link, [&reply.header()[..], reply.chunk].concat());
            let (session, staging) = (request.session, Some(&request.staging));
            if !worker.handle_or_wait(session, &request.message, staging, &mut waiting, &mut reply) {
                parked.park(request, waiting);
            }
        } else if is_draining.get() && !fabric.has_requests() && parked.0.is_empty() {
            return;
        }
        worker.sweep_expired();
        if rng.one_in(grower.plan.idle_one_in) {
            worker.idle();
        }
        grower.turn(rng, on_write);
        if rng.one_in(grower.plan.evict_one_in) {
            worker.evict(rng.pick(&grower.plan.evict_bytes) as u64);
        }
        if rng.one_in(grower.plan.empty_one_in) {
            keeper.empty_any(rng.below(1 << 20) as usize);
        }
        if rng.one_in(grower.plan.keep_one_in)
            && let Upkeep::WaitNs(wait_ns) = keeper.step()
            && rng.one_in(PASS_ONE_IN)
        {
            // Nobody does anything until it is time.
            fabric.pass(wait_ns);
        }
        pause();
    }
}
