//! One connection of the simulated fabric, and the client's end of it.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use super::clock::OwnClock;
use super::reads::{Ambush, Read, draw_positions};
use super::rng::Rng;
use super::{Fabric, State, Weather, mix};
use crate::region::Words;
use crate::transport::{Broken, Event, ReadBuffer, ReadNow, SendError, Transport, UserMemory};

/// READs in flight that a connection may have.
const READS_MAX: usize = 16;
/// Tokens from here on belong to no GET.
const GET_TOKENS_END: u64 = u64::MAX - 1;

/// How READs are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Posted, and completed later, as by a network card.
    Posted,
    /// At once, as by loads; but between two loads the thread may lose the processor.
    Loads,
}

/// A message or completion and the step at which it is there.
type Due<T> = (u64, T);

pub(super) struct Link {
    pub(super) session: u64,
    /// READs may be slow.
    is_patient: bool,
    pub(super) staging: Words,
    pub(super) reads: Vec<Read>,
    pub(super) clock: OwnClock,
    completions: Vec<Due<Event>>,
    to_client: VecDeque<Due<Vec<u8>>>,
    to_server: VecDeque<Due<Vec<u8>>>,
    capacity: usize,
    held_until_step: u64,
    broken: Option<Broken>,
    /// The client's end is gone.
    is_closed: bool,
    /// GETs of which a READ was raced.
    raced_gets: BTreeSet<u64>,
    /// What is being loaded, by a transport whose READs are loads.
    loading: Range<usize>,
    load_ambush: Option<Ambush>,
    was_load_raced: bool,
}

impl Link {
    pub(super) fn new(
        session: u64,
        is_patient: bool,
        staging: Words,
        capacity: usize,
        clock: OwnClock,
    ) -> Link {
        Link {
            session,
            is_patient,
            staging,
            reads: Vec::new(),
            clock,
            completions: Vec::new(),
            to_client: VecDeque::new(),
            to_server: VecDeque::new(),
            capacity,
            held_until_step: 0,
            broken: None,
            is_closed: false,
            raced_gets: BTreeSet::new(),
            loading: 0..0,
            load_ambush: None,
            was_load_raced: false,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.broken.is_none() && !self.is_closed
    }

    /// True if nothing can come of it any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_closed && self.to_server.is_empty()
    }

    pub(super) fn has_requests(&self) -> bool {
        !self.to_server.is_empty()
    }

    pub(super) fn has_request_at(&self, step: u64) -> bool {
        self.to_server.front().is_some_and(|&(due, _)| due <= step)
    }

    pub(super) fn take_request(&mut self) -> Option<Vec<u8>> {
        self.to_server.pop_front().map(|(_, message)| message)
    }

    pub(super) fn drop_requests(&mut self) -> u64 {
        std::mem::take(&mut self.to_server).len() as u64
    }

    pub(super) fn take_raced(&mut self) -> bool {
        std::mem::take(&mut self.was_load_raced)
    }

    /// A store to `word` comes next. True if a READ that waited for it goes on right after it.
    #[inline]
    pub(super) fn note_store(&mut self, word: usize, step: u64) -> bool {
        let mut is_due = false;
        for read in &mut self.reads {
            is_due |= read.note_store(word, step);
        }
        if self.loading.contains(&word) {
            self.was_load_raced = true;
            let offset = word - self.loading.start;
            is_due |= self.load_ambush.as_mut().is_some_and(|ambush| ambush.note_store(offset));
        }
        is_due
    }

    /// Of the READs that wait for stores, every other one waits no more.
    pub(super) fn end_ambushes(&mut self, rng: &mut Rng, step: u64) {
        for read in &mut self.reads {
            if rng.one_in(2) {
                read.end_ambush(step);
            }
        }
        if rng.one_in(2) {
            self.load_ambush = None;
        }
    }

    /// A READ has all its words: its completion comes, at its time. True if this is the first raced READ of its GET.
    pub(super) fn complete(&mut self, read: Read, rng: &mut Rng, weather: &Weather, step: u64) -> bool {
        if rng.one_in(weather.burst_one_in) {
            self.held_until_step = step + rng.below(500);
        }
        let is_first = read.is_raced && read.token < GET_TOKENS_END && self.raced_gets.insert(read.token);
        let due = step + rng.below(weather.late_steps_max + 1);
        let event = Event::Read { token: read.token, buffer: read.buffer, result: Ok(()) };
        self.completions.push((due, event));
        is_first
    }

    pub(super) fn reply(&mut self, message: Vec<u8>, rng: &mut Rng, weather: &Weather, step: u64) {
        push_late(&mut self.to_client, message, rng, weather, step);
    }

