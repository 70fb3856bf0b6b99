//! The random numbers of the benchmark: SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
//! generators", 2014). Small, fast, the same on every platform, and any 64-bit seed is a good one.

/// The step of the counter: 2^64 divided by the golden ratio, odd.
pub const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// Spreads every input bit over all 64 output bits; a bijection.
#[inline]
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// One stream of random numbers.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The stream that starts at `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A stream of its own for `thread` of a run with `seed`: streams of two threads never share a seed.
    pub const fn for_thread(seed: u64, thread: usize) -> Self {
        Self::new(mix(mix(seed).wrapping_add((thread as u64 + 1).wrapping_mul(GAMMA))))
    }

    /// The next 64 bits.
    #[inline]
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        mix(self.state)
    }

    /// Uniform in [0, 1), with 53 bits.
    #[inline]
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in `0..n`; the bias is below n / 2^64. `n` must not be 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        debug_assert!(n > 0, "an empty range has no random element");
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_stream() {
        // The first outputs for seed 1234567, as published with the reference implementation in C.
        let mut rng = Rng::new(1_234_567);
        let published = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(published.map(|_| rng.next_u64()), published);
    }

    #[test]
    fn threads_have_streams_of_their_own() {
        let mut firsts: Vec<u64> = (0..1000).map(|t| Rng::for_thread(7, t).next_u64()).collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 1000);
    }

    #[test]
    fn ranges_are_kept() {
        let mut rng = Rng::new(1);
        for _ in 0..10_000 {
            assert!((0.0..1.0).contains(&rng.next_f64()));
            assert!(rng.below(3) < 3);
        }
        assert_eq!(rng.below(1), 0);
    }
}
