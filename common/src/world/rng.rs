//! Cryptographic randomness.

use ring::rand::{SecureRandom, SystemRandom};

/// A source of unpredictable bytes; seeded in simulation.
pub trait Rng: Send + Sync {
    /// Fills `out` with random bytes. It never fails: a process that cannot draw keys must not go on.
    fn fill(&self, out: &mut [u8]);
}

impl dyn Rng + '_ {
    /// `N` random bytes.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut out = [0; N];
        self.fill(&mut out);
        out
    }
}

/// The operating system's generator.
pub struct SystemRng(SystemRandom);

impl Default for SystemRng {
    #[allow(
        clippy::disallowed_methods,
        reason = "this is the seam that owns randomness"
    )]
    fn default() -> Self {
        Self(SystemRandom::new())
    }
}

impl Rng for SystemRng {
    fn fill(&self, out: &mut [u8]) {
        // getrandom(2) fails only on kernels older than any that this software runs on. Going on with predictable
        // keys would be worse than stopping.
        assert!(
            self.0.fill(out).is_ok(),
            "the operating system gave no random bytes; refusing to make predictable keys"
        );
    }
}
