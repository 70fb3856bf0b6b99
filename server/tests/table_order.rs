//! The order of stores: readers look before every single store of every kind of write, through the index and through
//! every place where the key has ever been. Between two moments a key has one truth.
#![cfg(feature = "adversary")]

mod table_support;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use kv_common::adversary::{Mutant, set_mutant, set_store_hook};
use kv_common::block::{self, Verdict};
use kv_common::check;
use kv_common::layout::{LINE_SLOTS, LINE_WORDS, Slot, WINDOW_WORDS};
use kv_common::probe::{LineState, Matches, TableView, judge_overflow, judge_window};
use kv_common::region::{ReadWords, bytes_of};
use kv_common::wire::{Op, Request, Status, Value};
use kv_server::table::{Table, Worker};
use table_support::{Client, Look, SESSION, keys_of_one_home, live, look, pass, sweep, table};

/// The value of the key, or `None` while it is absent.
type Truth = Option<Vec<u8>>;

/// Readers of one key, and what they must not see.
struct Readers {
    table: Arc<Table>,
    region: ReadWords,
    view: TableView,
    key: Vec<u8>,
    /// Slots that the key ever had.
    slots: Vec<Slot>,
    old: Truth,
    new: Truth,
    /// Someone saw the new truth, or the write was acknowledged.
    is_new: bool,
    /// Times that readers looked.
    looks: u64,
    violations: Vec<String>,
}

impl Readers {
    fn look(&mut self) {
        self.looks += 1;
        let mut seen = Vec::new();
        match look(&self.region, &self.view, &self.key) {
            Look::Found { value, .. } => seen.push(Some(value)),
            Look::Absent => seen.push(None),
            Look::Unclear => {}
        }
        for slot in &self.slots {
            let mut words = vec![0; self.view.block_words(*slot).unwrap()];
            self.region.copy_out(slot.place().word(), &mut words);
            let verdict = live(block::judge(&words, &self.key, slot.place(), self.view.table_id));
            if let Verdict::Found { value, .. } = verdict {
                seen.push(Some(bytes_of(&words)[value].to_vec()));
            }
        }
        self.is_new |= seen.contains(&self.new);
        for truth in seen {
            if truth != self.new && (truth != self.old || self.is_new) {
                let describe = |truth: &Truth| truth.as_ref().map(Vec::len);
                let (old, new) = (describe(&self.old), describe(&self.new));
                let is_new = self.is_new;
                self.violations
                    .push(format!("{:?} from {old:?} to {new:?}, new: {is_new}", describe(&truth)));
            }
        }
    }
}

/// Plays every kind of write on a key whose window is full, so that it lives in overflow lines, and on one whose window
/// is not. Returns what readers saw that they must not see.
fn violations_of(mutant: Option<Mutant>) -> Vec<String> {
    let table = table(64, 1, None);
    let mut keys = keys_of_one_home(LINE_SLOTS * 2 + 1);
    let mut client = Client::new(&table, 0);
    let mut violations = Vec::new();
    let overflow_key = keys.pop().unwrap();
    for key in [b"a key with a window of its own".to_vec(), overflow_key.to_vec()] {
        let readers = Rc::new(RefCell::new(Readers {
            table: Arc::clone(&table),
            region: table.region().read_only().clone(),
            view: check::view_of(table.region()).unwrap(),
            key: key.clone(),
            slots: Vec::new(),
            old: None,
            new: None,
            is_new: false,
            looks: 0,
            violations: Vec::new(),
        }));
        set_mutant(mutant);
        play(&mut client.worker, &key, &readers);
        set_mutant(None);
        violations.append(&mut readers.borrow_mut().violations);
        assert!(readers.borrow().looks > 100, "the readers looked between all stores");
        for key in keys.drain(..) {
            assert_eq!(client.put(&key, b"in the way").status, Status::Done);
        }
    }
    violations
}

fn play(worker: &mut Worker, key: &[u8], readers: &Rc<RefCell<Readers>>) {
    // Every size follows every other, and itself: in place, moved because the span changed, moved because large.
    let sizes = [20, 20, 24, 300, 300, 20, 5000, 5000, 20];
    for round in 0..3u8 {
        for (i, &size) in sizes.iter().enumerate() {
            let value = vec![round * 16 + i as u8; size];
            write(worker, Op::Put, key, Some(value), readers);
        }
        write(worker, Op::Delete, key, None, readers);
        // Made of what was there: nothing at first, in place, moved.
        let mut value = Vec::new();
        for part in [&b"begin"[..], b"", b"a little more", &[round; 300], &[round; 5000]] {
            value.extend_from_slice(part);
            write_with(worker, Op::Append, key, part, Some(value.clone()), readers);
        }
        write(worker, Op::Delete, key, None, readers);
        let mut sum = 0;
        for delta in [9_i64, 1, i64::MAX - 10, i64::MIN] {
            sum += delta;
            write_with(
                worker,
                Op::Add,
                key,
                &delta.to_le_bytes(),
                Some(sum.to_string().into_bytes()),
                readers,
            );
        }
        write(worker, Op::Delete, key, None, readers);
        ends(worker, key, round, readers);
        // The blocks come back, and the next round uses them again.
        worker.idle();
    }
}

