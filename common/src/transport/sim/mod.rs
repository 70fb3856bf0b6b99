//! A simulated fabric: the transport contract made executable, by whatever is worst within it.
//!
//! One thread, virtual time, everything determined by a seed. Time goes by in *steps*: each store of the server to the
//! region is one ([`Fabric::before_store`]), and so is each turn of whoever schedules the tasks ([`Fabric::step`]). A
//! READ becomes its words, and in any step between its post and its completion some of them may be fetched, in any
//! order, some of them twice. Messages of a connection stay in order, and are late; completions are late and come in
//! bursts; connections break, with and without effect of what was under way. A client's clock may leap at any step:
//! then that client was stopped for so long. It begins anywhere and runs too fast or too slowly.
//!
//! Whoever runs tasks over the fabric gives it a `pause`, which is called wherever a real thread can lose the
//! processor, and must let others run. No borrow is held meanwhile.

mod clock;
mod link;
mod reads;
mod rng;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::region::{WORD_BYTES, Words};
use crate::transport::Broken;

use clock::OwnClock;
use link::Link;
pub use link::{Flavour, SimTransport};
pub use rng::Rng;

/// How bad it is. A number `n` of the form "one in n" may be 0: never.
#[derive(Clone, Debug)]
pub struct Weather {
    /// A store of the server lets others run once in so many.
    pub switch_one_in: u64,
    /// Once in so many steps some client was stopped for longer than GRACE.
    pub stall_one_in: u64,
    /// Once in so many steps some client was stopped for seconds or minutes.
    pub outage_one_in: u64,
    /// Of 100 READs of patient clients so many wait until some of their words were stored to, and are served right after that.
    pub ambush_percent: u64,
    /// One in so many of these waits when some of its words were fetched, and gets the others afterwards.
    pub gap_ambush_one_in: u64,
    /// Of 100 READs so many are served in one step, soon.
    pub quick_percent: u64,
    /// Steps until the first word of another READ is fetched, at most.
    pub read_late_steps_max: u64,
    /// Steps between two words of another READ, at most.
    pub read_gap_steps_max: u64,
    /// Steps that a message or a completion is late, at most.
    pub late_steps_max: u64,
    /// Once in so many completions the next ones are held back, to come in a burst.
    pub burst_one_in: u64,
    /// Clients' clocks run too fast or too slowly by up to so many millionths.
    pub drift_ppm_max: u64,
}

/// What happened on a fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricCounts {
    /// READs completed well.
    pub reads: u64,
    /// GETs of which a word was stored while a READ of theirs fetched it and its neighbours.
    pub racing_gets: u64,
    /// READs of which a part was fetched twice.
    pub retransmissions: u64,
    /// Connections broken.
    pub breaks: u64,
    /// Requests lost in a break.
    pub requests_lost: u64,
    /// Replies lost in a break: the effect is there, the answer is not.
    pub replies_lost: u64,
    /// Requests carried out after the client saw its connection broken.
    pub requests_after_break: u64,
    /// Times that a client was stopped for longer than GRACE.
    pub stalls: u64,
}

/// A request that came out of the fabric at the server.
pub struct Received {
    /// The connection that it came by.
    pub link: usize,
    /// The session of the connection.
    pub session: u64,
    /// The bytes.
    pub message: Vec<u8>,
    /// The memory that the client lends to the server.
    pub staging: Words,
}

/// The fabric. Clones are the same fabric.
#[derive(Clone)]
pub struct Fabric {
    /// Locked and not borrowed, so that clients over it may be sent to other threads, as real ones may.
    state: Arc<Mutex<State>>,
    pause: fn(),
}

struct State {
    region: Words,
    region_base: usize,
    rng: Rng,
    weather: Weather,
    step: u64,
    now_ns: u64,
    /// Those of which something may come still, by number.
    links: BTreeMap<usize, Link>,
    links_made: usize,
    next_read_step: u64,
    /// Sessions that are over, and the server has not been told.
    ended: Vec<u64>,
    /// A READ has waited for the store that comes next.
    is_ambushed: bool,
    /// Since it was asked last, a READ has waited for a store that was made.
    was_ambushed: bool,
    /// The server stands between two stores, for long.
    is_still: bool,
    counts: FabricCounts,
    trace: u64,
}

