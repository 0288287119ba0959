//! How many bytes strings take in a tensor.

/// Most bytes of one tensor of strings, table and text together. That many are checked in some 10 ms.
pub const MOST_BYTES: usize = 1 << 28;

/// Bytes that plans count for a string: its entry in the table, and 24 bytes of text. Where strings are longer, a step
/// takes more memory than was planned for it, which the ledger grants or refuses when the strings are made.
pub const ESTIMATE: usize = ENTRY + 24;

/// Bytes of an entry of the table.
pub(crate) const ENTRY: usize = 8;

/// Bytes of the table of this many strings, which are the bytes of as many empty ones; `None` on overflow.
pub const fn table_len(strings: usize) -> Option<usize> {
    strings.checked_mul(ENTRY)
}
