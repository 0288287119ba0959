//! The messages and files that processes of one host send on the socket over which they share memory.

use super::target::{MemoryBound, Target, choose, on_runtime};
use crate::world::shared_memory::fuzzing::{gifts, greeted, greeting, has};

pub(super) const TARGET: Target = Target {
    name: "memory",
    budget: MemoryBound {
        fixed: 64 << 10,
        factor: 4,
    },
    entry: |input| choose(DECODERS, input),
};

const DECODERS: &[fn(&[u8]) -> bool] = &[
    |b| on_runtime(greeting(b)),
    |b| on_runtime(greeted(b)),
    |b| on_runtime(has(b)),
    |b| on_runtime(gifts(b)),
];
