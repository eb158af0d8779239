//! A 64-bit number in two halves, so that it leaves no padding beside 32-bit numbers.

/// The upper half and the lower.
pub(super) fn halves(number: u64) -> (u32, u32) {
    let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    (half(number >> 32), half(number))
}

/// The number of these halves.
pub(super) fn whole(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_make_the_whole() {
        for number in [0, 7 << 32 | 5, u64::MAX] {
            let (high, low) = halves(number);
            assert_eq!(whole(high, low), number);
        }
    }
}
