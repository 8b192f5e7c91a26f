//! Mixing of 64 bits, for seeded random numbers and hashes: `SplitMix64` (Steele, Lea, Flood 2014). The results never
//! change, so a seed gives the same numbers in every version.

/// Increment of the state of `SplitMix64`: 2^64 divided by the golden ratio.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the output of the random number generator `SplitMix64` for a state (its finalizer).
pub fn finalize(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Mixes the bits of a value: returns the first output of the random number generator `SplitMix64` with the value as
/// seed.
pub fn mix(value: u64) -> u64 {
    finalize(value.wrapping_add(GOLDEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        // Expected values: first outputs from state 1234567 of the reference implementation of `SplitMix64`.
        assert_eq!(mix(1_234_567), 6_457_827_717_110_365_317);
        assert_eq!(mix(1_234_567_u64.wrapping_add(GOLDEN)), 3_203_168_211_198_807_973);
    }
}
