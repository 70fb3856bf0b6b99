//! Is there an order of the operations on one key, each taking effect between its start and its end, that explains what
//! every one of them returned? (Wing and Gong's search, with Lowe's memory of the states that were tried.)
//!
//! Beyond plain linearizability three things are asked, which the store promises:
//! * writes of one client to one key happen in the order submitted, and its reads see its earlier writes, also those
//!   that were still in flight;
//! * versions of a key rise in the order of its writes;
//! * a write with a condition happens exactly if the condition holds of what the key has before it.
//!
//! A value whose time ends is absent from then on. When that is, is known to lie between two times of the server's clock; an
//! operation can have found the value there if it began before the later one, and absent if it ended after the earlier one.
//! Whoever reads without the server's help knows the clock to [`READERS_KNOW_TO_NS`].

use std::collections::HashSet;

/// How far those who read by themselves may be off when they judge whether the time of a value is over, as documented.
pub const READERS_KNOW_TO_NS: u64 = 50_000_000;

/// One operation on the key. Starts and ends are numbers that no two of them share.
#[derive(Clone, Debug)]
pub struct Op {
    /// Who.
    pub client: u32,
    /// When it was submitted.
    pub start: u64,
    /// When its result was known; `None` if it never was: it happened at any time after its start, or never.
    pub end: Option<u64>,
    /// The server's clock at start and end.
    pub clock_ns: (u64, u64),
    /// Of a write: the earliest and the latest time at which its value may expire; `None` if it does not.
    pub expires_ns: Option<(u64, u64)>,
    /// What, and with which result.
    pub kind: Kind,
}

/// What an operation did. Results of operations without an end are what was learned otherwise, or `None`.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Stored a value; its version, if known.
    Put {
        /// The version.
        version: Option<u64>,
        /// The value, if it is too short to name its write.
        short: Option<Vec<u8>>,
    },
    /// Deleted; whether the key was there.
    Delete {
        /// The result.
        found: Option<bool>,
    },
    /// Stored a value if a condition held.
    PutIf {
        /// The condition.
        when: When,
        /// How it ended.
        result: Option<IfResult>,
        /// The version stored, if known.
        version: Option<u64>,
        /// As for [`Kind::Put`].
        short: Option<Vec<u8>>,
    },
    /// Deleted if a condition held.
    DeleteIf {
        /// The condition.
        when: When,
        /// How it ended.
        result: Option<IfResult>,
    },
    /// Read the value of one write (its index among the operations).
    GetWrite {
        /// Index of the write.
        write: usize,
    },
    /// Read a value too short to name its write.
    GetShort {
        /// The value.
        value: Vec<u8>,
        /// Its version.
        version: u64,
    },
    /// Found the key absent.
    GetAbsent,
}

/// What a write with a condition wanted of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// To be absent.
    Absent,
    /// To be there.
    Present,
    /// To have this version.
    Version(u64),
}

/// How a write with a condition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfResult {
    /// It happened.
    Done,
    /// The condition did not hold: the key was there, with this version.
    Mismatch(u64),
    /// The condition did not hold: the key was absent.
    NotFound,
}

/// What the search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order.
    Explained,
    /// There is none; the furthest that any order came, for people.
    Impossible(String),
    /// The search was given up after very many states; the furthest that any order came, for people.
    GivenUp(String),
}

const ABSENT: usize = usize::MAX;
/// States after which the search gives up.
const STATES_MAX: usize = 2_000_000;

/// Judges the operations on one key, in the order of their starts. The key is absent at first. `may_vanish`: it may become
/// absent at any moment, without anybody's asking.
pub fn check(ops: &[Op], may_vanish: bool) -> Verdict {
    assert!(ops.windows(2).all(|pair| pair[0].start < pair[1].start), "in the order of their starts");
    let mut search = Search::new(ops, may_vanish);
    if search.explain(ABSENT) {
        return Verdict::Explained;
    }
    if search.tried.len() > STATES_MAX {
        return Verdict::GivenUp(search.furthest());
    }
    Verdict::Impossible(search.furthest())
}