    /// Returns how many requests and replies were lost.
    pub(super) fn break_it(&mut self, broken: Broken, rng: &mut Rng) -> (u64, u64) {
        for read in self.reads.drain(..) {
            let event = Event::Read { token: read.token, buffer: read.buffer, result: Err(broken.clone()) };
            self.completions.push((0, event));
        }
        for (due, event) in &mut self.completions {
            *due = 0;
            if let Event::Read { result, .. } = event
                && rng.one_in(2)
            {
                *result = Err(broken.clone());
            }
        }
        let kept = rng.below(self.to_client.len() as u64 + 1) as usize;
        let replies_lost = self.to_client.len() - kept;
        self.to_client.truncate(kept);
        let kept = if rng.one_in(2) { 0 } else { rng.below(self.to_server.len() as u64 + 1) as usize };
        let requests_lost = self.to_server.len() - kept;
        self.to_server.truncate(kept);
        self.broken = Some(broken);
        (requests_lost as u64, replies_lost as u64)
    }

    /// True if the client would find something.
    fn is_ready(&self, step: u64) -> bool {
        self.broken.is_some()
            || self.completions.iter().any(|&(due, _)| due <= step && self.held_until_step <= step)
            || self.to_client.front().is_some_and(|&(due, _)| due <= step)
    }

    /// The user's memory of a READ that has completed, or failed with the connection.
    fn take_back(&mut self, of: u64) -> Option<Box<UserMemory>> {
        self.completions.iter_mut().find_map(|(_, event)| match event {
            Event::Read { token, buffer, .. } if *token == of => buffer.take_user(),
            _ => None,
        })
    }

    fn next_event(&mut self, rng: &mut Rng, step: u64) -> Result<Option<Event>, Broken> {
        let has_message =
            self.to_client.front().is_some_and(|&(due, _)| due <= step || self.broken.is_some());
        let is_held = self.held_until_step > step && self.broken.is_none();
        let due: Vec<usize> =
            (0..self.completions.len()).filter(|&i| !is_held && self.completions[i].0 <= step).collect();
        if has_message && (due.is_empty() || rng.one_in(2)) {
            let message = self.to_client.pop_front().map(|(_, message)| message);
            return Ok(message.map(Event::Message));
        }
        if !due.is_empty() {
            return Ok(Some(self.completions.swap_remove(rng.pick(&due)).1));
        }
        match &self.broken {
            Some(broken) => Err(broken.clone()),
            None => Ok(None),
        }
    }
}

/// Appends a message that is there some steps later, and not before those that were sent earlier.
fn push_late(
    queue: &mut VecDeque<Due<Vec<u8>>>,
    message: Vec<u8>,
    rng: &mut Rng,
    weather: &Weather,
    step: u64,
) {
    let due = step + rng.below(weather.late_steps_max + 1);
    let due = queue.back().map_or(due, |&(last, _)| due.max(last));
    queue.push_back((due, message));
}

/// The client's end of a connection.
pub struct SimTransport {
    fabric: Fabric,
    link: usize,
    flavour: Flavour,
    staging: Words,
}

impl SimTransport {
    pub(super) fn new(fabric: Fabric, link: usize, flavour: Flavour, staging: Words) -> SimTransport {
        SimTransport { fabric, link, flavour, staging }
    }

    /// The connection's number.
    pub fn link(&self) -> usize {
        self.link
    }

    fn with<R>(&self, act: impl FnOnce(&mut Link, &mut Rng, &Context) -> R) -> R {
        let state = &mut *self.fabric.state();
        let State { rng, weather, step, region, now_ns, is_still, links, .. } = state;
        let link = links.get_mut(&self.link).expect("a link lives as long as its client's end");
        act(link, rng, &Context { weather, step: *step, region, now_ns: *now_ns, is_still: *is_still })
    }

    /// The thread may lose the processor here.
    fn may_pause(&self, one_in: u64) {
        if self.with(|_, rng, _| rng.one_in(one_in)) {
            self.fabric.pause();
        }
    }

    fn check_range(&self, at_word: usize, len_words: usize) {
        self.with(|_, _, cx| {
            let end = at_word.checked_add(len_words);
            let is_inside = len_words > 0 && end.is_some_and(|end| end <= cx.region.len_words());
            assert!(is_inside, "a READ of {len_words} words from {at_word} is not inside the region");
        });
    }

    /// Loads `out`, and may lose the processor between any two loads. The connection may break meanwhile.
    fn load(&self, at_word: usize, out: &mut [u64]) -> Result<(), Broken> {
        let (positions, pause_one_in) = self.with(|link, rng, _| {
            link.loading = at_word..at_word + out.len();
            // Where much is loaded, not at every other load: that would take all the time there is.
            let often = (out.len() as u64 / 512).max(2);
            (draw_positions(rng, out.len()), rng.pick(&[0, often, 16.max(often), out.len() as u64]))
        });
        let ambush_at = self.draw_load_ambush(out.len());
        for (rank, i) in positions.enumerate() {
            if Some(rank) == ambush_at {
                self.wait_for_stores();
            }
            self.may_pause(pause_one_in);
            out[i] = self.with(|link, _, cx| match &link.broken {
                Some(broken) => Err(broken.clone()),
                None => Ok(cx.region.load(at_word + i)),
            })?;
        }
        self.with(|link, _, _| link.loading = 0..0);
        Ok(())
    }
}

