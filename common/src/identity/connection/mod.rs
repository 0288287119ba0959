//! Connections: their TLS settings, and the handshakes of both ends.

pub(in crate::identity) mod dial;
pub(in crate::identity) mod handshakes;
pub(in crate::identity) mod peer_certificate;
pub(in crate::identity) mod tls;
