//! The server as a task: one worker of the real table, over the fabric.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use kv_common::adversary::set_store_hook;
use kv_common::limits::VALUE_MAX_DEFAULT_BYTES;
use kv_common::region::Words;
use kv_common::transport::sim::{Fabric, Rng};
use kv_common::wire::{Op, Request};
use kv_server::table::{Table, TableConfig, Worker};

use crate::tasks::{Task, pause};

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

/// The region, and which of its pages were stored to.
pub(crate) struct Memory {
    pub(crate) words: Words,
    touched: Rc<[Cell<bool>]>,
    mode: Rc<Cell<Stores>>,
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
        }
    }

    /// From now on stores of this thread to the region are steps of the fabric.
    pub(crate) fn hook(&self, fabric: &Fabric) {
        let (base, bytes) = (self.words.address_of(0), self.words.len_words() * 8);
        let (touched, mode, fabric) = (Rc::clone(&self.touched), Rc::clone(&self.mode), fabric.clone());
        let made = Cell::new(0u32);
        set_store_hook(Some(Rc::new(move |address| {
            let offset = address.wrapping_sub(base);
            if offset >= bytes || mode.get() == Stores::Quiet {
                return;
            }
            touched[offset / PAGE_BYTES].set(true);
            made.set(made.get().wrapping_add(1));
            if mode.get() == Stores::Serving || made.get().is_multiple_of(256) {
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

/// Called with the key of each write before it is carried out.
pub(crate) type OnWrite = Rc<dyn Fn(&[u8])>;

/// How a server behaves.
#[derive(Clone, Debug)]
pub(crate) struct ServerPlan {
    pub(crate) hash_seed: u64,
    /// Between two requests the worker is idle once in so many.
    pub(crate) idle_one_in: u64,
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
            value_max_bytes: VALUE_MAX_DEFAULT_BYTES,
            page_bytes: PAGE_BYTES as u64,
            table_id: rng.next_u64(),
            hash_seed: plan.hash_seed,
            incarnation: rng.next_u64(),
            first_version: 1 + rng.below(1 << 40),
            now_ns: 1,
        };
        let (words, mode, fabric) = (memory.words.clone(), Rc::clone(&memory.mode), fabric.clone());
        let (table, draining, is_up) = (Rc::clone(&made), Rc::clone(&is_draining), Rc::clone(is_up));
        let (mut rng, idle_one_in) = (rng.fork(), plan.idle_one_in);
        let task = Task::new(move || {
            mode.set(Stores::Making);
            let made = Table::create(words, &config).expect("the region fits a table");
            mode.set(Stores::Serving);
            table.set(Some(Arc::clone(&made)));
            is_up.set(true);
            serve(&fabric, Worker::new(&made, 0), &draining, &mut rng, idle_one_in, &*on_write);
        });
        Server { task, table: made, is_draining }
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

    /// Ends it in peace, with no request left, and checks the table.
    pub(crate) fn end(mut self) -> Result<(), String> {
        self.is_draining.set(true);
        while !self.task.run() {}
        let table = self.table.take().expect("it has served");
        table.check().map(drop).map_err(|error| format!("the table is damaged: {error:?}"))
    }
}

fn serve(
    fabric: &Fabric,
    mut worker: Worker,
    is_draining: &Cell<bool>,
    rng: &mut Rng,
    idle_one_in: u64,
    on_write: &dyn Fn(&[u8]),
) {
    loop {
        for session in fabric.take_ended() {
            worker.end_session(session);
        }
        if let Some(request) = fabric.receive() {
            let link = request.link;
            if let Ok(write) = Request::decode(&request.message)
                && write.op.has_key()
                && write.op != Op::Get
            {
                on_write(write.key);
            }
            worker.handle(request.session, &request.message, Some(&request.staging), &mut |reply| {
                fabric.reply(link, [&reply.header()[..], reply.chunk].concat());
            });
        } else if is_draining.get() && !fabric.has_requests() {
            return;
        }
        if rng.one_in(idle_one_in) {
            worker.idle();
        }
        pause();
    }
}
