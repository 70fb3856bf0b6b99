//! A client that forges: it writes bytes shaped like valid blocks of other keys to where those keys' blocks were, once the
//! segment holds values of another size. Nobody may believe them, however late a READ comes back, however old a place is.
//!
//! The thief plays fair but for that: it stores values, and knows what any client can read. The table's only defence is the
//! place epoch (`server/src/table/space.rs`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use kv_client::{Client, Options};
use kv_common::adversary::Mutant;
use kv_common::block;
use kv_common::hash::KeyHash;
use kv_common::layout::{BLOCK_HEADER_BYTES, GRANULE_BYTES, Place, WINDOW_WORDS};
use kv_common::limits::GRACE_NS;
use kv_common::probe::{Matches, TableView, judge_window};
use kv_common::region::{Words, bytes_of};
use kv_common::transport::sim::{Fabric, Flavour, Rng, Weather};

use crate::server::{Grown, Memory, Server, ServerPlan};
use crate::stage::perform;
use crate::tasks::{Task, pause};

/// Superblock, directory, one of index lines, and seven for blocks.
const SEGMENTS: usize = 10;
/// Values of so many bytes fill the segments that the victims leave: a class each.
const FILLERS: [usize; 6] = [700, 900, 1300, 4500, 5500, 7000];
const VICTIMS_MAX: u64 = 30;
const READERS: u64 = 3;
const STAGING_WORDS: usize = 64;
const FORGED: &[u8] = b"forged";
const THIEF: &[u8] = b"thief";
/// No heist takes so many steps.
const STEPS_MAX: u64 = 20_000_000;

/// What all who take part know.
struct Scene {
    fabric: Fabric,
    region: Words,
    victims: Vec<Vec<u8>>,
    is_up: Rc<Cell<bool>>,
    sessions: Cell<u64>,
    /// All victims were deleted, and the thief was told so.
    are_deleted: Cell<bool>,
    is_over: Cell<bool>,
    wrong: RefCell<Option<String>>,
}

/// Plays one heist. The error says what is wrong.
pub(crate) fn play(memory: &Memory, seed: u64, mutant: Option<Mutant>) -> Result<Grown, String> {
    perform(memory, mutant, || play_on(memory, seed))
}

fn play_on(memory: &Memory, seed: u64) -> Result<Grown, String> {
    let mut rng = Rng::new(seed);
    let victims: Vec<Vec<u8>> =
        (0..1 + rng.below(VICTIMS_MAX)).map(|i| format!("victim {i:02}").into_bytes()).collect();
    let (server_plan, weather) = (server_plan(&mut rng), weather(&mut rng));
    let fillers = (0..FILLERS.len()).map(filler);
    let all = victims.iter().cloned().chain([THIEF.to_vec()]).chain(fillers);
    let hashed = |key: Vec<u8>| (key.clone(), KeyHash::new(server_plan.hash_seed, &key));
    memory.set_keys(all.map(hashed).collect());
    let region = memory.region(SEGMENTS);
    let fabric = Fabric::new(region.clone(), rng.fork(), weather, pause);
    memory.hook(&fabric);
    let scene = Rc::new(Scene {
        fabric: fabric.clone(),
        region,
        victims,
        is_up: Rc::default(),
        sessions: Cell::new(0),
        are_deleted: Cell::new(false),
        is_over: Cell::new(false),
        wrong: RefCell::default(),
    });
    let on_write = Rc::new(|_: &[u8]| {});
    let mut server = Server::start(memory, &fabric, &server_plan, &mut rng, &scene.is_up, on_write);
    let mut actors = vec![actor(&scene, rng.fork(), steal)];
    actors.extend((0..READERS).map(|_| actor(&scene, rng.fork(), read)));
    while !actors.is_empty() {
        fabric.step();
        if let Some(wrong) = scene.wrong.take() {
            return Err(wrong);
        }
        if fabric.now_step() > STEPS_MAX {
            return Err(format!("no end after {STEPS_MAX} steps"));
        }
        if rng.one_in(2) {
            fabric.go_on();
            server.run();
            continue;
        }
        let chosen = rng.below(actors.len() as u64) as usize;
        if actors[chosen].run() {
            actors.swap_remove(chosen);
        }
    }
    server.end()
}

fn server_plan(rng: &mut Rng) -> ServerPlan {
    ServerPlan {
        hash_seed: rng.next_u64(),
        idle_one_in: 1,
        segments: SEGMENTS,
        grace_ns: GRACE_NS,
        split_one_in: 0,
        grow_one_in: 0,
        grow_ends_one_in: 1,
        keep_one_in: rng.pick(&[1, 1, 10]),
        empty_one_in: 0,
        evicts: false,
        evict_one_in: 0,
        evict_bytes: Vec::new(),
    }
}

fn weather(rng: &mut Rng) -> Weather {
    Weather {
        switch_one_in: rng.pick(&[4, 16]),
        stall_one_in: 0,
        outage_one_in: 0,
        quick_percent: rng.pick(&[20, 80]),
        ambush_percent: 0,
        gap_ambush_one_in: 0,
        read_late_steps_max: rng.pick(&[400, 20_000]),
        read_gap_steps_max: rng.pick(&[2000, 20_000]),
        late_steps_max: 0,
        burst_one_in: 0,
        drift_ppm_max: 1000,
    }
}