impl SimTransport {
    /// At which of its loads the thread loses the processor until some stores were made, if at all. Single words are
    /// loaded all the time; they are not worth it.
    fn draw_load_ambush(&self, len_words: usize) -> Option<usize> {
        self.with(|link, rng, cx| {
            let is_ambush = len_words > 1 && rng.below(100) < cx.ambush_percent(link.is_patient);
            is_ambush.then(|| rng.below(len_words as u64) as usize)
        })
    }

    fn wait_for_stores(&self) {
        let until_step = self.with(|link, rng, cx| {
            let (ambush, until_step) = Ambush::draw(rng, cx.step);
            link.load_ambush = Some(ambush);
            until_step
        });
        let is_over = |link: &mut Link, _: &mut Rng, cx: &Context| {
            cx.step >= until_step
                || link.broken.is_some()
                || link.load_ambush.as_ref().is_none_or(Ambush::is_over)
        };
        while !self.with(is_over) {
            self.fabric.pause();
        }
        self.with(|link, _, _| link.load_ambush = None);
    }
}

struct Context<'a> {
    weather: &'a Weather,
    step: u64,
    region: &'a Words,
    now_ns: u64,
    is_still: bool,
}

impl Context<'_> {
    /// Of 100 READs so many wait for stores of the server. While it stands there are none to wait for.
    fn ambush_percent(&self, is_patient: bool) -> u64 {
        if is_patient && !self.is_still { self.weather.ambush_percent } else { 0 }
    }
}

impl Transport for SimTransport {
    fn read_now(&mut self, at_word: usize, out: &mut [u64]) -> Result<ReadNow, Broken> {
        self.check_range(at_word, out.len());
        if self.flavour == Flavour::Posted {
            return Ok(ReadNow::Post);
        }
        self.load(at_word, out).map(|()| ReadNow::Done)
    }

    fn post_read(&mut self, token: u64, at_word: usize, buffer: ReadBuffer) {
        self.check_range(at_word, buffer.len());
        self.may_pause(32);
        let due = self.with(|link, rng, cx| {
            if let Some(broken) = &link.broken {
                link.completions.push((0, Event::Read { token, buffer, result: Err(broken.clone()) }));
                return u64::MAX;
            }
            assert!(
                link.reads.len() + link.completions.len() < READS_MAX + 2,
                "READs beyond what the connection may have in flight"
            );
            let quick_percent = if cx.is_still || !link.is_patient { 100 } else { cx.weather.quick_percent };
            let is_quick = rng.below(100) < quick_percent;
            let mut read = Read::new(rng, cx.weather, is_quick, token, at_word, buffer, cx.step);
            if rng.below(100) < cx.ambush_percent(link.is_patient) {
                if rng.one_in(cx.weather.gap_ambush_one_in) {
                    read.wait_in_gap(cx.region, rng, cx.step);
                } else {
                    read.wait_for_stores(rng, cx.step);
                }
            }
            link.reads.push(read);
            link.reads.last().map_or(u64::MAX, |read| read.due_step)
        });
        let state = &mut *self.fabric.state();
        state.next_read_step = state.next_read_step.min(due);
    }

    /// As a device does: its connection has to end for that.
    fn take_back(&mut self, token: u64) -> Option<Box<UserMemory>> {
        self.fabric.break_link(self.link, Broken::Closed);
        self.with(|link, _, _| link.take_back(token))
    }

    fn reads_are_loads(&self) -> bool {
        self.flavour != Flavour::Posted
    }

    fn reads_in_flight_max(&self) -> usize {
        READS_MAX
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<(), SendError> {
        self.may_pause(16);
        self.with(|link, rng, cx| {
            if let Some(broken) = &link.broken {
                return Err(SendError::Broken(broken.clone()));
            }
            if link.to_server.len() >= link.capacity || rng.one_in(32) {
                return Err(SendError::Full);
            }
            push_late(&mut link.to_server, parts.concat(), rng, cx.weather, cx.step);
            Ok(())
        })
    }

    fn poll(&mut self) -> Result<Option<Event>, Broken> {
        self.may_pause(16);
        self.with(|link, rng, cx| link.next_event(rng, cx.step))
    }

    fn wait(&mut self, until_ns: u64) {
        loop {
            self.fabric.pause();
            let is_over = self.with(|link, rng, cx| {
                link.clock.at(cx.now_ns) >= until_ns || link.is_ready(cx.step) || rng.one_in(64)
            });
            if is_over {
                return;
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.may_pause(64);
        let now_ns = self.with(|link, _, cx| link.clock.at(cx.now_ns));
        self.may_pause(64);
        now_ns
    }

    fn staging(&self) -> &Words {
        &self.staging
    }

    fn name(&self) -> &'static str {
        "sim"
    }
}

impl Drop for SimTransport {
    fn drop(&mut self) {
        let state = &mut *self.fabric.state();
        if let Some(link) = state.links.get_mut(&self.link) {
            link.is_closed = true;
            link.reads.clear();
            state.trace = mix(state.trace, self.link as u64);
        }
        state.forget_if_over(self.link);
    }
}
