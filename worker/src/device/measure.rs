//! The speed of a device with memory of its own, measured when its worker starts: the planner predicts times by it.
//!
//! ```text
//! operands on the device ── launches ── event ┄┄> time        of a square product, and of an op that reads and writes
//!                              larger, until a turn takes long enough to be measured
//! ```
//! Invariants
//! 1. The measurement uses the device as programs do, through [`DeviceQueue`].
//! 2. It takes no longer than [`BOUND`], and no more memory of the device than three tensors of [`LARGEST`] rows. On the host,
//!    the operand takes up to twice 16 MiB while it is filled; the ledger of a worker that starts does not count them. Where the device has too little for the
//!    smallest size, lacks the kernel, or does not answer, nothing is measured, and the speed of the host is assumed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use convoke_common::error::{Error, Result};
use convoke_common::ids::LeaseId;
use convoke_common::memory::Purpose;
use convoke_common::rpc::Speed;
use convoke_common::world::{AccountId, Share};
use convoke_graph::graph::Attrs;
use convoke_graph::ops::{self, ConcreteOutputs};
use convoke_graph::{DType, Shape, Tensor};
use tokio::time::{Instant, timeout_at};

use super::constants::{UnwatchedKernels, ended};
use super::{
    DeviceKernel, DeviceLaunch, DeviceOp, DeviceOperand, DeviceQueue, DeviceStep, DeviceTensor,
    OwnedDevice,
};

/// The longest time that a device is measured for.
const BOUND: Duration = Duration::from_secs(2);
/// Rows of the square tensors: the first size, and the largest one, whose tensors take 16 MiB.
const SMALLEST: usize = 128;
const LARGEST: usize = 2048;
/// A turn of this length is measured well enough.
const LONG_ENOUGH: Duration = Duration::from_millis(2);
/// Launches of a turn, which share the time that it takes to hear of their end.
const LAUNCHES: usize = 4;
/// Turns of which the shortest counts.
const TURNS: usize = 3;

/// Measured FLOP/s of a matrix product, and bytes/s of an op that reads and writes 16 MiB each. A device whose cache holds
/// them has that cache measured; one that knows the speed of its memory is not measured, as [`speed`] says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct MeasuredSpeed {
    flops: Option<f64>,
    bandwidth: Option<f64>,
}

/// The speed of a worker's device: as the device knows it, else as measured. `host` is the speed of the worker's host,
/// which is assumed where there is neither.
pub(crate) async fn speed(owned: &OwnedDevice, host: Speed) -> Speed {
    if let Some((flops, memory_bandwidth)) = owned.device.speed() {
        return Speed {
            flops,
            memory_bandwidth,
        };
    }
    let MeasuredSpeed { flops, bandwidth } = measure(owned).await;
    if flops.is_none() || bandwidth.is_none() {
        tracing::warn!("the device could not be measured: plans assume the speed of its host");
    }
    Speed {
        flops: flops.unwrap_or(host.flops),
        memory_bandwidth: bandwidth.unwrap_or(host.memory_bandwidth),
    }
}

async fn measure(owned: &OwnedDevice) -> MeasuredSpeed {
    let until = Instant::now() + BOUND;
    let product = rate(owned, "MatMul", 2, until, |n| 2.0 * (n as f64).powi(3));
    let flops = product.await;
    // An element is read and written.
    let copy = rate(owned, "Neg", 1, until, |n| 8.0 * (n as f64).powi(2));
    MeasuredSpeed {
        flops,
        bandwidth: copy.await,
    }
}

/// The amount of work per second of an op on square tensors; `None` where it cannot be measured.
async fn rate(
    owned: &OwnedDevice,
    op: &str,
    operands: usize,
    until: Instant,
    work: impl Fn(usize) -> f64,
) -> Option<f64> {
    let (mut best, mut n) = (None, SMALLEST);
    while n <= LARGEST {
        match turn(owned, op, operands, n, until).await {
            Ok(time) => {
                best = Some(work(n) / time.as_secs_f64().max(1e-9));
                if time * LAUNCHES as u32 >= LONG_ENOUGH {
                    break;
                }
            }
            Err(error) => {
                tracing::debug!("{op} of {n} rows is not measured on the device: {error}");
                break;
            }
        }
        n *= 2;
    }
    best
}

