//! What tells the links of a process apart.

use quinn::Connection;

/// Tells a remote link from the others of its process. A connection has one lane for its life, so its number tells
/// links apart while the link is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkId(usize);

impl LinkId {
    /// The link that is this connection.
    pub(super) fn of(connection: &Connection) -> LinkId {
        LinkId(connection.stable_id())
    }
}
