//! What a seed determines before it begins: how bad the network is, what befalls the server, who does what to which
//! keys.
//!
//! Several moods, because what brings some dangers about keeps others away:
//! * a *storm* has everything: faults of all kinds, stopped clients, many sizes, servers killed;
//! * a *duel* is about one to three keys that move to and fro between two places, without faults: the server often stands
//!   between two stores, and clients, some of which have looked there just now and some long ago, look at what it writes;
//! * a *crowd* has many keys of one home that come and go like a queue, a fast writer and many readers whose READs are
//!   late;
//! * a *boom* has index segments split one after the other, and readers who remember little and often read across a whole
//!   split;
//! * a *lull* has keys whose time ends, and time for that: it goes by in leaps, the server is stopped for a while now and
//!   then, and clocks of clients leap and run too fast or too slowly;
//! * in a *haul* some of the values lie in pages: a duel of few operations, since each takes very many stores. Such seeds are
//!   those from [`HAULS`] on.
//!
//! And a *cache*, which is a storm over a server that evicts: whatever is stored may be gone at any moment. A *flood* is a storm
//! or a boom over such a server, with everything else at once: segments are split and emptied, keys end, some values lie in pages,
//! the server is stopped and killed.

use std::time::Duration;

use kv_common::limits::GRACE_NS;
use kv_common::transport::sim::{Flavour, Rng, Weather};
use kv_tests::oracle::Key;

use crate::keys;
use crate::player::{PlayerPlan, Role};
use crate::server::ServerPlan;

/// Segments of a region that is full now and then: the superblock's, the directory's, one of index lines, and about as
/// many for blocks as there are classes in use.
const SEGMENTS: usize = 10;
/// ... of one that has room for values in pages, too, ...
const FLOOD_SEGMENTS: usize = 14;
/// ... and of one whose index grows.
pub(crate) const SEGMENTS_MAX: usize = 48;
/// The first seed of a haul.
pub(crate) const HAULS: u64 = 1 << 32;

/// Everything about one seed.
pub(crate) struct Plan {
    pub(crate) weather: Weather,
    pub(crate) server_plan: ServerPlan,
    /// Once in so many of its turns the server loses the processor for long, ...
    pub(crate) preempt_one_in: u64,
    /// ... and once in so many of those that end at a store which a READ has waited for.
    pub(crate) stand_one_in: u64,
    /// Then one in so many sleepers wakes.
    pub(crate) wake_one_in: u64,
    /// Once in so many turns a connection breaks, or the server is killed.
    pub(crate) break_one_in: u64,
    pub(crate) kill_one_in: u64,
    /// Once in so many turns nothing happens for a while, and once in so many of these times the server is stopped.
    pub(crate) lull_one_in: u64,
    pub(crate) stop_one_in: u64,
    /// How often the server publishes its clock, if keys have an end and there are no lulls between which it does.
    pub(crate) clock_every_ns: Option<u64>,
    pub(crate) players: Vec<PlayerPlan>,
    pub(crate) keys: Vec<Key>,
    /// Bytes of the blocks in use.
    pub(crate) block_bytes: Vec<usize>,
    /// Words that a client lends for values too large for a message.
    pub(crate) staging_words: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    Storm,
    Duel,
    Crowd,
    Boom,
    Lull,
    Haul,
}

impl Plan {
    /// Draws the plan of a seed.
    pub(crate) fn draw(rng: &mut Rng, seed: u64) -> Plan {
        let moods = [Mood::Storm, Mood::Duel, Mood::Duel, Mood::Crowd, Mood::Boom, Mood::Boom, Mood::Lull];
        let mood = if seed >= HAULS { Mood::Haul } else { rng.pick(&moods) };
        Plan::of(rng, mood)
    }

    /// Draws the plan of a cache: many sizes in few segments, and keys that go for no reason but chance, too.
    pub(crate) fn draw_cache(rng: &mut Rng, _seed: u64) -> Plan {
        let mut plan = Plan::of(rng, Mood::Storm);
        plan.server_plan = ServerPlan {
            evicts: true,
            evict_one_in: rng.pick(&[0, 30, 300]),
            evict_bytes: plan.block_bytes.clone(),
            keep_one_in: 1,
            empty_one_in: rng.pick(&[0, 500]),
            ..plan.server_plan
        };
        plan
    }

