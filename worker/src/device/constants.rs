//! Constants on the device: each is copied once, and leases that share the host's constant share the copy.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use convoke_common::error::{Error, Result};
use convoke_common::memory::Purpose;
use convoke_common::world::Share;
use convoke_graph::Tensor;
use tokio::sync::{Mutex, oneshot};

use super::{DeviceQueue, DeviceStep, DeviceTensor, KernelWatch, OwnedDevice};

/// Where a host tensor lies, and how many bytes it has.
type Place = (usize, usize);

/// The copies of constants that are on the device, by where the host's constants lie. An installed program keeps the
/// host's constant as long as the copy, so that no other tensor is in its place.
#[derive(Default)]
pub struct ConstantCopies(Mutex<HashMap<Place, Weak<dyn Any + Send + Sync>>>);

/// The bytes after which an install waits for its copies, because a device may keep as many in memory of the host.
const IN_FLIGHT: usize = 64 << 20;

/// The watch of work for which no kernel of a step is noted.
pub(crate) struct UnwatchedKernels;

impl KernelWatch for UnwatchedKernels {
    fn around(&self, _: u32, run: &mut dyn FnMut()) {
        run();
    }
}

fn place(tensor: &Tensor) -> Place {
    (tensor.bytes().as_ptr() as usize, tensor.byte_len())
}

/// Waits until all that was enqueued has ended.
pub(super) async fn ended(queue: &dyn DeviceQueue) -> Result<()> {
    let (came, comes) = oneshot::channel();
    queue.event(Box::new(move || {
        let _ = came.send(());
    }));
    let comes = comes.await;
    comes.map_err(|_| Error::internal("the device ended before what it was asked for"))
}

/// Copies those of a program's `constants` whose numbers are `needed` to the device, and waits until they are there.
/// Returns the copies by number. Fails where the device's memory does not suffice.
pub(crate) async fn copy_constants(
    constants: &[Tensor],
    needed: Vec<u32>,
    owned: &OwnedDevice,
    share: &Share,
) -> Result<Vec<Option<DeviceTensor>>> {
    if needed.is_empty() {
        return Ok(vec![]);
    }
    let queue = owned
        .device
        .open(share, &owned.memory, Purpose::Weights, 0)?;
    let cancel = Arc::<AtomicBool>::default();
    let step = Arc::new(DeviceStep::new(cancel, Arc::new(UnwatchedKernels)));
    // Installs copy one after the other, so that none copies what another one is copying.
    let mut copies = owned.constants.0.lock().await;
    let mut made = vec![None; constants.len()];
    let (mut new, mut in_flight) = (vec![], 0_usize);
    for c in needed {
        let tensor = constants
            .get(c as usize)
            .ok_or_else(|| Error::internal("a constant without its tensor"))?;
        let there = copies.get(&place(tensor)).and_then(Weak::upgrade);
        let copy = match there {
            Some(buffer) => DeviceTensor {
                dtype: tensor.dtype(),
                shape: tensor.shape().into(),
                buffer,
            },
            None => {
                if in_flight > 0 && in_flight.saturating_add(tensor.byte_len()) > IN_FLIGHT {
                    ended(&*queue).await?;
                    in_flight = 0;
                }
                in_flight = in_flight.saturating_add(tensor.byte_len());
                let copy = queue.copy_in(&step, 0, tensor.clone());
                new.push((place(tensor), Arc::downgrade(&copy.buffer)));
                copy
            }
        };
        made[c as usize] = Some(copy);
    }
    ended(&*queue).await?;
    if let Some(failure) = step.failure() {
        let cancelled = || Error::internal("a copy to the device was cancelled");
        return Err(failure.error.clone().unwrap_or_else(cancelled));
    }
    copies.retain(|_, copy| copy.strong_count() > 0);
    copies.extend(new);
    Ok(made)
}
