//! See `convoke_rendezvous::fuzzing`.
#![no_main]

convoke_fuzz::fuzz!("eager", convoke_rendezvous::fuzzing::TARGETS);
