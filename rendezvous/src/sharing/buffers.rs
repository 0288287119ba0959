//! The buffers of the segment through which tensors are staged, and what both ends agree on.

/// Bytes of a staging buffer: copying them takes longer than announcing them, and heartbeats wait no longer than that.
pub(super) const SLOT: usize = 1 << 20;
/// Staging buffers of a link, in one direction: enough for both ends to copy at once, few enough to stay in a cache.
pub(super) const SLOTS: usize = 8;
/// The smallest tensor that is staged, in bytes: a smaller one is sooner on the wire than copied twice and announced.
pub(super) const STAGED: usize = 256 << 10;
/// The most tensors that may be partly announced: the first piece has been announced, but not the last.
pub(super) const OPEN: usize = 16;

/// A staging buffer that is lent to the peer.
pub(super) struct StagingBuffer {
    pub index: usize,
    pub transfer: u64,
}