/// The time of one launch of an op on tensors of `n` rows and columns.
async fn turn(
    owned: &OwnedDevice,
    op: &str,
    operands: usize,
    n: usize,
    until: Instant,
) -> Result<Duration> {
    let def = ops::lookup(op).ok_or_else(|| Error::internal("no such op"))?;
    let kernel = owned.device.resolve(&DeviceOp {
        def,
        attrs: &Attrs::default(),
        operands: &vec![Some(DType::F32); operands],
        outputs: 1,
    });
    let kernel = kernel.ok_or_else(|| Error::internal("the device has no kernel for it"))?;
    let share = Share::of_member(
        AccountId::named("measurement"),
        "measurement",
        Default::default(),
        LeaseId(0),
    );
    let memory = &owned.memory;
    let queue = owned.device.open(&share, memory, Purpose::Leases, 0)?;
    let cancel = Arc::<AtomicBool>::default();
    let step = Arc::new(DeviceStep::new(cancel, Arc::new(UnwatchedKernels)));
    let ones = Tensor::from_slice(&[n, n], &vec![1.0f32; n * n])?;
    let given = queue.copy_in(&step, 0, ones);
    let mut bench = Bench {
        queue,
        step,
        kernel,
        operands: vec![given; operands],
        outputs: std::iter::once((DType::F32, Shape::from_slice(&[n, n]))).collect(),
        until,
    };
    // The first launch may load the kernel.
    bench.launched(1).await?;
    let mut shortest = Duration::MAX;
    for _ in 0..TURNS {
        shortest = shortest.min(bench.launched(LAUNCHES).await?);
    }
    Ok(shortest / LAUNCHES as u32)
}

/// One op on operands that are on the device.
struct Bench {
    queue: Arc<dyn DeviceQueue>,
    step: Arc<DeviceStep>,
    kernel: DeviceKernel,
    operands: Vec<DeviceTensor>,
    outputs: ConcreteOutputs,
    until: Instant,
}

/// What has not begun when the measurement ends, late as it may be, does not run.
impl Drop for Bench {
    fn drop(&mut self) {
        self.step.cancel.store(true, Ordering::Relaxed);
        self.queue.recall();
    }
}

impl Bench {
    /// Launches the op `times` times, and returns how long it takes until all have ended.
    async fn launched(&mut self, times: usize) -> Result<Duration> {
        let begun = Instant::now();
        for _ in 0..times {
            let operands = self.operands.iter().cloned().map(DeviceOperand::Device);
            self.queue.launch(DeviceLaunch {
                kernel: &self.kernel,
                step: &self.step,
                node: 0,
                operands: operands.collect(),
                outputs: &self.outputs,
            });
        }
        let late = |_| Error::internal("the device does not answer in time");
        let end = timeout_at(self.until, ended(&*self.queue)).await;
        end.map_err(late)??;
        match self.step.failure() {
            Some(failure) => {
                let cancelled = || Error::internal("the device cancelled a launch");
                Err(failure.error.clone().unwrap_or_else(cancelled))
            }
            None => Ok(begun.elapsed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use convoke_graph::program::NUMERICS_PROFILE;

    use super::*;
    use crate::compute::Threads;
    use crate::device::simgpu::SimGpu;

    fn simulated(memory: u64) -> OwnedDevice {
        let threads = Threads::start("measured", 1).unwrap();
        let device = Arc::new(SimGpu::new(Arc::new(threads)));
        OwnedDevice::new("w0", device, NUMERICS_PROFILE, memory)
    }

    #[tokio::test]
    async fn a_device_is_measured_through_its_queue() {
        let owned = simulated(1 << 30);
        let begun = Instant::now();
        let speed = measure(&owned).await;
        assert!(begun.elapsed() < 3 * BOUND);
        // Between a slow processor with a build for tests, and more than any has.
        let check = |rate: Option<f64>| {
            let rate = rate.unwrap();
            assert!((1e6..1e15).contains(&rate), "{speed:?}");
        };
        check(speed.flops);
        check(speed.bandwidth);
    }

    #[tokio::test]
    async fn a_device_that_knows_its_speed_is_not_measured() {
        let owned = simulated(1 << 30);
        let host = Speed {
            flops: 1.0,
            memory_bandwidth: 2.0,
        };
        let speed = speed(&owned, host).await;
        assert_eq!(owned.memory.total_and_peak().1, 0);
        assert!(speed.flops > host.flops, "{speed:?}");
    }

    #[tokio::test]
    async fn a_device_without_room_is_not_measured() {
        let owned = simulated(1 << 10);
        assert_eq!(measure(&owned).await, MeasuredSpeed::default());
        assert_eq!(owned.memory.total_and_peak().0, 0);
    }
}