    /// Draws the plan of a flood.
    pub(crate) fn draw_flood(rng: &mut Rng, _seed: u64) -> Plan {
        let mood = rng.pick(&[Mood::Storm, Mood::Boom]);
        let mut plan = Plan::of(rng, mood);
        let small_bytes = std::mem::take(&mut plan.block_bytes);
        plan.block_bytes = small_bytes.iter().copied().cycle().take(15).collect();
        // The last ones take two segments.
        plan.block_bytes.extend(rng.pick(&[&[330_000][..], &[390_000, 340_000], &[390_000], &[2_200_000]]));
        plan.server_plan = ServerPlan {
            segments: rng.pick(&[FLOOD_SEGMENTS, SEGMENTS_MAX / 2, SEGMENTS_MAX]),
            split_one_in: rng.pick(&[100, 500]),
            evicts: true,
            evict_one_in: rng.pick(&[100, 1000, 10_000]),
            evict_bytes: plan.block_bytes.clone(),
            empty_one_in: rng.pick(&[100, 500]),
            ..plan.server_plan
        };
        plan.staging_words = rng.pick(&[4096, 20_000, 140_000]);
        plan.lull_one_in = rng.pick(&[100, 400, 4000]);
        plan.stop_one_in = rng.pick(&[0, 200, 1000]);
        plan.clock_every_ns = Some(5_000_000);
        // Large values take many steps: what comes so often as in a storm would leave nothing whose outcome is known, or no end.
        plan.weather.outage_one_in = rng.pick(&[0, 2_000_000]);
        plan.weather.stall_one_in = rng.pick(&[0, 20_000]);
        plan.weather.switch_one_in = rng.pick(&[4, 16]);
        plan.preempt_one_in = rng.pick(&[0, 400, 4000]);
        plan.break_one_in = rng.pick(&[0, 200_000]);
        plan.kill_one_in = rng.pick(&[0, 200_000]);
        for player in &mut plan.players {
            player.operations = player.operations.min(600);
            player.timeout = Duration::from_millis(rng.pick(&[100, 5000, 5000]));
            player.ttl_percent = rng.pick(&[5, 20, 60]);
            player.look_late_one_in = 4;
            // They wait for writes, and do not just miss what was evicted.
            player.follow_percent = rng.pick(&[40, 90]);
            (player.sleep_one_in, player.sleep_steps_max) = (rng.pick(&[2, 10]), 10_000);
        }
        plan
    }

    fn of(rng: &mut Rng, mood: Mood) -> Plan {
        let (hash_seed, players, keys) = draw_players(rng, mood);
        let is_storm = mood == Mood::Storm;
        Plan {
            weather: draw_weather(rng, mood),
            server_plan: draw_server(rng, mood, hash_seed),
            preempt_one_in: match mood {
                Mood::Storm => rng.pick(&[0, 4, 20, 100]),
                Mood::Duel => rng.pick(&[4, 10]),
                Mood::Crowd => 0,
                Mood::Boom => rng.pick(&[0, 100]),
                Mood::Lull => rng.pick(&[0, 20, 100]),
                Mood::Haul => rng.pick(&[0, 400, 4000]),
            },
            // Whoever waits for a whole split is not to be sent away at its first store.
            stand_one_in: if mood == Mood::Boom { rng.pick(&[0, 0, 2]) } else { 2 },
            lull_one_in: if mood == Mood::Lull { rng.pick(&[50, 200]) } else { 0 },
            stop_one_in: if mood == Mood::Lull { rng.pick(&[0, 20, 200]) } else { 0 },
            clock_every_ns: (mood == Mood::Haul).then_some(5_000_000),
            wake_one_in: if is_storm { 2 } else { rng.pick(&[4, 10]) },
            break_one_in: match mood {
                Mood::Storm => rng.pick(&[0, 5000, 50_000]),
                Mood::Haul => rng.pick(&[0, 200_000]),
                Mood::Duel | Mood::Crowd | Mood::Boom | Mood::Lull => 0,
            },
            kill_one_in: if is_storm || mood == Mood::Lull { rng.pick(&[0, 20_000, 40_000]) } else { 0 },
            players,
            keys,
            block_bytes: draw_classes(rng, mood),
            staging_words: if mood == Mood::Haul { rng.pick(&[4096, 20_000, 140_000]) } else { 4096 },
        }
    }
}

