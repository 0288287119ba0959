//! See `convoke_rendezvous::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("sharing", convoke_rendezvous::fuzzing::TARGETS);
