//! Functions, programs, grants and drivers' programs, without the calls that carry them.

use std::sync::Arc;

use convoke_graph::codec;
use convoke_graph::dim::Bindings;
use convoke_graph::graph::{Function, TensorType};
use convoke_graph::ops;
use convoke_graph::program::{DriverProgram, HashedProgram, Program, bytes_under};
use serde::de::DeserializeOwned;

use super::target::{MemoryBound, Target, choose};
use crate::grant::{BodyGrant, Grant};

pub(super) const TARGET: Target = Target {
    name: "graph",
    budget: MemoryBound {
        fixed: 8 << 20,
        factor: 1 << 10,
    },
    entry: |input| choose(DECODERS, input),
};

const DECODERS: &[fn(&[u8]) -> bool] = &[
    |b| with(b, trust_function),
    |b| with(b, trust_program),
    |b| with(b, trust_granted),
    |b| with(b, trust_driver),
];

fn with<T: DeserializeOwned>(bytes: &[u8], trust: fn(&T) -> bool) -> bool {
    codec::decode(bytes).is_ok_and(|value| trust(&value))
}

/// Runs the checks that a function passes before it is planned.
pub fn trust_function(f: &Function) -> bool {
    let hashed = f.id().is_ok();
    let artifacts = f.artifacts.iter().all(|a| a.check().is_ok());
    let verified = f.verify().is_ok();
    if verified {
        std::hint::black_box(f.to_string());
    }
    let mut typed = f.clone();
    let inferred = ops::infer_types(&mut typed).is_ok();
    hashed && artifacts && verified && inferred
}

fn trust_program(program: &Arc<Program>) -> bool {
    let hashed = HashedProgram::new(program.clone()).is_ok();
    let checked = program.check().is_ok();
    hashed && checked
}

/// Runs the checks that a grant and its program pass before they are installed, except that the grant may name any
/// hash: nearly all changes of a seed would fail there.
pub fn trust_install(grant: &Grant, program: &Arc<Program>) -> bool {
    let bounds = grant.axes.at_bounds();
    let types = program.values.iter().map(|v| &v.ty);
    measure(types, &bounds);
    let hashed = HashedProgram::new(program.clone()).is_ok();
    let checked = grant.check(program).is_ok();
    hashed && checked
}

/// Checks the programs of a grant, in its order, as far as they were sent.
pub(super) fn trust_programs(grant: &Grant, programs: &[Arc<Program>]) -> bool {
    let Some((own, bodies)) = programs.split_first() else {
        return true;
    };
    let mut bodies = bodies.iter();
    let body = |body: &BodyGrant| {
        let program = body.part.as_ref().and_then(|_| bodies.next());
        body.check(program.map(|p| &**p)).is_ok()
    };
    trust_install(grant, own) & grant.bodies.iter().all(body)
}

fn trust_granted((grant, program): &(Grant, Arc<Program>)) -> bool {
    trust_install(grant, program)
}

pub(super) fn trust_driver(driver: &DriverProgram) -> bool {
    let feeds = driver.feeds.iter().map(|f| &f.ty);
    let slots = driver.slots.iter().map(|s| &s.ty);
    let fetches = driver.fetches.iter().map(|f| &f.ty);
    measure(feeds.chain(slots).chain(fetches), &Bindings::new());
    true
}

fn measure<'a>(types: impl Iterator<Item = &'a TensorType>, bounds: &Bindings) {
    for ty in types {
        std::hint::black_box((bytes_under(ty, bounds), ty.to_string(), ty.fixed_shape()));
    }
}