impl Fabric {
    /// A fabric over the server's `region`.
    pub fn new(region: Words, rng: Rng, weather: Weather, pause: fn()) -> Fabric {
        let state = State {
            region_base: region.address_of(0),
            region,
            rng,
            weather,
            step: 0,
            now_ns: 1_000_000_000,
            links: BTreeMap::new(),
            links_made: 0,
            next_read_step: u64::MAX,
            ended: Vec::new(),
            is_ambushed: false,
            was_ambushed: false,
            is_still: false,
            counts: FabricCounts::default(),
            trace: 0,
        };
        Fabric { state: Arc::new(Mutex::new(state)), pause }
    }

    /// Also after a panic that the simulation is about to report.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets one step of time go by.
    pub fn step(&self) {
        self.state().advance();
    }

    /// Nothing happens for so long.
    pub fn pass(&self, ns: u64) {
        self.state().now_ns += ns;
    }

    /// The time, in ns. Clients' clocks are off.
    pub fn now_ns(&self) -> u64 {
        self.state().now_ns
    }

    /// Steps gone by.
    pub fn now_step(&self) -> u64 {
        self.state().step
    }

    /// A store to the word at `address` comes next: words of READs in flight are fetched before it, and others may run.
    pub fn before_store(&self, address: usize) {
        let is_switch = {
            let state = &mut *self.state();
            let word = address.wrapping_sub(state.region_base) / WORD_BYTES;
            if word >= state.region.len_words() {
                return;
            }
            state.advance();
            let was_ambushed = state.is_ambushed;
            state.is_ambushed = state.note_store(word);
            state.was_ambushed |= was_ambushed;
            // Who waits for this store is served when it was made.
            was_ambushed || (!state.is_ambushed && state.rng.one_in(state.weather.switch_one_in))
        };
        if is_switch {
            self.pause();
        }
    }

    /// Lets others run.
    pub fn pause(&self) {
        (self.pause)();
    }

    /// Opens a connection. READs by it are slow, or wait for stores of the server, only if it `is_patient`.
    pub fn connect(&self, flavour: Flavour, is_patient: bool, session: u64, staging: Words) -> SimTransport {
        let state = &mut *self.state();
        let capacity = state.rng.pick(&[1, 4, 64, 64]);
        let clock = OwnClock::draw(&mut state.rng, state.weather.drift_ppm_max);
        let number = state.links_made;
        state.links_made += 1;
        state.links.insert(number, Link::new(session, is_patient, staging.clone(), capacity, clock));
        SimTransport::new(self.clone(), number, flavour, staging)
    }

    /// Breaks a connection: every READ in flight fails, answers are lost, and requests under way are lost or will still
    /// be carried out.
    pub fn break_link(&self, link: usize, broken: Broken) {
        self.state().break_link(link, broken);
    }

    /// Breaks all connections, as the server's end does. No request is carried out later.
    pub fn break_all(&self, broken: Broken) {
        let state = &mut *self.state();
        let links: Vec<usize> = state.links.keys().copied().collect();
        for link in links {
            state.break_link(link, broken.clone());
            state.drop_requests(link);
        }
    }

    /// Connections that are up.
    pub fn links_up(&self) -> Vec<usize> {
        self.state().numbers_where(Link::is_up)
    }

    /// A request that has arrived at the server, of any connection.
    pub fn receive(&self) -> Option<Received> {
        self.state().receive()
    }

    /// The sessions that have ended since this was asked last: no request of them comes any more.
    pub fn take_ended(&self) -> Vec<u64> {
        std::mem::take(&mut self.state().ended)
    }

    /// True if requests are under way.
    pub fn has_requests(&self) -> bool {
        self.state().links.values().any(Link::has_requests)
    }

    /// Sends a reply; it is lost if the connection is broken.
    pub fn reply(&self, link: usize, message: Vec<u8>) {
        self.state().reply(link, message);
    }

    /// Whether a store hit a READ that was served at once since this was asked last, of this connection.
    pub fn take_raced(&self, link: usize) -> bool {
        let state = &mut *self.state();
        let raced = state.links.get_mut(&link).is_some_and(Link::take_raced);
        state.counts.racing_gets += raced as u64;
        raced
    }

    /// Whether the server stands right behind a store that a READ has waited for.
    pub fn take_ambushed(&self) -> bool {
        std::mem::take(&mut self.state().was_ambushed)
    }

    /// The server stands: of those that wait for its stores, every other one waits no more, and READs posted from now on
    /// are quick.
    pub fn stand_still(&self) {
        let state = &mut *self.state();
        let (rng, step) = (&mut state.rng, state.step);
        for link in state.links.values_mut() {
            link.end_ambushes(rng, step);
        }
        state.next_read_step = step;
        state.is_still = true;
    }

