//! One seed: a server, some clients, a fabric, and what befalls them.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use kv_client::Broken;
use kv_common::adversary::Mutant;
use kv_common::check::{self, Piece, Take};
use kv_common::hash::KeyHash;
use kv_common::region::ReadWords;
use kv_common::transport::sim::{Fabric, Rng};
use kv_tests::oracle::{Key, Oracle};

use crate::plan::{Plan, SEGMENTS_MAX};
use crate::player::{Player, PlayerPlan, Shared};
use crate::server::{Memory, OnWrite, Server, ServerPlan};
use crate::stage::perform;
use crate::tasks::{Task, pause};
use crate::totals::Totals;

/// No seed takes so many steps. A flood whose server is stopped a hundred times takes a fifth of it.
const STEPS_MAX: u64 = 1_000_000_000;
/// Steps for which one client runs alone, at most.
const FAVOURITE_STEPS: u64 = 60;

/// Turns between two checks of the region, at most, and so many more after each: short seeds and long ones have about as many.
const CHECK_TURNS_MAX: u64 = 400;

/// How often the region was checked, and how often some write was seen half done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Checks {
    pub(crate) checks: u64,
    pub(crate) half_done: u64,
}

/// What a seed that found nothing wrong leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) totals: Totals,
    pub(crate) trace: u64,
}

/// Plays one seed. The error says what is wrong.
pub(crate) fn play(memory: &Memory, seed: u64, mutant: Option<Mutant>) -> Result<Report, String> {
    perform(memory, mutant, || World::new(memory, seed, Plan::draw).play())
}

/// The same of a server that evicts.
pub(crate) fn play_cache(memory: &Memory, seed: u64, mutant: Option<Mutant>) -> Result<Report, String> {
    perform(memory, mutant, || World::new(memory, seed, Plan::draw_cache).play())
}

/// The same with everything on at once.
pub(crate) fn play_flood(memory: &Memory, seed: u64, mutant: Option<Mutant>) -> Result<Report, String> {
    perform(memory, mutant, || World::new(memory, seed, Plan::draw_flood).play())
}

/// Plays a seed of which a client checks the region again and again, with the server between two stores.
pub(crate) fn play_checked(memory: &Memory, seed: u64) -> Result<Checks, String> {
    let checks = Rc::new(Cell::new(Checks::default()));
    perform(memory, None, || {
        let draw = if seed.is_multiple_of(4) { Plan::draw_flood } else { Plan::draw };
        let mut world = World::new(memory, seed, draw);
        (world.check_in_turns, world.checks) = (Some(0), Rc::clone(&checks));
        world.play()
    })?;
    Ok(checks.get())
}

/// Memory for the largest region that the world wants.
pub(crate) fn memory() -> Memory {
    Memory::new(SEGMENTS_MAX)
}

/// The region of a server that stands.
struct Standing(ReadWords);

impl check::Region for Standing {
    type Error = Infallible;

    fn len_words(&self) -> usize {
        self.0.len_words()
    }

    fn read(&mut self, pieces: &mut dyn Iterator<Item = Piece>, take: Take) -> Result<(), Infallible> {
        check::Region::read(&mut self.0, pieces, take)
    }

    fn is_live(&self) -> bool {
        true
    }
}

struct Actor {
    task: Task,
    sleep_until: Rc<Cell<u64>>,
}

struct World<'a> {
    memory: &'a Memory,
    rng: Rng,
    fabric: Fabric,
    shared: Rc<Shared>,
    server: Option<Server>,
    server_plan: ServerPlan,
    /// The server stands until this step, or until clients have looked at what it writes so often.
    server_sleeps_until: u64,
    server_waits_for: u64,
    /// While the server stands, one client runs alone, until a GET has ended or this step has come.
    favourite: usize,
    favourite_until: u64,
    favourite_gets: u64,
    actors: Vec<Actor>,
    players: Vec<PlayerPlan>,
    /// Once in so many of its turns the server loses the processor for long, or of those that end at a store which a READ
    /// has waited for.
    preempt_one_in: u64,
    stand_one_in: u64,
    /// Then one in so many sleepers wakes.
    wake_one_in: u64,
    break_one_in: u64,
    kill_one_in: u64,
    lull_one_in: u64,
    stop_one_in: u64,
    clock_every_ns: Option<u64>,
    clock_due_ns: u64,
    kills: u64,
    stops: u64,
    /// After so many turns the region is checked, if at all.
    check_in_turns: Option<u64>,
    checks: Rc<Cell<Checks>>,
}

