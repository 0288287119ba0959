//! Helpers that the tests of this crate share: a settable calendar and a folder that removes itself.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Rng, SystemRng, WallClock};

/// A calendar that tests move by hand.
#[derive(Debug)]
pub(crate) struct FakeWall(AtomicU64);

impl FakeWall {
    pub(crate) fn at(unix_seconds: u64) -> Self {
        Self(AtomicU64::new(unix_seconds))
    }

    pub(crate) fn set(&self, unix_seconds: u64) {
        self.0.store(unix_seconds, Ordering::SeqCst);
    }
}

impl WallClock for FakeWall {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}

/// A fresh folder, removed with all it holds when dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        let tag = u64::from_le_bytes((&SystemRng::default() as &dyn Rng).bytes());
        let path = std::env::temp_dir().join(format!("convoke-test-{tag:016x}"));
        std::fs::create_dir(&path).expect("a fresh folder");
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
