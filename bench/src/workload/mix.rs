//! Which operations a workload consists of, and in what shares.

/// The kinds of operation that are counted apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// Get one value.
    Read,
    /// Write a value, or one field of it, under a key that exists.
    Update,
    /// Write a value under a new key.
    Insert,
    /// Get a value, change it, write it: one operation.
    Rmw,
}

impl OpKind {
    /// All kinds, in the order of their index.
    pub const ALL: [Self; 4] = [Self::Read, Self::Update, Self::Insert, Self::Rmw];

    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Update => "update",
            Self::Insert => "insert",
            Self::Rmw => "rmw",
        }
    }
}

/// Shares of the kinds of operation; they add up to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mix {
    /// Share of each kind, in the order of [`OpKind::ALL`].
    shares: [f64; 4],
}

impl Mix {
    const fn new(read: f64, update: f64, insert: f64, rmw: f64) -> Self {
        Self { shares: [read, update, insert, rmw] }
    }

    /// Reads only.
    pub const READS: Self = Self::new(1.0, 0.0, 0.0, 0.0);
    /// Inserts only: the load phase.
    pub const INSERTS: Self = Self::new(0.0, 0.0, 1.0, 0.0);
    /// Updates only.
    pub const UPDATES: Self = Self::new(0.0, 1.0, 0.0, 0.0);

    /// The share of `kind`.
    pub const fn share(&self, kind: OpKind) -> f64 {
        self.shares[kind as usize]
    }

    /// The kind that belongs to `u`, uniform in [0, 1).
    #[inline]
    pub fn pick(&self, mut u: f64) -> OpKind {
        for kind in OpKind::ALL {
            let share = self.share(kind);
            if u < share {
                return kind;
            }
            u -= share;
        }
        // Only rounding leads here; take a kind that occurs.
        OpKind::ALL.into_iter().find(|kind| self.share(*kind) > 0.0).unwrap_or(OpKind::Read)
    }
}

/// YCSB's core workloads, except the one that needs ordered keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// 95 % reads of the latest records, 5 % inserts.
    D,
    /// Scans: refused, a hash table has no order.
    E,
    /// Half reads, half read-modify-writes.
    F,
}

impl Workload {
    /// The letter, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
            Self::D => "d",
            Self::E => "e",
            Self::F => "f",
        }
    }

    /// The shares of its operations, or nothing for the workload with scans.
    pub const fn mix(self) -> Option<Mix> {
        match self {
            Self::A => Some(Mix::new(0.5, 0.5, 0.0, 0.0)),
            Self::B => Some(Mix::new(0.95, 0.05, 0.0, 0.0)),
            Self::C => Some(Mix::READS),
            Self::D => Some(Mix::new(0.95, 0.0, 0.05, 0.0)),
            Self::E => None,
            Self::F => Some(Mix::new(0.5, 0.0, 0.0, 0.5)),
        }
    }

    /// The distribution that YCSB uses for it.
    pub const fn distribution(self) -> super::Distribution {
        match self {
            Self::D => super::Distribution::Latest,
            _ => super::Distribution::Zipfian,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn shares_are_those_of_ycsb() {
        let expected = [
            (Workload::A, [0.5, 0.5, 0.0, 0.0]),
            (Workload::B, [0.95, 0.05, 0.0, 0.0]),
            (Workload::C, [1.0, 0.0, 0.0, 0.0]),
            (Workload::D, [0.95, 0.0, 0.05, 0.0]),
            (Workload::F, [0.5, 0.0, 0.0, 0.5]),
        ];
        for (workload, shares) in expected {
            assert_eq!(workload.mix().unwrap().shares, shares);
        }
        assert_eq!(Workload::E.mix(), None);
    }

    #[test]
    fn picks_follow_the_shares() {
        let mut rng = Rng::new(5);
        for workload in [Workload::A, Workload::B, Workload::D, Workload::F] {
            let mix = workload.mix().unwrap();
            let mut counts = [0u32; 4];
            for _ in 0..100_000 {
                counts[mix.pick(rng.next_f64()) as usize] += 1;
            }
            for kind in OpKind::ALL {
                let share = mix.share(kind);
                let deviation = (100_000.0 * share * (1.0 - share)).sqrt();
                let off = (f64::from(counts[kind as usize]) - 100_000.0 * share).abs();
                assert!(off <= 5.0 * deviation, "{workload:?} {kind:?}: {off} off");
            }
        }
    }

    #[test]
    fn rounding_never_picks_what_does_not_occur() {
        assert_eq!(Mix::new(0.0, 0.7, 0.2, 0.0).pick(0.95), OpKind::Update);
    }
}
