//! Targets for the bytes that both ends send while a tripwire is armed, on a stream of the connection, and for those
//! that strangers may send to the TCP port.

use super::target::{MemoryBound, Target, choose};
use crate::detection::fuzzing::{announced, answers};

pub(super) const TARGET: Target = Target {
    name: "tripwire",
    budget: MemoryBound {
        fixed: 64 << 10,
        factor: 4,
    },
    entry: |input| choose(&[answers, announced], input),
};
