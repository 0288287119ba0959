//! Conversions of the program's values to host tensors, and back.

use convoke_common::error::{Code, Error, Result};
use convoke_graph::Element;
use convoke_graph::Tensor as HostTensor;

/// A value that can be put on a device.
pub trait ToHost {
    /// Returns the value as a tensor in this program's memory.
    fn to_host(&self) -> Result<HostTensor>;
}

/// A type that a tensor can be fetched as.
pub trait FromHost: Sized {
    /// Converts a tensor to this type. Fails where the tensor's dtype or rank does not fit it.
    fn from_host(tensor: HostTensor) -> Result<Self>;
}

impl<T: ToHost + ?Sized> ToHost for &T {
    fn to_host(&self) -> Result<HostTensor> {
        (**self).to_host()
    }
}

impl ToHost for HostTensor {
    fn to_host(&self) -> Result<HostTensor> {
        Ok(self.clone())
    }
}

impl<T: Element> ToHost for [T] {
    fn to_host(&self) -> Result<HostTensor> {
        Ok(HostTensor::from_slice(&[self.len()], self)?)
    }
}

impl<T: Element> ToHost for Vec<T> {
    fn to_host(&self) -> Result<HostTensor> {
        self.as_slice().to_host()
    }
}

impl<T: Element, const N: usize> ToHost for [T; N] {
    fn to_host(&self) -> Result<HostTensor> {
        self.as_slice().to_host()
    }
}

impl<T: Element, D: ndarray::Dimension> ToHost for ndarray::Array<T, D> {
    fn to_host(&self) -> Result<HostTensor> {
        self.view().to_host()
    }
}

impl<T: Element, D: ndarray::Dimension> ToHost for ndarray::ArrayView<'_, T, D> {
    fn to_host(&self) -> Result<HostTensor> {
        let standard = self.as_standard_layout();
        let data = standard.as_slice();
        let data = data.ok_or_else(|| Error::internal("a standard layout is a slice"))?;
        Ok(HostTensor::from_slice(self.shape(), data)?)
    }
}

impl FromHost for HostTensor {
    fn from_host(tensor: HostTensor) -> Result<HostTensor> {
        Ok(tensor)
    }
}

impl<T: Element> FromHost for Vec<T> {
    fn from_host(tensor: HostTensor) -> Result<Vec<T>> {
        Ok(tensor.as_slice::<T>()?.to_vec())
    }
}

impl<T: Element, D: ndarray::Dimension> FromHost for ndarray::Array<T, D> {
    fn from_host(tensor: HostTensor) -> Result<ndarray::Array<T, D>> {
        let data = tensor.as_slice::<T>()?.to_vec();
        let array = ndarray::ArrayD::from_shape_vec(tensor.shape(), data);
        let array = array.map_err(|e| Error::internal(format!("the elements of a tensor: {e}")))?;
        array.into_dimensionality().map_err(|_| {
            let want = D::NDIM.unwrap_or_default();
            let msg = format!("{} has no {want} dimensions", tensor.signature());
            Error::new(Code::InvalidArgument, msg)
        })
    }
}

macro_rules! scalars {
    ($($t:ty),*) => {$(
        impl ToHost for $t {
            fn to_host(&self) -> Result<HostTensor> {
                Ok(HostTensor::scalar(*self))
            }
        }
        impl FromHost for $t {
            fn from_host(tensor: HostTensor) -> Result<$t> {
                match tensor.as_slice::<$t>()? {
                    [one] => Ok(*one),
                    _ => {
                        let msg = format!("{} is not a single element", tensor.signature());
                        Err(Error::new(Code::InvalidArgument, msg))
                    }
                }
            }
        }
    )*};
}
scalars!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);

impl ToHost for bool {
    fn to_host(&self) -> Result<HostTensor> {
        Ok(HostTensor::from_bools(&[], &[*self])?)
    }
}

impl FromHost for bool {
    fn from_host(tensor: HostTensor) -> Result<bool> {
        u8::from_host(tensor).map(|b| b != 0)
    }
}
