//! Outputs whose parts several threads write.

/// The start of an output whose disjoint parts are written by several threads.
pub(crate) struct Output<T>(pub *mut T);
// SAFETY: this is only an address; code that writes through it proves that the parts are disjoint.
unsafe impl<T: Send> Sync for Output<T> {}

impl<T> Output<T> {
    pub(crate) fn item(&self, offset: usize) -> *mut T {
        self.0.wrapping_add(offset)
    }
}
