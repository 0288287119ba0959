//! How the core knows the connection of a member, and its certificate.

use serde::{Deserialize, Serialize};

/// The number that the shell gave to a member's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConnectionId(pub u64);

/// The BLAKE3 hash of a certificate.
pub type Fingerprint = [u8; 32];
