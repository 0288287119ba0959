//! The part of a GPU's driver that the device uses: streams, events, memory, and functions made from source.
//!
//! No call waits for the GPU, except [`Driver::wait_for`]. Every error is a [`DriverError`], and one that is `lost` says that
//! the GPU's context will never work again.

pub mod cache;
pub mod compile;
pub mod probe;
pub mod real;

use smallvec::SmallVec;

use crate::kernels::args::Arguments;

/// A stream: work that is enqueued on it runs in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamId(pub usize);

/// A point in a stream's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventId(pub usize);

/// A function on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionId(pub usize);

/// The functions of a source, by their numbers.
pub type Functions = SmallVec<[FunctionId; 1]>;

/// Why a call to the driver failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverError {
    /// The call and the driver's words.
    pub message: String,
    /// Whether the driver ran out of memory.
    pub out_of_memory: bool,
    /// Whether the context will never work again.
    pub lost: bool,
}

/// The result of a call to the driver.
pub type DriverResult<T> = std::result::Result<T, DriverError>;

/// The driver of one GPU.
pub trait Driver: Send + Sync {
    /// The name of the GPU, for messages.
    fn name(&self) -> &str;

    /// Makes a stream.
    fn stream(&self) -> DriverResult<StreamId>;

    /// Ends a stream once its work has ended.
    fn end_stream(&self, stream: StreamId);

    /// Takes device memory, which work that is enqueued on `stream` from now on may use.
    fn allocate(&self, stream: StreamId, bytes: usize) -> DriverResult<u64>;

    /// Gives device memory back once the work enqueued on `stream` so far has ended.
    ///
    /// # Safety
    /// `memory` came from [`Driver::allocate`], nothing uses it after that work, and it is given back once.
    unsafe fn free(&self, stream: StreamId, memory: u64);

    /// Takes host memory that the GPU reads and writes.
    fn pin(&self, bytes: usize) -> DriverResult<*mut u8>;

    /// Gives host memory back.
    ///
    /// # Safety
    /// `memory` came from [`Driver::pin`], and nothing uses it any longer.
    unsafe fn unpin(&self, memory: *mut u8);

    /// Enqueues a copy from pinned host memory to the device.
    ///
    /// # Safety
    /// Both sides have `bytes` bytes and stay until the copy has ended; nobody writes the host's until then.
    unsafe fn copy_in(
        &self,
        stream: StreamId,
        to: u64,
        from: *const u8,
        bytes: usize,
    ) -> DriverResult<()>;

    /// Enqueues a copy from the device to pinned host memory.
    ///
    /// # Safety
    /// Both sides have `bytes` bytes and stay until the copy has ended; nobody touches the host's until then.
    unsafe fn copy_out(
        &self,
        stream: StreamId,
        to: *mut u8,
        from: u64,
        bytes: usize,
    ) -> DriverResult<()>;

    /// Enqueues a launch of `blocks` blocks of [`crate::kernels::THREADS`] threads.
    ///
    /// # Safety
    /// The function came from this driver, and the memory that the arguments name is what its source expects.
    unsafe fn launch(
        &self,
        stream: StreamId,
        function: FunctionId,
        blocks: u32,
        arguments: &Arguments,
    ) -> DriverResult<()>;

    /// Records an event behind the work that is enqueued on a stream.
    fn record(&self, stream: StreamId) -> DriverResult<EventId>;

    /// Makes work that is enqueued on `stream` from now on wait for an event.
    fn order(&self, stream: StreamId, event: EventId) -> DriverResult<()>;

    /// Waits until an event has come; fails with whatever the work before it failed with.
    fn wait_for(&self, event: EventId) -> DriverResult<()>;

    /// Gives an event back.
    fn end_event(&self, event: EventId);

    /// The first `count` functions of a source, which are called as [`crate::kernels::FUNCTIONS`] says. It is compiled where it
    /// is not cached.
    fn functions(&self, source: &str, count: usize) -> DriverResult<Functions>;
}
