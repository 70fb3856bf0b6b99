//! Keys that are in each other's way: of one home and its neighbours, so that overflow lines come and go; two with the
//! same fingerprint and home; some that begin like others.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use kv_common::hash::KeyHash;
use kv_common::transport::sim::Rng;

/// Hash seeds that tables of the simulation have: looking for keys takes a while, so there are few.
const HASH_SEEDS: [u64; 2] = [0x5eed_0001, 0x5eed_0002];
/// Keys to choose from: some 50 per home, enough for a chain of overflow lines; and hundreds of twins.
const CANDIDATES: u64 = 1_500_000;
/// Homes with twins that are kept, the most crowded ones.
const CLUSTERS: usize = 8;

/// Keys around one home.
struct Cluster {
    /// Two keys of the same home and fingerprint.
    twins: [Vec<u8>; 2],
    /// Others of this home.
    same_home: Vec<Vec<u8>>,
    /// Keys of the homes before and after, whose windows share a line with this one's.
    neighbours: Vec<Vec<u8>>,
}

/// Draws a hash seed and `count` keys for it.
pub(crate) fn draw(rng: &mut Rng, count: usize) -> (u64, Vec<Vec<u8>>) {
    let which = rng.below(HASH_SEEDS.len() as u64) as usize;
    let clusters = clusters(which);
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let first = rng.below(clusters.len() as u64) as usize;
    let second = (first + 1) % clusters.len();
    for cluster in [&clusters[first], &clusters[second]] {
        keys.extend(cluster.twins.iter().cloned());
        let mut others: Vec<&Vec<u8>> = cluster.same_home.iter().collect();
        rng.shuffle(&mut others);
        others.extend(&cluster.neighbours);
        // One home is crowded, the other less so: overflow lines go from one to the other.
        let share = if keys.len() < 4 { count * 4 / 5 } else { count / 4 };
        keys.extend(others.into_iter().take(share).cloned());
    }
    let stem = keys[0].clone();
    keys.push([&stem[..], b"+"].concat());
    keys.push([&stem[..], b"+longer"].concat());
    keys.push(stem[..stem.len() - 1].to_vec());
    keys.push(vec![7; 900]);
    keys.sort();
    keys.dedup();
    rng.shuffle(&mut keys);
    keys.truncate(count);
    (HASH_SEEDS[which], keys)
}

fn clusters(which: usize) -> &'static [Cluster] {
    static FOUND: [OnceLock<Vec<Cluster>>; HASH_SEEDS.len()] = [const { OnceLock::new() }; HASH_SEEDS.len()];
    FOUND[which].get_or_init(|| find(HASH_SEEDS[which]))
}

/// Candidate keys have many lengths.
fn candidate(i: u64) -> Vec<u8> {
    let mut key = format!("k{i}").into_bytes();
    key.resize(key.len() + (i % 23) as usize, b'.');
    key
}

fn find(seed: u64) -> Vec<Cluster> {
    let mut by_home: BTreeMap<u64, Vec<(u16, u64)>> = BTreeMap::new();
    for i in 0..CANDIDATES {
        let hash = KeyHash::new(seed, &candidate(i));
        by_home.entry(hash.home()).or_default().push((hash.fingerprint(), i));
    }
    let keys = |home: u64| by_home.get(&home).into_iter().flatten().map(|&(_, i)| candidate(i));
    let mut twins: Vec<(usize, u64, [u64; 2])> = Vec::new();
    for (&home, members) in &by_home {
        let mut members = members.clone();
        members.sort_unstable();
        if let Some(pair) = members.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            twins.push((members.len(), home, [pair[0].1, pair[1].1]));
        }
    }
    twins.sort_unstable();
    let mut clusters = Vec::new();
    for &(_, home, pair) in twins.iter().rev().take(CLUSTERS) {
        let twins = pair.map(candidate);
        clusters.push(Cluster {
            same_home: keys(home).filter(|key| !twins.contains(key)).collect(),
            neighbours: keys(home.wrapping_sub(1)).chain(keys(home + 1)).collect(),
            twins,
        });
    }
    assert!(clusters.len() >= 2, "so many keys have a few twins");
    clusters
}
