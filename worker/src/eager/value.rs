//! The value of a handle. A worker that is the host alone has every value in the host's memory. Where a worker has a
//! device with memory of its own, a value lies in either memory or in both, and is copied when an op first reads it there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_graph::{DType, Shape, Tensor};

use super::core::Failure;
use crate::device::DeviceTensor;

/// Most bytes of a value that always stays in one memory after it was copied to the other: it is often read from both, as
/// sizes are, and its second copy takes little.
const KEPT_TWICE: usize = 64 << 10;

/// The value of a handle.
#[derive(Clone)]
pub(super) enum Value {
    /// The value lies in memory of the host; the worker has no other.
    Host(Tensor),
    /// The worker has a device with memory of its own, and the value lies there, on the host, or in both.
    Device(Arc<DeviceValue>),
}

impl Value {
    /// Bytes of the elements.
    pub fn byte_len(&self) -> usize {
        match self {
            Value::Host(tensor) => tensor.byte_len(),
            Value::Device(value) => value.byte_len(),
        }
    }

    /// The dimensions.
    pub fn shape(&self) -> &[usize] {
        match self {
            Value::Host(tensor) => tensor.shape(),
            Value::Device(value) => &value.shape,
        }
    }
}

/// A value at a worker that has a device with memory of its own.
pub(super) struct DeviceValue {
    pub dtype: DType,
    pub shape: Shape,
    places: Mutex<Places>,
}

/// Where a value lies. It lies somewhere, unless the launch that was to make it has failed.
#[derive(Default)]
struct Places {
    host: Option<Tensor>,
    device: Option<DeviceTensor>,
    failure: Option<Arc<Failure>>,
    /// The number of the copy to the host that is under way.
    copying: Option<u64>,
}

impl DeviceValue {
    /// A value in the host's memory.
    pub fn of_host(tensor: Tensor) -> DeviceValue {
        DeviceValue {
            dtype: tensor.dtype(),
            shape: tensor.shape().into(),
            places: Mutex::new(Places {
                host: Some(tensor),
                ..Places::default()
            }),
        }
    }

    /// A value on the device, which a launch makes.
    pub fn of_device(tensor: DeviceTensor) -> DeviceValue {
        DeviceValue {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            places: Mutex::new(Places {
                device: Some(tensor),
                ..Places::default()
            }),
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the elements.
    pub fn byte_len(&self) -> usize {
        // Only the tensor knows the lengths of strings, which are never on a device.
        let host = self.places().host.as_ref().map(Tensor::byte_len);
        host.unwrap_or_else(|| self.size())
    }

    /// Bytes of elements that are no strings.
    fn size(&self) -> usize {
        Tensor::size_of(self.dtype, &self.shape).unwrap_or(usize::MAX)
    }

    /// The tensor in the host's memory, if the value lies there.
    pub fn host(&self) -> Option<Tensor> {
        self.places().host.clone()
    }

    /// The tensor on the device, if the value lies there.
    pub fn device(&self) -> Option<DeviceTensor> {
        self.places().device.clone()
    }

    /// The tensor on the device, if the value lies there, without what lies on the host.
    pub fn into_device(self) -> Option<DeviceTensor> {
        let places = self.places.into_inner();
        places.unwrap_or_else(PoisonError::into_inner).device
    }

    /// The number of the copy to the host that is under way.
    pub fn copying(&self) -> Option<u64> {
        self.places().copying
    }

    /// A copy to the host begins, which has this number.
    pub fn copies_out(&self, number: u64) {
        self.places().copying = Some(number);
    }

    /// The copy to the host has ended. A copy stays where ops on the host read the value, or where it is small.
    pub fn copied_out(&self, copy: Option<&Tensor>, is_read: bool) {
        let mut places = self.places();
        places.copying = None;
        if let Some(copy) = copy.filter(|copy| is_read || copy.byte_len() <= KEPT_TWICE) {
            places.host = Some(copy.clone());
        }
    }

    /// Notes a copy on the device, which is not there yet.
    pub fn copies_in(&self, copy: DeviceTensor) {
        self.places().device = Some(copy);
    }

    /// The copy on the device is there.
    pub fn copied_in(&self) {
        let mut places = self.places();
        if self.size() > KEPT_TWICE && places.device.is_some() {
            places.host = None;
        }
    }

    /// The copy on the device has failed: the value lies on the host alone.
    pub fn not_copied_in(&self) {
        let mut places = self.places();
        if places.host.is_some() {
            places.device = None;
        }
    }

    /// The launch that was to make the value has failed.
    pub fn fail(&self, failure: &Arc<Failure>) {
        self.places().failure = Some(failure.clone());
    }

    /// Why there is no value, where the launch that was to make it has failed.
    pub fn failure(&self) -> Option<Arc<Failure>> {
        self.places().failure.clone()
    }
}
