//! The certificate authority, the requests that it signs, and the proofs that it asks for.

pub(in crate::identity) mod ca;
pub(in crate::identity) mod csr;
pub(in crate::identity) mod former;
