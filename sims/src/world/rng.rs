//! Randomness from the simulation's seed.

use std::sync::{Mutex, PoisonError};

use convoke_common::world::Rng;

use crate::draw::Draw;

/// The random bytes of one process. They are predictable: keys made of them are good enough only because nobody
/// attacks.
pub(super) struct SimRng(Mutex<Draw>);

impl SimRng {
    pub(super) fn new(draw: Draw) -> SimRng {
        SimRng(Mutex::new(draw))
    }
}

impl Rng for SimRng {
    fn fill(&self, out: &mut [u8]) {
        let mut draw = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for chunk in out.chunks_mut(8) {
            let word = draw.word().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}
