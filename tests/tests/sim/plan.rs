//! What a seed determines before it begins: how bad the network is, what befalls the server, who does what to which
//! keys.
//!
//! Several moods, because what brings some dangers about keeps others away:
//! * a *storm* has everything: faults of all kinds, stopped clients, many sizes, servers killed;
//! * a *duel* is about one to three keys that move to and fro between two places, without faults: the server often stands
//!   between two stores, and clients, some of which have looked there just now and some long ago, look at what it writes;
//! * a *crowd* has many keys of one home that come and go like a queue, a fast writer and many readers whose READs are
//!   late;
//! * in a *haul* some of the values lie in pages: a duel of few operations, since each takes very many stores. Such seeds are
//!   those from [`HAULS`] on.

use std::time::Duration;

use kv_common::transport::sim::{Flavour, Rng, Weather};
use kv_tests::oracle::Key;

use crate::keys;
use crate::player::{PlayerPlan, Role};
use crate::server::ServerPlan;

/// The first seed of a haul.
pub(crate) const HAULS: u64 = 1 << 32;

/// Everything about one seed.
pub(crate) struct Plan {
    pub(crate) weather: Weather,
    pub(crate) server_plan: ServerPlan,
    /// Once in so many of its turns the server loses the processor for long.
    pub(crate) preempt_one_in: u64,
    /// Then one in so many sleepers wakes.
    pub(crate) wake_one_in: u64,
    /// Once in so many turns a connection breaks, or the server is killed.
    pub(crate) break_one_in: u64,
    pub(crate) kill_one_in: u64,
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
    Haul,
}

impl Plan {
    /// Draws the plan of a seed.
    pub(crate) fn draw(rng: &mut Rng, seed: u64) -> Plan {
        let is_haul = seed >= HAULS;
        let moods =
            if is_haul { [Mood::Haul; 4] } else { [Mood::Storm, Mood::Duel, Mood::Duel, Mood::Crowd] };
        let mood = rng.pick(&moods);
        let (hash_seed, players, keys) = draw_players(rng, mood);
        let is_storm = mood == Mood::Storm;
        Plan {
            weather: draw_weather(rng, mood),
            server_plan: ServerPlan {
                hash_seed,
                idle_one_in: if is_storm { rng.pick(&[1, 1, 4, 50]) } else { 1 },
            },
            preempt_one_in: match mood {
                Mood::Storm => rng.pick(&[0, 4, 20, 100]),
                Mood::Duel => rng.pick(&[4, 10]),
                Mood::Crowd => 0,
                Mood::Haul => rng.pick(&[0, 400, 4000]),
            },
            wake_one_in: if is_storm { 2 } else { rng.pick(&[4, 10]) },
            break_one_in: match mood {
                Mood::Storm => rng.pick(&[0, 5000, 50_000]),
                Mood::Haul => rng.pick(&[0, 200_000]),
                Mood::Duel | Mood::Crowd => 0,
            },
            kill_one_in: if is_storm { rng.pick(&[0, 0, 40_000]) } else { 0 },
            players,
            keys,
            block_bytes: draw_classes(rng, mood),
            staging_words: if is_haul { rng.pick(&[4096, 20_000, 140_000]) } else { 4096 },
        }
    }
}

fn draw_weather(rng: &mut Rng, mood: Mood) -> Weather {
    let calm = Weather {
        switch_one_in: 1,
        stall_one_in: 0,
        outage_one_in: 0,
        quick_percent: 90,
        ambush_percent: 20,
        read_late_steps_max: 400,
        late_steps_max: 0,
        burst_one_in: 0,
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
        Mood::Storm => Weather {
            switch_one_in: rng.pick(&[1, 2, 4, 16]),
            stall_one_in: rng.pick(&[0, 300, 2000, 10_000]),
            outage_one_in: rng.pick(&[0, 0, 30_000, 200_000]),
            quick_percent: rng.pick(&[0, 0, 50, 95]),
            ambush_percent: rng.pick(&[0, 5, 20]),
            read_late_steps_max: 400,
            late_steps_max: rng.pick(&[0, 5, 50, 500]),
            burst_one_in: rng.pick(&[0, 10, 50]),
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
        };
    let count = match mood {
        Mood::Storm => rng.pick(&[4, 10, 30]),
        Mood::Duel | Mood::Haul => rng.pick(&[1, 2, 3]),
        Mood::Crowd => 60,
    };
    let (hash_seed, names) = keys::draw(rng, count);
    // Of four keys one has a single writer that never deletes it, one is written by two clients, two by all.
    let first_kind = if mood == Mood::Storm { 0 } else { 2 };
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
    };
    let common = Common {
        operations,
        first_cache: rng.below(4) as usize,
        turn_one_in: match mood {
            Mood::Storm => rng.pick(&[40, 200, 400]),
            Mood::Duel | Mood::Haul => 4,
            Mood::Crowd => 0,
        },
        sleep_one_in: match mood {
            Mood::Storm => rng.pick(&[0, 10, 30, 100]),
            Mood::Duel | Mood::Haul => 10,
            Mood::Crowd => 0,
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
            Mood::Crowd => rng.pick(&[64, 64, 64, 64 << 20]),
            _ => [64, 64 << 20, 512, 64 << 10][(common.first_cache + client) % 4],
        },
        warms_up: mood == Mood::Storm && rng.one_in(8),
        depth: match (mood, client) {
            // GETs that wait in their client's queue would overlap with more writes than they meet.
            (Mood::Crowd, 1..) => 12,
            _ => rng.pick(&[2, 8, 40]),
        },
        pipelined_percent: match mood {
            Mood::Storm => rng.pick(&[0, 40, 90]),
            Mood::Duel => 0,
            Mood::Haul => rng.pick(&[0, 50]),
            Mood::Crowd => 90,
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
        },
        follow_percent: match mood {
            Mood::Storm => rng.pick(&[0, 20, 80]),
            Mood::Duel | Mood::Haul => 90,
            Mood::Crowd => 0,
        },
        hot_keys: if mood == Mood::Storm { rng.pick(&[0, 4]) } else { 0 },
        queue_burst_max: if mood == Mood::Crowd { 24 } else { 0 },
        turn_one_in: common.turn_one_in,
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
    }
}
