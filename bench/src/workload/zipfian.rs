//! Zipfian draws as YCSB makes them: Gray's generator, scrambled by a hash.
//!
//! Source of the algorithm: Gray, Sundaresan, Englert, Baclawski, Weinberger, "Quickly generating billion-record
//! synthetic databases", SIGMOD 1994. It approximates the Zipf distribution; the tests compare with its own
//! distribution function, not with the ideal one.

/// The skew of every YCSB workload.
pub const THETA: f64 = 0.99;

/// Items of YCSB's scrambled generator, whatever the number of records is: 0 to 10^10, both included.
pub const YCSB_ITEMS: u64 = 10_000_000_001;

/// zeta(10^10, 0.99) as it stands in YCSB's source.
pub const YCSB_ZETAN: f64 = 26.469_028_201_783_02;

/// The sum of k^-theta for k = 1 to `n`, by Euler-Maclaurin: 1000 exact terms, the integral of the rest, and three
/// corrections. Relative error about 1e-13, in microseconds for any `n`.
pub fn zeta(n: u64, theta: f64) -> f64 {
    const EXACT_TERMS: u64 = 1000;
    let exact: f64 = (1..=n.min(EXACT_TERMS)).map(|k| (k as f64).powf(-theta)).sum();
    if n <= EXACT_TERMS {
        return exact;
    }
    let (m, n) = (EXACT_TERMS as f64, n as f64);
    let integral = (n.powf(1.0 - theta) - m.powf(1.0 - theta)) / (1.0 - theta);
    let ends = (n.powf(-theta) - m.powf(-theta)) / 2.0;
    let first = theta * (m.powf(-theta - 1.0) - n.powf(-theta - 1.0)) / 12.0;
    let third = theta * (theta + 1.0) * (theta + 2.0) * (m.powf(-theta - 3.0) - n.powf(-theta - 3.0)) / 720.0;
    exact + integral + ends + first - third
}

/// Gray's generator over a fixed number of items: a uniform number in, a rank out.
#[derive(Debug, Clone)]
pub struct Gray {
    items: u64,
    zetan: f64,
    eta: f64,
    alpha: f64,
    /// Below this value of `u * zetan` the rank is 1 (or 0, below 1).
    second: f64,
}

/// A draw whose number of items is not known yet: a rank, or a share of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Draw {
    /// One of the two most popular ranks, which Gray's generator treats apart.
    Rank(u64),
    /// The rank is this share of the items, rounded down.
    Share(f64),
}

impl Draw {
    /// The rank among `items`, always below it (0 when there are none).
    #[inline]
    pub fn rank(self, items: u64) -> u64 {
        let rank = match self {
            Self::Rank(rank) => rank,
            Self::Share(share) => (items as f64 * share) as u64,
        };
        rank.min(items.saturating_sub(1))
    }
}

impl Gray {
    /// Ranks 0 to `items - 1` with skew `theta` (between 0 and 1, both excluded).
    pub fn new(items: u64, theta: f64) -> Self {
        Self::with_zetan(items, theta, zeta(items, theta))
    }

    /// The generator inside YCSB's `zipfian` distribution.
    pub fn ycsb() -> Self {
        Self::with_zetan(YCSB_ITEMS, THETA, YCSB_ZETAN)
    }

    fn with_zetan(items: u64, theta: f64, zetan: f64) -> Self {
        let zeta2 = zeta(2, theta);
        Self {
            items,
            zetan,
            eta: (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - zeta2 / zetan),
            alpha: 1.0 / (1.0 - theta),
            second: 1.0 + 0.5f64.powf(theta),
        }
    }

    /// The rank that belongs to `u`, uniform in [0, 1).
    #[inline]
    pub fn rank(&self, u: f64) -> u64 {
        self.draw(u).rank(self.items)
    }

