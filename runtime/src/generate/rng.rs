//! The random numbers behind a seed: SplitMix64 (Steele, Lea and Flood 2014), the same on every platform for ever.

/// A stream of random numbers, decided by its seed.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Uniform in 0..`end`, each number's probability within 2^-64 of the right one; 0 if there is none.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn the_stream_is_the_published_one() {
        // The first outputs of the reference implementation for the seed 1234567.
        let mut rng = Rng::new(1_234_567);
        assert_eq!([rng.next(), rng.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn numbers_fill_their_range() {
        for end in [1, 7, 1 << 40, u64::MAX] {
            let mut rng = Rng::new(0);
            let numbers: Vec<u64> = (0..10_000).map(|_| rng.below(end)).collect();
            assert!(numbers.iter().all(|&x| x < end));
            let mean = numbers.iter().map(|&x| x as f64).sum::<f64>() / 1e4;
            assert!((mean - (end - 1) as f64 / 2.0).abs() < 0.02 * end as f64, "{mean} below {end}");
        }
        assert_eq!(Rng::new(3).below(0), 0);
    }
}
