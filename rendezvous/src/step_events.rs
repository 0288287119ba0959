//! Events of steps, emitted by `tracing` for tests that check order and time. Nothing subscribes to them in production
//! unless `--log` names their target: an event that is off costs a load and a branch.
//!
//! | `kind` | where | fields beside `lease` and `n` |
//! |---|---|---|
//! | `lease` | driver: it may run steps from now on | `participants`: the workers' names, by index |
//! | `install` | worker: it began to install its part | |
//! | `installed` | worker: it has, or has failed to | |
//! | `begin` | driver: the step has its number | |
//! | `start` | worker: took the driver's `Start` | |
//! | `sent` | a tensor was handed to a link | `slot`, `peer` (the receiver), `checksum` |
//! | `filled` | a tensor was published in a slot | `slot`, `checksum` |
//! | `taken` | the slot's consumer has it | `slot` |
//! | `abort` | the step ended here with an error | `code` |
//! | `done` | worker: quiesced, and said so | |
//! | `outcome` | driver: the caller has its answer | `code`, where it is an error |
//! | `retire` | driver: everybody has quiesced | |

use convoke_graph::Tensor;

/// The target of every step event.
pub const TARGET: &str = "convoke::step_event";

/// Emits an event of the step with this key.
#[macro_export]
macro_rules! step_event {
    ($kind:literal, $key:expr $(, $name:ident = $value:expr)* $(,)?) => {
        tracing::trace!(
            target: $crate::step_events::TARGET,
            kind = $kind,
            lease = $key.lease.0,
            n = $key.n
            $(, $name = $value)*
        )
    };
}

/// Whether a subscriber wants these events; check it before computing fields that cost time.
pub fn listening() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::TRACE)
}

/// A checksum of a tensor's dtype, shape and bytes (FNV-1a over words).
pub fn checksum(tensor: &Tensor) -> u64 {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    let shape = tensor.shape().iter().map(|d| *d as u64);
    let head = shape.fold(0xcbf2_9ce4_8422_2325 ^ tensor.dtype() as u64, mix);
    let words = tensor.bytes().chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(head, mix)
}