/// Values whose time ends, is moved, and is over: then the key is written again, or removed in the background.
fn ends(worker: &mut Worker, key: &[u8], round: u8, readers: &Rc<RefCell<Readers>>) {
    const HOUR: u64 = 3_600_000_000_000;
    for (size, again) in [(20, Some(20)), (300, Some(20)), (5000, Some(5000)), (20, None)] {
        let value = vec![round; size];
        let put =
            |ttl_ns| Request { ttl_ns, ..Request::new(1, SESSION, Op::Put, key, Value::Inline(&value)) };
        request(worker, &put(Some(HOUR)), Some(value.clone()), readers);
        for ttl_ns in [None, Some(HOUR), Some(1)] {
            let touch = Request { ttl_ns, ..Request::new(1, SESSION, Op::Touch, key, Value::Inline(b"")) };
            request(worker, &touch, Some(value.clone()), readers);
        }
        pass(1);
        readers.borrow_mut().new = None;
        match again {
            Some(size) => write(worker, Op::Put, key, Some(vec![round + 1; size]), readers),
            None => {
                let table = Arc::clone(&readers.borrow().table);
                looking_between_stores(readers, || sweep(worker, &table));
                assert!(!table.has_expiring_keys(), "it is removed");
            }
        }
    }
}

fn write(worker: &mut Worker, op: Op, key: &[u8], new: Truth, readers: &Rc<RefCell<Readers>>) {
    let sent = new.clone().unwrap_or_default();
    write_with(worker, op, key, &sent, new, readers);
}

/// A write that sends `sent` and makes `new` of the key.
fn write_with(
    worker: &mut Worker,
    op: Op,
    key: &[u8],
    sent: &[u8],
    new: Truth,
    readers: &Rc<RefCell<Readers>>,
) {
    request(worker, &Request::new(1, SESSION, op, key, Value::Inline(sent)), new, readers);
}

fn request(worker: &mut Worker, request: &Request, new: Truth, readers: &Rc<RefCell<Readers>>) {
    let message = request.parts(&request.header()).concat();
    {
        let mut readers = readers.borrow_mut();
        readers.old = readers.new.take();
        readers.new = new;
        readers.is_new = false;
    }
    looking_between_stores(readers, || {
        worker.handle(SESSION, &message, None, &mut |reply| {
            assert_eq!(reply.status, Status::Done);
            let mut readers = readers.borrow_mut();
            readers.is_new = true;
            let slot = reply.hint.expect("writes say where the key is").slot;
            if !slot.is_empty() && !readers.slots.contains(&slot) {
                readers.slots.push(slot);
            }
        });
    });
}

fn looking_between_stores(readers: &Rc<RefCell<Readers>>, act: impl FnOnce()) {
    let looking = Rc::clone(readers);
    set_store_hook(Some(Rc::new(move |_address| looking.borrow_mut().look())));
    act();
    set_store_hook(None);
    readers.borrow_mut().look();
}

#[test]
fn between_any_two_stores_a_key_has_one_truth() {
    assert_eq!(violations_of(None), Vec::<String>::new());
}

#[test]
fn wrong_orders_are_seen() {
    for mutant in [
        Mutant::AckBeforeStore,
        Mutant::LiveBeforeDead,
        Mutant::OldStaysAlive,
        Mutant::LiveBeforeSlot,
        Mutant::ForgetTombstone,
    ] {
        assert!(!violations_of(Some(mutant)).is_empty(), "{mutant:?} was not noticed");
    }
}

/// A reader that stops between two lines of a chain, while keys of the first line go and others come.
fn misses_a_key_behind_a_line_that_was_emptied(mutant: Option<Mutant>) -> bool {
    let table = table(8, 1, None);
    let mut client = Client::new(&table, 0);
    let keys = keys_of_one_home(LINE_SLOTS * 5);
    let (stays, others) = (&keys[LINE_SLOTS * 3], &keys[LINE_SLOTS * 3 + 1..]);
    for key in &keys[..=LINE_SLOTS * 3] {
        assert_eq!(client.put(key, b"").status, Status::Done);
    }
    let view = check::view_of(table.region()).unwrap();
    let (hash, home) = (view.hash(stays), view.home(view.hash(stays)));
    let mut matches = Matches::none();
    let mut window = [0; WINDOW_WORDS];
    table.region().copy_out(home.word(), &mut window);
    let LineState::Answers { next, .. } = judge_window(&window, hash, &mut matches) else { panic!() };
    set_mutant(mutant);
    for key in &keys[LINE_SLOTS * 2..LINE_SLOTS * 3] {
        assert_eq!(client.delete(key).status, Status::Done);
    }
    for key in &others[..LINE_SLOTS] {
        assert_eq!(client.put(key, b"").status, Status::Done);
    }
    set_mutant(None);
    let mut line = [0; LINE_WORDS];
    table.region().copy_out(home.sibling(next).word(), &mut line);
    let state = judge_overflow(&line, home.in_segment() as u16, hash, &mut matches);
    matches.is_empty() && state == LineState::Answers { next: 0, is_moving: false }
}

#[test]
fn a_reader_on_its_way_along_a_chain_misses_nothing() {
    assert!(!misses_a_key_behind_a_line_that_was_emptied(None));
    assert!(misses_a_key_behind_a_line_that_was_emptied(Some(Mutant::UnlinkMiddleOverflow)));
}
