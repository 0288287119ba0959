//! The kind of device `cuda`: one NVIDIA GPU of the worker's machine, reached through the driver's API.
//!
//! ```text
//! install   resolve(op) ──> template ──> CUDA C ──> NVRTC ──> cubin, cached on disk ──> function
//! step      copy in ──> stream `inward` ┄┄event┄┄> stream `compute`: launches ┄┄event┄┄> stream `outward` ──> copy out
//!           a thread per queue waits for events in the order of the queue, and calls back
//! ```
//! The product is built without CUDA and finds the driver (`libcuda.so.1`) and the compiler (`libnvrtc.so`) where it runs.
//! Where one is missing, opening the device is refused by one error that names it.
//!
//! Invariants
//! 1. Sources are made of typed templates alone: no text of a user, not even the name of a value, is compiled.
//! 2. The bits of a result depend on op, attributes, shapes, dtypes, architecture and [`PROFILE`]. Kernels use no atomic,
//!    no approximate instruction and no flush of subnormals; multiply-adds are fused where the source says so and nowhere
//!    else; the order of every sum is a function of its length alone.
//! 3. Code of the queue knows the driver by the trait [`driver::Driver`] alone. The tests have a second implementation,
//!    which compiles the same sources for the CPU.

pub mod device;
pub mod driver;
mod gpu;
pub mod kernels;
mod queue;

use std::sync::Arc;

use convoke_common::error::Result;
use convoke_worker::device::DeviceKind;

use self::device::CudaDevice;
use self::driver::real::CudaDriver;

/// The numerics profile of the device. It changes whenever a kernel gives other bits, or an op gets a kernel.
pub const PROFILE: &str = "cuda-exact-4";

/// Registers the kind of device, so that workers of this process may have it. No library is loaded before a worker opens
/// the device.
pub fn register() -> Result<()> {
    let kind = DeviceKind::new("cuda", PROFILE, |context| {
        let driver = CudaDriver::open(context.number)?;
        Ok(Arc::new(CudaDevice::new(Arc::new(driver))))
    });
    convoke_worker::device::register(kind)
}