fn draw_server(rng: &mut Rng, mood: Mood, hash_seed: u64) -> ServerPlan {
    let (grow_one_in, grow_ends_one_in) = rng.pick(&[(1, 20), (1, 20), (1, 1), (30, 1), (100, 1)]);
    let calm = ServerPlan {
        hash_seed,
        idle_one_in: 1,
        segments: SEGMENTS,
        grace_ns: GRACE_NS,
        split_one_in: 0,
        grow_one_in: 1,
        grow_ends_one_in: 1,
        keep_one_in: rng.pick(&[1, 10]),
        empty_one_in: if matches!(mood, Mood::Storm | Mood::Boom) { rng.pick(&[0, 0, 500]) } else { 0 },
        evicts: false,
        evict_one_in: 0,
        evict_bytes: Vec::new(),
    };
    match mood {
        Mood::Duel | Mood::Crowd | Mood::Lull | Mood::Haul => calm,
        Mood::Storm => ServerPlan {
            idle_one_in: rng.pick(&[1, 1, 4, 50]),
            segments: rng.pick(&[SEGMENTS, SEGMENTS, SEGMENTS_MAX]),
            grace_ns: rng.pick(&[GRACE_NS, 100_000]),
            split_one_in: rng.pick(&[0, 2000]),
            ..calm
        },
        Mood::Boom => ServerPlan {
            segments: SEGMENTS_MAX,
            // Some thousand steps: READs are quicker as a rule, and some are slower.
            grace_ns: rng.pick(&[10_000, 60_000, 200_000]),
            split_one_in: rng.pick(&[100, 500]),
            // At one go, or with pauses that are longer than READs.
            grow_one_in,
            grow_ends_one_in,
            ..calm
        },
    }
}

fn draw_weather(rng: &mut Rng, mood: Mood) -> Weather {
    let calm = Weather {
        switch_one_in: 1,
        stall_one_in: 0,
        outage_one_in: 0,
        quick_percent: 90,
        ambush_percent: 20,
        gap_ambush_one_in: 0,
        read_late_steps_max: 400,
        read_gap_steps_max: 2000,
        late_steps_max: 0,
        burst_one_in: 0,
        drift_ppm_max: 1000,
    };
    match mood {
        Mood::Duel => Weather { quick_percent: rng.pick(&[50, 90]), ..calm },
        Mood::Haul => Weather {
            switch_one_in: rng.pick(&[4, 16]),
            quick_percent: rng.pick(&[20, 80]),
            ambush_percent: rng.pick(&[20, 50]),
            read_late_steps_max: rng.pick(&[400, 20_000]),
            late_steps_max: rng.pick(&[0, 50]),
            burst_one_in: rng.pick(&[0, 10]),
            ..calm
        },
        Mood::Crowd => Weather {
            switch_one_in: 4,
            quick_percent: 10,
            ambush_percent: 0,
            read_late_steps_max: rng.pick(&[2000, 5000]),
            late_steps_max: 20,
            ..calm
        },
        Mood::Boom => Weather {
            switch_one_in: rng.pick(&[1, 4, 16]),
            quick_percent: rng.pick(&[0, 30, 80]),
            ambush_percent: rng.pick(&[40, 80]),
            gap_ambush_one_in: 1,
            read_late_steps_max: rng.pick(&[30, 400]),
            read_gap_steps_max: rng.pick(&[2000, 10_000]),
            late_steps_max: rng.pick(&[0, 20]),
            ..calm
        },
        Mood::Lull => Weather {
            switch_one_in: rng.pick(&[1, 4, 16]),
            stall_one_in: rng.pick(&[0, 2000, 20_000]),
            outage_one_in: rng.pick(&[0, 0, 100_000]),
            quick_percent: rng.pick(&[50, 95]),
            late_steps_max: rng.pick(&[0, 5, 50]),
            drift_ppm_max: rng.pick(&[0, 100, 10_000]),
            ..calm
        },
        Mood::Storm => Weather {
            switch_one_in: rng.pick(&[1, 2, 4, 16]),
            stall_one_in: rng.pick(&[0, 300, 2000, 10_000]),
            outage_one_in: rng.pick(&[0, 0, 30_000, 200_000]),
            quick_percent: rng.pick(&[0, 0, 50, 95]),
            ambush_percent: rng.pick(&[0, 5, 20]),
            gap_ambush_one_in: 0,
            read_late_steps_max: 400,
            read_gap_steps_max: 2000,
            late_steps_max: rng.pick(&[0, 5, 50, 500]),
            burst_one_in: rng.pick(&[0, 10, 50]),
            ..calm
        },
    }
}