    /// The server goes on.
    pub fn go_on(&self) {
        self.state().is_still = false;
    }

    /// What happened so far.
    pub fn counts(&self) -> FabricCounts {
        self.state().counts
    }

    /// A hash of everything that happened so far: equal seeds have equal ones.
    pub fn trace(&self) -> u64 {
        self.state().trace
    }
}

impl State {
    fn advance(&mut self) {
        self.step += 1;
        self.now_ns += 1 + self.rng.below(40);
        if self.rng.one_in(self.weather.stall_one_in) {
            self.stall(5_000_000, 50_000_000);
        }
        if self.rng.one_in(self.weather.outage_one_in) {
            self.stall(1_000_000_000, 180_000_000_000);
        }
        if self.step >= self.next_read_step {
            self.fetch();
        }
    }

    /// Some client was stopped: its clock leaps.
    fn stall(&mut self, least_ns: u64, most_ns: u64) {
        let ns = least_ns + self.rng.below(most_ns - least_ns);
        let up = self.numbers_where(|_| true);
        if up.is_empty() {
            return;
        }
        let stalled = self.rng.pick(&up);
        if let Some(link) = self.links.get_mut(&stalled) {
            link.clock.leap(ns);
            self.counts.stalls += 1;
        }
    }

    /// Fetches the words of READs that are due.
    fn fetch(&mut self) {
        let mut next = u64::MAX;
        for (&number, link) in &mut self.links {
            let mut i = 0;
            while i < link.reads.len() {
                let read = &mut link.reads[i];
                if read.due_step <= self.step && read.advance(&self.region, &mut self.rng, self.step) {
                    let read = link.reads.swap_remove(i);
                    self.counts.reads += 1;
                    self.counts.retransmissions += read.was_retransmitted as u64;
                    let hash = read.buffer.iter().fold(number as u64, |hash, &word| mix(hash, word));
                    self.trace = mix(mix(self.trace, self.step), hash);
                    self.counts.racing_gets +=
                        link.complete(read, &mut self.rng, &self.weather, self.step) as u64;
                    continue;
                }
                next = next.min(read.due_step);
                i += 1;
            }
        }
        self.next_read_step = next;
    }

    /// Marks the READs that the store of `word` meets. True if one of them has waited for it.
    fn note_store(&mut self, word: usize) -> bool {
        let mut is_ambushed = false;
        for link in self.links.values_mut() {
            is_ambushed |= link.note_store(word, self.step);
        }
        if is_ambushed {
            self.next_read_step = self.next_read_step.min(self.step + 1);
        }
        is_ambushed
    }

    fn receive(&mut self) -> Option<Received> {
        let ready = self.numbers_where(|link| link.has_request_at(self.step));
        if ready.is_empty() {
            return None;
        }
        let number = self.rng.pick(&ready);
        let link = self.links.get_mut(&number).expect("just seen");
        let message = link.take_request().expect("just seen");
        self.counts.requests_after_break += !link.is_up() as u64;
        self.trace = mix(mix(self.trace, number as u64), crate::hash::payload_hash(&message));
        let received =
            Received { link: number, session: link.session, message, staging: link.staging.clone() };
        self.forget_if_over(number);
        Some(received)
    }

    fn reply(&mut self, number: usize, message: Vec<u8>) {
        match self.links.get_mut(&number) {
            Some(link) if link.is_up() => link.reply(message, &mut self.rng, &self.weather, self.step),
            _ => self.counts.replies_lost += 1,
        }
    }

    fn break_link(&mut self, number: usize, broken: Broken) {
        let Some(link) = self.links.get_mut(&number) else { return };
        if !link.is_up() {
            return;
        }
        self.counts.breaks += 1;
        let (requests, replies) = link.break_it(broken, &mut self.rng);
        self.counts.requests_lost += requests;
        self.counts.replies_lost += replies;
        self.trace = mix(self.trace, self.step);
    }

    fn drop_requests(&mut self, number: usize) {
        if let Some(link) = self.links.get_mut(&number) {
            self.counts.requests_lost += link.drop_requests();
        }
        self.forget_if_over(number);
    }

    fn forget_if_over(&mut self, number: usize) {
        if let Entry::Occupied(link) = self.links.entry(number)
            && link.get().is_over()
        {
            self.ended.push(link.remove().session);
        }
    }

    fn numbers_where(&self, is_wanted: impl Fn(&Link) -> bool) -> Vec<usize> {
        self.links.iter().filter(|(_, link)| is_wanted(link)).map(|(&number, _)| number).collect()
    }
}

fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
