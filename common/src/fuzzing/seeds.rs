//! Valid messages of each kind.

#[path = "../../../fuzz/src/seed.rs"]
mod seed;

mod control;
mod graph;
mod identity;

use super::TARGETS;
use crate::detection::datagram::{Datagram, Kind};
use crate::rpc::StreamKind;
use crate::world::hello;
use seed::Seed;

/// `decoder`, then `bytes`.
fn chosen(decoder: u8, bytes: &[u8]) -> Vec<u8> {
    [&[decoder], bytes].concat()
}

fn preface() -> Vec<Seed> {
    let datagram = Datagram {
        kind: Kind::Probe,
        counter: 7,
        seen: 6,
    };
    let seed = |name: &str, input| ("preface", name.to_owned(), input);
    vec![
        seed(
            "greeting",
            chosen(0, &hello::encode(hello::PROTOCOL_VERSION)),
        ),
        seed("stream", chosen(1, &[StreamKind::Tripwire as u8])),
        seed("datagram", chosen(2, &datagram.encode())),
    ]
}

#[test]
fn seeds_are_of_the_current_formats() {
    let entries: Vec<_> = TARGETS.iter().map(|t| (t.name, t.entry)).collect();
    let seeds = [
        control::seeds(),
        graph::seeds(),
        identity::seeds(),
        preface(),
    ];
    seed::check(&entries, seeds.concat());
}
