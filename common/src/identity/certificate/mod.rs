//! Certificates: what they say, how they are verified, and how long they hold.

pub(in crate::identity) mod membership;
pub(in crate::identity) mod parsing;
pub(in crate::identity) mod peer;
pub(in crate::identity) mod revocation;
pub(in crate::identity) mod subject;
pub(in crate::identity) mod validity;
pub(in crate::identity) mod verify;