    /// The draw that belongs to `u`, to be used with a number of items close to this generator's.
    #[inline]
    pub fn draw(&self, u: f64) -> Draw {
        let uz = u * self.zetan;
        if uz < 1.0 {
            Draw::Rank(0)
        } else if uz < self.second {
            Draw::Rank(1)
        } else {
            Draw::Share((self.eta * u - self.eta + 1.0).powf(self.alpha))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::workload::keys::fnv_hash;

    /// From a run of YCSB's own code with 10^10 + 1 items.
    const ETA: f64 = 0.212_200_033_809_674_06;
    const ALPHA: f64 = 99.999_999_999_999_91;
    const ZETA2: f64 = 1.503_477_775_028_359_4;

    fn close(found: f64, expected: f64, relative: f64) -> bool {
        (found - expected).abs() <= relative * expected.abs()
    }

    #[test]
    fn constants_are_those_of_ycsb() {
        let gray = Gray::ycsb();
        assert!(close(gray.eta, ETA, 1e-14), "{}", gray.eta);
        assert!(close(gray.alpha, ALPHA, 1e-14), "{}", gray.alpha);
        assert!(close(zeta(2, THETA), ZETA2, 1e-15));
    }

    #[test]
    fn zeta_agrees_with_the_long_sum() {
        assert!(close(zeta(10_000_000_000, THETA), YCSB_ZETAN, 1e-11));
        for n in [1, 2, 999, 1000, 1001, 5000, 300_000] {
            let sum: f64 = (1..=n).rev().map(|k| (k as f64).powf(-THETA)).sum();
            assert!(close(zeta(n, THETA), sum, 2e-13), "{n}: {} and {sum}", zeta(n, THETA));
        }
    }

    #[test]
    fn golden_ranks_of_ycsb() {
        let golden: [(f64, u64, u64); 7] = [
            (0.0, 0, 144),
            (0.0378, 1, 610),
            (0.0569, 2, 213),
            (0.1, 6, 942),
            (0.25, 296, 809),
            (0.5, 134_552, 367),
            (0.75, 42_924_421, 767),
        ];
        let gray = Gray::ycsb();
        for (u, rank, number) in golden {
            let found = gray.rank(u);
            assert!(close(found as f64, rank as f64, 1e-12), "{u}: {found} instead of {rank}");
            assert_eq!(fnv_hash(rank) % 1001, number, "{u}");
        }
    }

    #[test]
    fn ranks_stay_below_the_items() {
        for items in [1, 2, 3, 10, 1000] {
            let gray = Gray::new(items, THETA);
            for u in [0.0, 0.1, 0.5, 0.9, 1.0 - f64::EPSILON / 2.0] {
                assert!(gray.rank(u) < items);
            }
        }
        assert_eq!(Draw::Share(0.5).rank(0), 0);
    }

    /// Gray's distribution function with the constants above: the share of draws with a rank below `k`.
    fn gray_below(k: u64) -> f64 {
        match k {
            0 => 0.0,
            1 => 1.0 / YCSB_ZETAN,
            2 => ZETA2 / YCSB_ZETAN,
            _ => (ETA - 1.0 + (k as f64 / YCSB_ITEMS as f64).powf(1.0 - THETA)) / ETA,
        }
    }

    /// The same for the ideal Zipf distribution.
    fn ideal_below(k: u64) -> f64 {
        if k == 0 { 0.0 } else { zeta(k, THETA) / zeta(YCSB_ITEMS, THETA) }
    }

    /// Bins 0, 1, 2, 3, then four for each doubling.
    fn edges() -> Vec<u64> {
        let mut edges = vec![0, 1, 2, 3];
        while *edges.last().unwrap() < YCSB_ITEMS {
            let last = *edges.last().unwrap();
            edges.push((last + (last / 4).max(1)).min(YCSB_ITEMS));
        }
        edges
    }

    /// How many standard deviations chi-square lies above its mean.
    fn chi_square_z(counts: &[u64], expected: impl Fn(usize) -> f64) -> f64 {
        let total: u64 = counts.iter().sum();
        let chi2: f64 = counts
            .iter()
            .enumerate()
            .map(|(bin, count)| {
                let mean = expected(bin) * total as f64;
                (*count as f64 - mean).powi(2) / mean
            })
            .sum();
        let degrees = (counts.len() - 1) as f64;
        (chi2 - degrees) / (2.0 * degrees).sqrt()
    }

    fn binned(draws: usize, edges: &[u64], rank: impl Fn(f64) -> u64) -> Vec<u64> {
        let mut rng = Rng::new(2024);
        let mut counts = vec![0; edges.len() - 1];
        for _ in 0..draws {
            let rank = rank(rng.next_f64());
            counts[edges.partition_point(|edge| *edge <= rank) - 1] += 1;
        }
        counts
    }

    #[test]
    fn chi_square_accepts_gray_and_rejects_others() {
        let edges = edges();
        let gray = Gray::ycsb();
        let counts = binned(4_000_000, &edges, |u| gray.rank(u));
        let z = chi_square_z(&counts, |bin| gray_below(edges[bin + 1]) - gray_below(edges[bin]));
        assert!(z.abs() < 5.0, "Gray's own distribution must be accepted: z = {z}");

        let z = chi_square_z(&counts, |bin| ideal_below(edges[bin + 1]) - ideal_below(edges[bin]));
        assert!(z > 8.0, "negative control, the ideal Zipf distribution: z = {z}");

        // Over as many items as there are records, as many ports do.
        let small = Gray::new(1_000_000, THETA);
        let counts = binned(200_000, &edges, |u| small.rank(u));
        let z = chi_square_z(&counts, |bin| gray_below(edges[bin + 1]) - gray_below(edges[bin]));
        assert!(z > 100.0, "negative control, Zipf over the records: z = {z}");
    }

    #[test]
    fn chi_square_accepts_the_scrambled_numbers_and_rejects_the_unscrambled() {
        const RECORDS: u64 = 1001;
        const HEAD: u64 = 100_000;
        // The head's ranks by themselves; the tail spreads evenly over all numbers.
        let mut expected = vec![(1.0 - gray_below(HEAD)) / RECORDS as f64; RECORDS as usize];
        for rank in 0..HEAD {
            expected[(fnv_hash(rank) % RECORDS) as usize] += gray_below(rank + 1) - gray_below(rank);
        }
        let edges: Vec<u64> = (0..=RECORDS).collect();
        let gray = Gray::ycsb();
        let counts = binned(1_000_000, &edges, |u| fnv_hash(gray.rank(u)) % RECORDS);
        let z = chi_square_z(&counts, |bin| expected[bin]);
        assert!(z.abs() < 5.0, "scrambled: z = {z}");

        let counts = binned(100_000, &edges, |u| gray.rank(u) % RECORDS);
        let z = chi_square_z(&counts, |bin| expected[bin]);
        assert!(z > 1000.0, "negative control, not scrambled: z = {z}");
    }
}