fn actor(scene: &Rc<Scene>, rng: Rng, script: fn(&Scene, Rng)) -> Task {
    let scene = Rc::clone(scene);
    Task::new(move || script(&scene, rng))
}

fn filler(number: usize) -> Vec<u8> {
    format!("filler {number}").into_bytes()
}

impl Scene {
    fn connect(&self, flavour: Flavour) -> Client {
        while !self.is_up.get() {
            pause();
        }
        let session = self.sessions.get() + 1;
        self.sessions.set(session);
        let transport = self.fabric.connect(flavour, true, session, Words::zeroed(STAGING_WORDS));
        // Nothing breaks here, and waiting for room takes longer than LEASE.
        let options = Options { timeout: Duration::from_secs(3600), ..Options::default() };
        let region_words = self.region.len_words();
        Client::over(Box::new(transport), session, region_words, Duration::ZERO, &options)
            .expect("the server is up")
    }

    fn view(&self) -> TableView {
        kv_common::check::view_of(&self.region).expect("the server is up")
    }

    /// Where the block of a present key is, as any client can see.
    fn place_of(&self, key: &[u8]) -> Option<Place> {
        let view = self.view();
        let hash = view.hash(key);
        let mut window = [0; WINDOW_WORDS];
        self.region.copy_out(view.home(hash).word(), &mut window);
        let mut matches = Matches::none();
        judge_window(&window, hash, &mut matches);
        matches.slots().first().map(|slot| slot.place())
    }
}

/// The thief's part.
fn steal(scene: &Scene, mut rng: Rng) {
    let mut client = scene.connect(Flavour::Posted);
    let victim_bytes = 30 + rng.below(200) as usize;
    for victim in &scene.victims {
        client.put(victim, &vec![b'v'; victim_bytes]).expect("there is room");
    }
    for (number, bytes) in FILLERS.iter().enumerate() {
        client.put(&filler(number), &vec![b'f'; *bytes]).expect("there is room");
    }
    let places: Vec<Option<Place>> = scene.victims.iter().map(|victim| scene.place_of(victim)).collect();
    for _ in 0..rng.below(200) {
        pause();
    }
    for victim in &scene.victims {
        assert_eq!(client.delete(victim), Ok(true));
    }
    scene.are_deleted.set(true);
    // No segment is free: this waits until that of the victims is.
    let mut value = vec![b't'; 1500 + rng.below(2000) as usize];
    client.put(THIEF, &value).expect("there will be room");
    let own = scene.place_of(THIEF).expect("it was just put");
    for (victim, place) in scene.victims.iter().zip(places) {
        if let Some(place) = place {
            forge(scene, &mut value, own, victim, place);
        }
    }
    client.put(THIEF, &value).expect("it is updated in place");
    assert_eq!(scene.place_of(THIEF), Some(own), "or else the forgery is elsewhere");
    for _ in 0..30_000 {
        pause();
    }
    scene.is_over.set(true);
}

/// Writes a block of `victim` that would be valid at `place` into the value whose block is at `own`, if that is in it.
fn forge(scene: &Scene, value: &mut [u8], own: Place, victim: &[u8], place: Place) {
    let mut words = [0; 16];
    let used = block::encode(&mut words, victim, FORGED, 1 << 50, place, scene.view().table_id);
    let forged = &bytes_of(&words)[..used * 8];
    let start = (BLOCK_HEADER_BYTES + THIEF.len()) as i64;
    let at = (place.0 as i64 - own.0 as i64) * GRANULE_BYTES as i64 - start;
    let Ok(at) = usize::try_from(at) else { return };
    if let Some(room) = value.get_mut(at..at + forged.len()) {
        room.copy_from_slice(forged);
    }
}

/// A reader's part: it looks at the victims all the time.
fn read(scene: &Scene, mut rng: Rng) {
    let mut client = scene.connect(rng.pick(&[Flavour::Posted, Flavour::Posted, Flavour::Loads]));
    while !scene.is_over.get() {
        let victim = &scene.victims[rng.below(scene.victims.len() as u64) as usize];
        let were_deleted = scene.are_deleted.get();
        match client.get(victim) {
            Ok(None) => {}
            Ok(Some(value)) if value.bytes == FORGED => {
                return scene.note_wrong("a forged block was believed".to_owned());
            }
            Ok(Some(_)) if were_deleted => {
                return scene.note_wrong("a key was read that had been deleted".to_owned());
            }
            Ok(Some(_)) => {}
            Err(error) => return scene.note_wrong(format!("a GET failed: {error}")),
        }
        // Some look only now and then.
        let pauses = rng.pick(&[1, 300]);
        for _ in 0..rng.below(pauses) {
            pause();
        }
    }
}

impl Scene {
    fn note_wrong(&self, what: String) {
        self.wrong.borrow_mut().get_or_insert(what);
    }
}
