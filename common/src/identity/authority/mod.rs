//! The certificate authority: what it signs, for whom, and on what proof.

pub(in crate::identity) mod ca;
pub(in crate::identity) mod csr;
pub(in crate::identity) mod former;
