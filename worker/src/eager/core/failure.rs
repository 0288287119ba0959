//! Errors that the handles of a session share, and the bytes that they take.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use convoke_common::error::Error;

/// Most bytes of an error, encoded, that a session keeps; texts of longer ones are cut.
const LONGEST: usize = 4 << 10;
/// Bytes of an error in memory besides what it takes encoded.
const ERROR: u64 = 512;

/// The error of one op or transfer that failed by itself. It counts as long as any handle has it.
pub(in crate::eager) struct Failure {
    pub error: Arc<Error>,
    _counted: CountedBytes,
}

impl Failure {
    pub fn new(error: Error, total: &Arc<AtomicU64>) -> Arc<Failure> {
        let error = error.shortened(LONGEST);
        Arc::new(Failure {
            _counted: CountedBytes::new(footprint(&error), total),
            error: Arc::new(error),
        })
    }
}

impl Deref for Failure {
    type Target = Error;

    fn deref(&self) -> &Error {
        &self.error
    }
}

/// Bytes that an error takes.
pub(super) fn footprint(error: &Error) -> u64 {
    ERROR + error.encoded_len() as u64
}

/// Bytes that are part of a total until this is dropped.
pub(in crate::eager) struct CountedBytes {
    bytes: u64,
    total: Arc<AtomicU64>,
}

impl CountedBytes {
    pub fn new(bytes: u64, total: &Arc<AtomicU64>) -> CountedBytes {
        total.fetch_add(bytes, Ordering::Relaxed);
        let total = total.clone();
        CountedBytes { bytes, total }
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