struct Search<'a> {
    ops: &'a [Op],
    may_vanish: bool,
    is_done: Vec<bool>,
    /// Operations with an end that are not done yet.
    open: usize,
    /// Writes of the same client that must have happened before, by operation.
    before: Vec<Vec<usize>>,
    /// Operations that are in `before` of another.
    is_waited_for: Vec<bool>,
    /// Writes whose version is known, by version. All of them have happened.
    by_version: Vec<usize>,
    /// Versions of which the write is known.
    versions: HashSet<u64>,
    /// Some value expires.
    has_expiries: bool,
    /// Sum over the operations done of a random number each: stands for their set.
    set: u128,
    tried: HashSet<(u128, usize)>,
    fewest_open: usize,
    at_fewest: Vec<(usize, usize)>,
}

impl<'a> Search<'a> {
    fn new(ops: &'a [Op], may_vanish: bool) -> Search<'a> {
        let is_write =
            |op: &Op| !matches!(op.kind, Kind::GetWrite { .. } | Kind::GetShort { .. } | Kind::GetAbsent);
        let overlaps = |a: &Op, b: &Op| a.client == b.client && a.end.is_some_and(|end| end > b.start);
        let before = |i: usize| {
            let earlier = (0..i).filter(|&j| is_write(&ops[j]) && overlaps(&ops[j], &ops[i]));
            earlier.collect()
        };
        let mut by_version: Vec<usize> = (0..ops.len()).filter(|&i| version(&ops[i]).is_some()).collect();
        by_version.sort_by_key(|&i| version(&ops[i]));
        let before: Vec<Vec<usize>> = (0..ops.len()).map(before).collect();
        let mut is_waited_for = vec![false; ops.len()];
        before.iter().flatten().for_each(|&i| is_waited_for[i] = true);
        let open = ops.iter().filter(|op| op.end.is_some()).count();
        Search {
            ops,
            may_vanish,
            is_done: vec![false; ops.len()],
            open,
            before,
            is_waited_for,
            by_version,
            versions: ops.iter().filter_map(version).collect(),
            has_expiries: ops.iter().any(|op| op.expires_ns.is_some()),
            set: 0,
            tried: HashSet::new(),
            fewest_open: usize::MAX,
            at_fewest: Vec::new(),
        }
    }

    /// Whether what is not done yet can be explained from `state`: the write whose value the key has.
    fn explain(&mut self, state: usize) -> bool {
        let mut read = Vec::new();
        let mut candidates = self.candidates();
        // A read that agrees with the state may as well happen now: it changes nothing for the others.
        while let Some(&i) =
            candidates.iter().find(|&&i| self.ops[i].end.is_some() && self.is_read_of(i, state))
        {
            self.set_done(i, true);
            read.push(i);
            candidates = self.candidates();
        }
        self.note_progress(state, &candidates);
        let is_explained = self.open == 0 || self.explain_by_write(state, candidates);
        if !is_explained {
            read.into_iter().for_each(|i| self.set_done(i, false));
        }
        is_explained
    }

    fn explain_by_write(&mut self, state: usize, candidates: Vec<usize>) -> bool {
        if self.tried.len() > STATES_MAX || !self.tried.insert((self.set, state)) {
            return false;
        }
        // Those that are known to have happened first: the others need not happen at all.
        let (known, unknown): (Vec<usize>, Vec<usize>) =
            candidates.iter().partition(|&&i| self.ops[i].end.is_some());
        let unknown = unknown.into_iter().filter(|&i| self.helps(i, state, &candidates));
        let unknown = self.without_equals(unknown);
        for i in self.without_later_deletes(known).into_iter().chain(unknown) {
            let Some(next) = self.after(i, state) else { continue };
            self.set_done(i, true);
            if self.explain(next) {
                return true;
            }
            self.set_done(i, false);
        }
        false
    }

    /// Whether it can matter that a write of unknown outcome happens now: only if what comes right after it depends on
    /// it. Taken out of any other place, it leaves an order that explains as much.
    fn helps(&self, i: usize, state: usize, candidates: &[usize]) -> bool {
        let Some(next) = self.after(i, state) else { return false };
        candidates.iter().filter(|&&j| j != i).any(|&j| {
            self.is_read_of(j, next)
                || match &self.ops[j].kind {
                    Kind::Delete { found } => *found == Some(true) && self.is_there(next, j),
                    Kind::PutIf { when, result: None | Some(IfResult::Done), .. }
                    | Kind::DeleteIf { when, result: None | Some(IfResult::Done) } => {
                        self.can_hold(*when, next, j)
                    }
                    _ => false,
                }
        })
    }

    /// Of deletes that have happened, the one that ended first does as well as any other that no operation of the same
    /// client waits for: exchanged for each other, both still lie between their starts and ends.
    /// (Unless values expire: then it matters which of them is the one that each found.)
    fn without_later_deletes(&self, mut known: Vec<usize>) -> Vec<usize> {
        if self.has_expiries {
            return known;
        }
        let is_delete = |i: usize| matches!(self.ops[i].kind, Kind::Delete { found: Some(true) });
        let first = known.iter().copied().filter(|&i| is_delete(i)).min_by_key(|&i| self.ops[i].end);
        known.retain(|&i| !is_delete(i) || Some(i) == first || self.is_waited_for[i]);
        known
    }

    /// Of deletes of unknown outcome, of writes whose value nobody ever saw, and of those of the same short value, one
    /// does as well as any other.
    fn without_equals(&self, unknown: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut kinds = HashSet::new();
        let is_first = |&i: &usize| match &self.ops[i].kind {
            Kind::Delete { .. } => kinds.insert(None),
            Kind::Put { version: None, short } => kinds.insert(Some((short, self.ops[i].expires_ns))),
            _ => true,
        };
        unknown.filter(is_first).collect()
    }

    /// Operations that can be next: none that is left over ended before they began.
    fn candidates(&self) -> Vec<usize> {
        let (mut found, mut first_end) = (Vec::new(), u64::MAX);
        for (i, op) in self.ops.iter().enumerate() {
            if op.start > first_end {
                break;
            }
            if !self.is_done[i] {
                first_end = first_end.min(op.end.unwrap_or(u64::MAX));
                found.push(i);
            }
        }
        found.retain(|&i| self.ops[i].start < first_end && self.before[i].iter().all(|&j| self.is_done[j]));
        found
    }

    /// Whether operation `i` changes nothing and returned what it returns in `state`.
    fn is_read_of(&self, i: usize, state: usize) -> bool {
        match &self.ops[i].kind {
            Kind::GetAbsent => self.seems_absent(state, i, READERS_KNOW_TO_NS),
            Kind::GetWrite { write } => state == *write && self.seems_there(state, i, READERS_KNOW_TO_NS),
            Kind::GetShort { value, version: seen } => {
                self.seems_there(state, i, READERS_KNOW_TO_NS)
                    && short(&self.ops[state]).is_some_and(|short| short == value)
                    && self.can_have_version(state, *seen)
            }
            Kind::Delete { found } => *found == Some(false) && self.is_absent(state, i),
            Kind::PutIf { when, result: Some(IfResult::NotFound), .. }
            | Kind::DeleteIf { when, result: Some(IfResult::NotFound) } => {
                self.is_absent(state, i) && *when != When::Absent
            }
            Kind::PutIf { when, result: Some(IfResult::Mismatch(seen)), .. }
            | Kind::DeleteIf { when, result: Some(IfResult::Mismatch(seen)) } => {
                let is_unmet = *when != When::Present && *when != When::Version(*seen);
                self.is_there(state, i) && is_unmet && self.can_have_version(state, *seen)
            }
            Kind::PutIf { .. } | Kind::DeleteIf { .. } | Kind::Put { .. } => false,
        }
    }

    /// Whether a condition holds in `state`, or may hold, for operation `i`.
    fn can_hold(&self, when: When, state: usize, i: usize) -> bool {
        match when {
            When::Absent => self.is_absent(state, i) || self.may_vanish,
            When::Present => self.is_there(state, i),
            When::Version(expected) => self.is_there(state, i) && self.can_have_version(state, expected),
        }
    }

    /// Whether the server can have found the key absent in `state`, for operation `i`.
    fn is_absent(&self, state: usize, i: usize) -> bool {
        self.seems_absent(state, i, 0)
    }

    fn is_there(&self, state: usize, i: usize) -> bool {
        self.seems_there(state, i, 0)
    }

    /// The same of somebody who knows the server's clock so well.
    fn seems_absent(&self, state: usize, i: usize, known_to_ns: u64) -> bool {
        let (_, ended_ns) = self.ops[i].clock_ns;
        self.ops.get(state).is_none_or(|write| {
            write
                .expires_ns
                .is_some_and(|(earliest_ns, _)| earliest_ns <= ended_ns.saturating_add(known_to_ns))
        })
    }

    fn seems_there(&self, state: usize, i: usize, known_to_ns: u64) -> bool {
        let (began_ns, _) = self.ops[i].clock_ns;
        self.ops.get(state).is_some_and(|write| {
            write.expires_ns.is_none_or(|(_, latest_ns)| began_ns < latest_ns.saturating_add(known_to_ns))
        })
    }

    /// Whether the write has this version, or may have it: nobody knows the version of the one or the write of the other.
    fn can_have_version(&self, write: usize, seen: u64) -> bool {
        version(&self.ops[write]).map_or(!self.versions.contains(&seen), |version| version == seen)
    }

    /// The state after operation `i`, if it is a write that can happen in `state`, or one before which the key can have
    /// vanished.
    fn after(&self, i: usize, state: usize) -> Option<usize> {
        if self.may_vanish && state != ABSENT && self.is_read_of(i, ABSENT) {
            return Some(ABSENT);
        }
        match &self.ops[i].kind {
            Kind::Put { .. } => self.is_next_version(i).then_some(i),
            Kind::Delete { found } => (self.is_there(state, i) && *found != Some(false)).then_some(ABSENT),
            Kind::PutIf { when, result: None | Some(IfResult::Done), .. } => {
                (self.can_hold(*when, state, i) && self.is_next_version(i)).then_some(i)
            }
            // With nothing there it changes nothing, whatever was wanted.
            Kind::DeleteIf { when, result: None | Some(IfResult::Done) } => {
                (self.is_there(state, i) && self.can_hold(*when, state, i)).then_some(ABSENT)
            }
            _ => None,
        }
    }

    /// No write of a smaller version is left over.
    fn is_next_version(&self, i: usize) -> bool {
        let Some(own) = version(&self.ops[i]) else { return true };
        let left_over = self.by_version.iter().find(|&&j| !self.is_done[j]);
        left_over.is_none_or(|&j| version(&self.ops[j]) >= Some(own))
    }

    fn set_done(&mut self, i: usize, is_done: bool) {
        self.is_done[i] = is_done;
        let number = (i as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let number = (number ^ number >> 61).wrapping_mul(0xbf58_476d_1ce4_e5b9_94d0_49bb_1331_11eb);
        self.set = if is_done { self.set.wrapping_add(number) } else { self.set.wrapping_sub(number) };
        if self.ops[i].end.is_some() {
            self.open = if is_done { self.open - 1 } else { self.open + 1 };
        }
    }

    fn note_progress(&mut self, state: usize, candidates: &[usize]) {
        if self.open < self.fewest_open {
            self.fewest_open = self.open;
            self.at_fewest = candidates.iter().map(|&i| (i, state)).collect();
        }
    }

    fn furthest(&self) -> String {
        let mut text =
            format!("{} of {} operations explained", self.ops.len() - self.fewest_open, self.ops.len());
        if let Some(&(_, state)) = self.at_fewest.first() {
            let state = self.ops.get(state);
            text += &format!("\n  the key has {state:?}\n  and none of these can be next:");
        }
        for &(i, _) in &self.at_fewest {
            text += &format!("\n  {i}: {:?}", self.ops[i]);
            if let Kind::GetWrite { write } = self.ops[i].kind {
                text += &format!(" which is {:?}", self.ops[write]);
            }
        }
        text
    }
}

fn version(op: &Op) -> Option<u64> {
    match &op.kind {
        Kind::Put { version, .. } | Kind::PutIf { version, .. } => *version,
        _ => None,
    }
}

fn short(op: &Op) -> Option<&Vec<u8>> {
    match &op.kind {
        Kind::Put { short, .. } | Kind::PutIf { short, .. } => short.as_ref(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
