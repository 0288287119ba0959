//! Lengths of prepacked weights. The kernel library defines the layouts; the registry must know how long
//! they are before anything is packed.

/// Columns of a packed right-hand side are padded to a multiple of this.
pub const PACK_N: usize = 16;

/// Elements of a packed `[k, n]` right-hand matrix; `None` on overflow.
pub fn packed_gemm_len(k: usize, n: usize) -> Option<usize> {
    n.checked_next_multiple_of(PACK_N)?.checked_mul(k)
}

/// Elements of a packed convolution weight `[m, c_per_group, kernel..]`: packing reorders them only.
/// `None` on overflow or where `group` does not divide `m`.
pub fn packed_conv_len(
    m: usize,
    c_per_group: usize,
    kernel_volume: usize,
    group: usize,
) -> Option<usize> {
    if group == 0 || !m.is_multiple_of(group) {
        return None;
    }
    m.checked_mul(c_per_group)?.checked_mul(kernel_volume)
}

/// Columns of block-quantised weights that lie together, row by row.
pub const PACK_CODES: usize = 64;

/// Bytes of `rows` packed codes of `bits` bits for each of `n` columns; `None` on overflow.
pub fn packed_codes_len(bits: usize, rows: usize, n: usize) -> Option<usize> {
    let row = n.checked_next_multiple_of(PACK_CODES)?.checked_mul(bits)? / 8;
    row.checked_mul(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths() {
        assert_eq!(packed_gemm_len(10, 33), Some(480));
        assert_eq!(packed_gemm_len(0, 5), Some(0));
        assert_eq!(packed_gemm_len(usize::MAX, 64), None);
        assert_eq!(packed_gemm_len(1, usize::MAX), None);
        assert_eq!(packed_conv_len(64, 3, 49, 1), Some(64 * 147));
        assert_eq!(packed_codes_len(4, 10, 65), Some(640));
        assert_eq!(packed_codes_len(8, usize::MAX, 1), None);
        assert_eq!(packed_conv_len(64, 3, 49, 0), None);
        assert_eq!(packed_conv_len(64, 3, 49, 3), None);
    }
}
