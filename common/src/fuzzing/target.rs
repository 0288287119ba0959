//! What a fuzz target is, and how its entry runs.

use tokio::runtime::Builder;

/// The most bytes that an entry may have allocated at once.
#[derive(Debug, Clone, Copy)]
pub struct MemoryBound {
    /// Bytes for any input. serde allocates up to 1 MiB for a list before its first element, at each of the few levels
    /// that messages have.
    pub fixed: usize,
    /// Further bytes for each byte of input.
    pub factor: usize,
}

impl MemoryBound {
    /// The bound in bytes for an input of this length.
    pub fn bytes(&self, input: usize) -> usize {
        self.fixed.saturating_add(self.factor.saturating_mul(input))
    }
}

/// A fuzz target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of the target, and of its folder in `fuzz/corpus`.
    pub name: &'static str,
    pub budget: MemoryBound,
    /// Runs the target on an input; returns whether the input was accepted.
    pub entry: fn(&[u8]) -> bool,
}

/// Runs the decoder that the first byte of the input chooses on the rest of the input.
pub fn choose(decoders: &[fn(&[u8]) -> bool], input: &[u8]) -> bool {
    let Some((which, rest)) = input.split_first() else {
        return false;
    };
    let decoder = decoders.get(usize::from(*which));
    decoder.is_some_and(|decode| decode(rest))
}

/// Runs an asynchronous entry on a runtime of its own: the tasks that the entry leaves end with the runtime.
pub fn on_runtime(entry: impl Future<Output = bool>) -> bool {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.is_ok_and(|runtime| runtime.block_on(entry))
}
