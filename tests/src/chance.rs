//! Chance that can be repeated, and the bytes it makes.

/// A generator of numbers that look random (splitmix64).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from 0 to `limit` - 1.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The same for the same seed, and other bytes at every place.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut chance = Chance::new(seed);
    let mut all = Vec::with_capacity(len + 8);
    while all.len() < len {
        all.extend(chance.next().to_le_bytes());
    }
    all.truncate(len);
    all
}