/// Clients, what each may do, and the keys.
fn draw_players(rng: &mut Rng, mood: Mood) -> (u64, Vec<PlayerPlan>, Vec<Key>) {
    let clients = rng.below(2) as usize
        + match mood {
            Mood::Storm => 3,
            Mood::Duel | Mood::Haul => 4,
            Mood::Crowd => 8,
            Mood::Boom => 4,
            Mood::Lull => 3,
        };
    let count = match mood {
        Mood::Storm => rng.pick(&[4, 10, 30]),
        Mood::Duel | Mood::Haul => rng.pick(&[1, 2, 3]),
        Mood::Crowd => 60,
        Mood::Boom => rng.pick(&[8, 20, 60]),
        Mood::Lull => rng.pick(&[2, 6, 20]),
    };
    let (hash_seed, names) = keys::draw(rng, count);
    // Of four keys one has a single writer that never deletes it, one is written by two clients, two by all.
    let first_kind = if matches!(mood, Mood::Storm | Mood::Boom) { 0 } else { 2 };
    let kinds: Vec<(u64, usize)> = names
        .iter()
        .map(|_| (first_kind + rng.below(4 - first_kind), rng.below(clients as u64) as usize))
        .collect();
    let is_single_writer = |&(kind, _): &(u64, usize)| kind == 0;
    let keys = names.into_iter().zip(&kinds);
    let keys = keys.map(|(bytes, kind)| Key { bytes, is_single_writer: is_single_writer(kind) }).collect();
    let operations = match mood {
        Mood::Storm => 200 + rng.below(400),
        Mood::Duel => 600,
        Mood::Haul => 40,
        Mood::Crowd => 8000,
        Mood::Boom => 2000,
        Mood::Lull => 500,
    };
    let common = Common {
        operations,
        first_cache: rng.below(4) as usize,
        turn_one_in: match mood {
            Mood::Storm => rng.pick(&[40, 200, 400]),
            Mood::Duel | Mood::Haul => 4,
            Mood::Crowd => 0,
            Mood::Boom => 200,
            Mood::Lull => 200,
        },
        sleep_one_in: match mood {
            Mood::Storm => rng.pick(&[0, 10, 30, 100]),
            Mood::Duel | Mood::Haul => 10,
            Mood::Crowd => 0,
            Mood::Boom => rng.pick(&[0, 100]),
            Mood::Lull => rng.pick(&[0, 10, 30]),
        },
    };
    let players =
        (0..clients).map(|client| draw_player(rng, mood, client, clients, &kinds, &common)).collect();
    (hash_seed, players, keys)
}

/// What is drawn once for all clients.
struct Common {
    operations: u64,
    first_cache: usize,
    turn_one_in: u64,
    sleep_one_in: u64,
}

