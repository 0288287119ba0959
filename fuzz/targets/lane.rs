//! See `convoke_rendezvous::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("lane", convoke_rendezvous::fuzzing::TARGETS);