impl<'a> World<'a> {
    fn new(memory: &'a Memory, seed: u64, draw: fn(&mut Rng, u64) -> Plan) -> World<'a> {
        let mut rng = Rng::new(seed);
        let Plan {
            weather,
            server_plan,
            preempt_one_in,
            stand_one_in,
            wake_one_in,
            break_one_in,
            kill_one_in,
            lull_one_in,
            stop_one_in,
            clock_every_ns,
            players,
            keys,
            block_bytes,
            staging_words,
        } = draw(&mut rng, seed);
        let region = memory.region(server_plan.segments);
        let region_words = region.len_words();
        let hashed = |key: &Key| (key.bytes.clone(), KeyHash::new(server_plan.hash_seed, &key.bytes));
        memory.set_keys(keys.iter().map(hashed).collect());
        let fabric = Fabric::new(region, rng.fork(), weather, pause);
        let oracle = if server_plan.evicts { Oracle::of_cache(keys) } else { Oracle::new(keys) };
        let shared = Rc::new(Shared {
            fabric: fabric.clone(),
            region_words,
            oracle: RefCell::new(oracle),
            totals: RefCell::default(),
            life: Cell::new(0),
            is_up: Rc::default(),
            sessions: Cell::new(0),
            is_growing: Cell::new(true),
            written: Cell::new(0),
            writers: Cell::new(players.iter().filter(|plan| !plan.is_reader()).count() as u64),
            stopped_until_ns: Cell::default(),
            gets_ended: Cell::new(0),
            wrong: RefCell::default(),
            block_bytes,
            staging_words,
        });
        memory.hook(&fabric);
        let on_write = on_write(&shared);
        let server = Some(Server::start(memory, &fabric, &server_plan, &mut rng, &shared.is_up, on_write));
        World {
            memory,
            rng,
            fabric,
            shared,
            server,
            server_plan,
            server_sleeps_until: 0,
            server_waits_for: 0,
            favourite: 0,
            favourite_until: 0,
            favourite_gets: 0,
            actors: Vec::new(),
            players,
            preempt_one_in,
            stand_one_in,
            wake_one_in,
            break_one_in,
            kill_one_in,
            lull_one_in,
            stop_one_in,
            clock_every_ns,
            clock_due_ns: 0,
            kills: 0,
            stops: 0,
            check_in_turns: None,
            checks: Rc::default(),
        }
    }

    fn play(mut self) -> Result<Report, String> {
        for plan in self.players.clone() {
            self.enter(plan, Player::play);
        }
        self.run_actors()?;
        (self.break_one_in, self.kill_one_in, self.stop_one_in) = (0, 0, 0);
        let reader = PlayerPlan {
            number: self.players.len() as u32,
            timeout: Duration::from_secs(1 << 32),
            ..self.players[0].clone()
        };
        while self.server.is_none() || self.fabric.has_requests() {
            self.turn();
            self.check()?;
        }
        self.enter(reader, Player::read_all);
        self.run_actors()?;
        let grown = self.server.take().expect("it is never killed any more").end()?;
        let checked = self.shared.oracle.borrow().check()?;
        let mut totals = *self.shared.totals.borrow();
        (totals.fabric, totals.checked, totals.kills) = (self.fabric.counts(), checked, self.kills);
        (totals.grown, totals.stops) = (grown, self.stops);
        totals.steps = self.fabric.now_step();
        Ok(Report { totals, trace: self.fabric.trace() })
    }

    fn enter(&mut self, plan: PlayerPlan, script: fn(Player)) {
        let sleep_until = Rc::new(Cell::new(0));
        let player = Player::new(Rc::clone(&self.shared), plan, self.rng.fork(), Rc::clone(&sleep_until));
        self.actors.push(Actor { task: Task::new(move || script(player)), sleep_until });
    }

    fn run_actors(&mut self) -> Result<(), String> {
        while !self.actors.is_empty() {
            self.turn();
            self.check()?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if let Some(wrong) = self.shared.wrong.take() {
            return Err(wrong);
        }
        if self.fabric.now_step() > STEPS_MAX {
            return Err(format!("no end after {STEPS_MAX} steps"));
        }
        Ok(())
    }

    /// One turn of one task, or a misfortune.
    fn turn(&mut self) {
        self.fabric.step();
        if self.rng.one_in(self.break_one_in) {
            let up = self.fabric.links_up();
            if !up.is_empty() {
                self.fabric.break_link(self.rng.pick(&up), Broken::Closed);
            }
        }
        if self.rng.one_in(self.lull_one_in) {
            self.lull();
        }
        if let Some(turns) = &mut self.check_in_turns {
            *turns = turns.saturating_sub(1);
            if *turns == 0 {
                self.check_where_it_stands();
            }
        }
        if let (Some(every_ns), Some(server)) = (self.clock_every_ns, &self.server)
            && self.fabric.now_ns() >= self.clock_due_ns
            && !self.shared.is_stopped()
        {
            self.clock_due_ns = self.fabric.now_ns() + every_ns;
            server.publish_clock();
        }
        let now = self.fabric.now_step();
        let is_standing =
            now < self.server_sleeps_until && self.shared.gets_ended.get() < self.server_waits_for;
        if !is_standing && !self.shared.is_stopped() && self.rng.one_in(2) {
            return self.turn_of_server(now);
        }
        let awake: Vec<usize> =
            (0..self.actors.len()).filter(|&i| self.actors[i].sleep_until.get() <= now).collect();
        if awake.is_empty() {
            return;
        }
        let chosen = if is_standing { self.favourite(&awake, now) } else { self.rng.pick(&awake) };
        if self.actors[chosen].task.run() {
            self.actors.swap_remove(chosen);
        }
    }

    /// Checks the region as a client does whose server stands between two stores of whatever it is doing.
    fn check_where_it_stands(&mut self) {
        let turns = self.rng.below(CHECK_TURNS_MAX * (1 + self.checks.get().checks));
        self.check_in_turns = Some(1 + turns);
        if !self.shared.is_up.get() {
            return;
        }
        let mut region = Standing((*self.memory.region(self.server_plan.segments)).clone());
        let Ok(walk) = check::check(&mut region, &mut |_| {});
        let Checks { checks, half_done } = self.checks.get();
        let is_half_done = !walk.unjudged.half_done.is_empty();
        self.checks.set(Checks { checks: checks + 1, half_done: half_done + u64::from(is_half_done) });
        if !walk.findings.is_empty() {
            self.shared.wrong(format!("a check where the server stands: {:?}", walk.findings));
        }
    }

    /// Nothing happens for a while. Between two of these the server's clock is published, if it is not stopped.
    fn lull(&mut self) {
        let most_ns =
            self.rng.pick(if self.shared.is_stopped() { &[1, 4, 40] } else { &[1, 4, 4] }) * 1_000_000;
        self.fabric.pass(self.rng.below(most_ns));
        if self.shared.is_stopped() {
            return;
        }
        if let Some(server) = &self.server {
            server.publish_clock();
        }
        if self.rng.one_in(self.stop_one_in) {
            let ns = self.rng.pick(&[10, 100, 100, 1000, 10_000]) * 1_000_000;
            self.shared.stopped_until_ns.set(self.fabric.now_ns() + ns);
            self.stops += 1;
        }
    }

    /// Who runs while the server stands: one alone, for a while or until a GET of what is being written has ended. So
    /// GETs come one after the other, by one client and then by another.
    fn favourite(&mut self, awake: &[usize], now: u64) -> usize {
        let gets = self.shared.gets_ended.get();
        let is_over = now >= self.favourite_until || gets != self.favourite_gets;
        if is_over || !awake.contains(&self.favourite) {
            (self.favourite, self.favourite_gets) = (self.rng.pick(awake), gets);
            self.favourite_until = now + FAVOURITE_STEPS;
        }
        self.favourite
    }

    fn turn_of_server(&mut self, now: u64) {
        match &mut self.server {
            None => {
                let (plan, is_up, on_write) = (&self.server_plan, &self.shared.is_up, on_write(&self.shared));
                let server = Server::start(self.memory, &self.fabric, plan, &mut self.rng, is_up, on_write);
                self.server = Some(server);
            }
            Some(_) if self.rng.one_in(self.kill_one_in) => self.kill(now),
            Some(server) => {
                self.fabric.go_on();
                server.run();
                let is_ambushed = self.fabric.take_ambushed() && self.rng.one_in(self.stand_one_in);
                if is_ambushed || self.rng.one_in(self.preempt_one_in) {
                    let (gets, steps) = (self.rng.pick(&[2, 6, 12]), self.rng.pick(&[60, 500, 2000]));
                    self.server_sleeps_until = now + self.rng.below(steps);
                    self.server_waits_for = self.shared.gets_ended.get() + gets;
                    self.fabric.stand_still();
                    // The processor that it lost is somebody's now.
                    for actor in &self.actors {
                        if self.rng.one_in(self.wake_one_in) {
                            actor.sleep_until.set(now);
                        }
                    }
                }
            }
        }
    }

    fn kill(&mut self, now: u64) {
        self.kills += 1;
        self.shared.is_up.set(false);
        if let Some(server) = self.server.take() {
            server.kill(self.memory);
        }
        self.fabric.break_all(Broken::ServerGone);
        self.memory.clear();
        self.shared.life.set(self.shared.life.get() + 1);
        self.server_sleeps_until = now + self.rng.below(2000);
        self.server_waits_for = u64::MAX;
    }
}

/// Notes which key is being written: clients look at it more often than at others.
fn on_write(shared: &Rc<Shared>) -> OnWrite {
    let shared = Rc::clone(shared);
    Rc::new(move |key| {
        let number = shared.oracle.borrow().keys().iter().position(|known| known.bytes == key);
        shared.written.set(number.expect("clients write known keys"));
    })
}