fn draw_player(
    rng: &mut Rng,
    mood: Mood,
    client: usize,
    clients: usize,
    kinds: &[(u64, usize)],
    common: &Common,
) -> PlayerPlan {
    let role = |&(kind, owner): &(u64, usize)| match kind {
        0 if owner == client => Role::Keep,
        0 => Role::Read,
        1 if owner != client && (owner + 1) % clients != client => Role::Read,
        _ => Role::Any,
    };
    let all_flavours: [&[Flavour]; 3] =
        [&[Flavour::Posted], &[Flavour::Loads], &[Flavour::Posted, Flavour::Loads]];
    PlayerPlan {
        number: client as u32,
        operations: common.operations,
        roles: kinds.iter().map(role).collect(),
        flavours: if mood == Mood::Crowd { vec![Flavour::Posted] } else { rng.pick(&all_flavours).to_vec() },
        is_patient: mood == Mood::Storm || client > 0,
        timeout: Duration::from_millis(if mood == Mood::Storm {
            rng.pick(&[5, 100, 5000, 5000])
        } else {
            5000
        }),
        index_cache_bytes: match mood {
            // Without places at hand they walk along the chains.
            Mood::Crowd | Mood::Boom => rng.pick(&[64, 64, 64, 64 << 20]),
            _ => [64, 64 << 20, 512, 64 << 10][(common.first_cache + client) % 4],
        },
        warms_up: mood == Mood::Storm && rng.one_in(8),
        depth: match (mood, client) {
            // GETs that wait in their client's queue would overlap with more writes than they meet.
            (Mood::Crowd, 1..) => 12,
            (Mood::Boom, 1..) => 40,
            _ => rng.pick(&[2, 8, 40]),
        },
        pipelined_percent: match mood {
            Mood::Storm => rng.pick(&[0, 40, 90]),
            Mood::Duel => 0,
            Mood::Haul => rng.pick(&[0, 50]),
            Mood::Crowd => 90,
            Mood::Boom => 90,
            Mood::Lull => rng.pick(&[0, 40]),
        },
        // Whoever only reads goes on while the server stands between two stores. The first client writes.
        gets_percent: match (mood, client) {
            (Mood::Storm, 0) => 50,
            (Mood::Storm, _) => rng.pick(&[30, 60, 100]),
            (Mood::Duel | Mood::Haul, 0) => 10,
            (Mood::Duel | Mood::Haul, 1) => rng.pick(&[60, 100]),
            (Mood::Duel | Mood::Haul, _) => 100,
            (Mood::Crowd, 0) => 0,
            (Mood::Crowd, _) => 100,
            (Mood::Boom, 0 | 1) => rng.pick(&[30, 60]),
            (Mood::Boom, _) => 100,
            (Mood::Lull, 0) => 60,
            (Mood::Lull, _) => rng.pick(&[80, 95]),
        },
        ttl_percent: match mood {
            Mood::Lull => 70,
            Mood::Haul => 20,
            _ => 0,
        },
        follow_percent: match mood {
            Mood::Storm => rng.pick(&[0, 20, 80]),
            Mood::Duel | Mood::Haul => 90,
            Mood::Crowd => 0,
            Mood::Boom => rng.pick(&[40, 90]),
            Mood::Lull => rng.pick(&[0, 30]),
        },
        hot_keys: if mood == Mood::Storm { rng.pick(&[0, 4]) } else { 0 },
        queue_burst_max: if mood == Mood::Crowd { 24 } else { 0 },
        turn_one_in: common.turn_one_in,
        look_late_one_in: if mood == Mood::Lull { 4 } else { 0 },
        // Those that write do not rest, where much is to be written.
        sleep_one_in: match (mood, client) {
            (Mood::Duel | Mood::Haul, 0 | 1) | (Mood::Crowd, 0) => 0,
            (Mood::Duel, _) => rng.pick(&[1, 2, 10]),
            (Mood::Haul, _) => rng.pick(&[10, 40]),
            _ => common.sleep_one_in,
        },
        sleep_steps_max: match mood {
            Mood::Storm => rng.pick(&[100, 1000, 10_000]),
            Mood::Duel | Mood::Haul => rng.pick(&[5000, 50_000]),
            Mood::Crowd => 0,
            Mood::Boom => rng.pick(&[100, 10_000]),
            Mood::Lull => rng.pick(&[100, 2000]),
        },
    }
}

/// Bytes of the blocks in use, drawn so that keys move between classes or stay in theirs.
fn draw_classes(rng: &mut Rng, mood: Mood) -> Vec<usize> {
    let all = [64, 80, 96, 128, 256, 512, 1024, 2048, 5120, 12 << 10];
    let size = |rng: &mut Rng| if rng.one_in(4) { rng.pick(&all) } else { rng.pick(&all[..6]) };
    match mood {
        Mood::Storm => (0..1 + rng.below(9)).map(|_| size(rng)).collect(),
        // To and fro: a key comes back to the place that it had before.
        Mood::Duel => vec![96, 112],
        // Runs of the same length and of others, so that places are again inside of what comes there later.
        Mood::Haul => rng
            .pick(&[&[390_000, 330_000][..], &[340_000, 500_000, 96], &[330_000, 390_000, 410_000]])
            .to_vec(),
        Mood::Crowd => vec![64],
        Mood::Boom => vec![64, 80, 96],
        Mood::Lull => vec![64, 96, 112, 512],
    }
}
