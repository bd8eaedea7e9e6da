//! Bytes that look like chance and are not.

/// Fills with splitmix64. Written out here because a seed must give the same bytes with every
/// version of every library.
pub(super) fn fill(seed: u64, out: &mut [u8]) {
    let mut state = seed;
    for word in out.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
        word.copy_from_slice(&x.to_le_bytes()[..word.len()]);
    }
}
