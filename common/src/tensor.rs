//! Tensors: a dtype, a shape and a view into an aligned, reference-counted buffer.
//!
//! Invariants
//! 1. A tensor is dense and row-major: its bytes are one contiguous range of its buffer, so views by
//!    reshape and along the outermost axis copy nothing.
//! 2. Every allocation size is checked against `isize::MAX` and comes back as an error, never a panic.
//! 3. Bytes are mutable only through the one owner of the buffer ([`Tensor::bytes_mut`]).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

use crate::block::Block;
use crate::dtype::{DType, Element};

pub use crate::block::ALIGN;

/// Concrete dimensions, outermost first. Rank 0 is a scalar.
pub type Shape = SmallVec<[usize; 4]>;

/// Rank above which tensors are refused everywhere.
pub const MAX_RANK: usize = 16;

/// A tensor could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The shape's byte size exceeds what an address space holds.
    #[error("shape {shape:?} of {dtype} is too large to allocate")]
    TooLarge { dtype: DType, shape: Vec<usize> },
    /// The allocator had no room.
    #[error("out of memory allocating {bytes} bytes")]
    OutOfMemory { bytes: usize },
    /// The bytes given do not fill the shape.
    #[error("shape {shape:?} of {dtype} needs {need} bytes, {got} given")]
    WrongLength {
        dtype: DType,
        shape: Vec<usize>,
        need: usize,
        got: usize,
    },
    /// The tensor holds another dtype.
    #[error("tensor is {have}, not {want}")]
    WrongDType { have: DType, want: DType },
    /// A bool byte other than 0 or 1.
    #[error("a bool tensor holds a byte that is neither 0 nor 1")]
    NotBool,
    /// More dimensions than [`MAX_RANK`].
    #[error("rank {rank} is above the limit of 16")]
    Rank { rank: usize },
}

/// Elements in `shape`; `None` on overflow.
pub fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))
}

/// Bytes of a dense tensor; `None` on overflow.
pub fn byte_size(dtype: DType, shape: &[usize]) -> Option<usize> {
    element_count(shape)?
        .checked_mul(dtype.size())
        .filter(|n| *n <= isize::MAX as usize)
}

/// A dense tensor. Cloning shares the buffer.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    block: Arc<Block>,
    offset: usize,
}

impl Tensor {
    /// A tensor of zeros.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Tensor, TensorError> {
        let bytes = Self::size_of(dtype, shape)?;
        Ok(Self::from_block(dtype, shape, Block::zeroed(bytes)?))
    }

    /// Bytes that `shape` needs, or why it cannot be.
    pub fn size_of(dtype: DType, shape: &[usize]) -> Result<usize, TensorError> {
        if shape.len() > MAX_RANK {
            return Err(TensorError::Rank { rank: shape.len() });
        }
        byte_size(dtype, shape).ok_or_else(|| TensorError::TooLarge {
            dtype,
            shape: shape.to_vec(),
        })
    }

    /// A tensor over the first bytes of `block`, which must be at least as long as the shape needs.
    pub fn from_block(dtype: DType, shape: &[usize], block: Block) -> Tensor {
        let need = byte_size(dtype, shape);
        assert!(
            need.is_some_and(|n| n <= block.len()),
            "block shorter than its shape"
        );
        Tensor {
            dtype,
            shape: shape.into(),
            block: Arc::new(block),
            offset: 0,
        }
    }

    /// Copies little-endian bytes.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Tensor, TensorError> {
        let need = Self::size_of(dtype, shape)?;
        if need != bytes.len() {
            let shape = shape.to_vec();
            return Err(TensorError::WrongLength {
                dtype,
                shape,
                need,
                got: bytes.len(),
            });
        }
        let mut block = Block::zeroed(need)?;
        block.bytes_mut().copy_from_slice(bytes);
        let t = Self::from_block(dtype, shape, block);
        t.check_bool()?;
        Ok(t)
    }

    /// Fails when this is a bool tensor with a byte other than 0 and 1.
    pub fn check_bool(&self) -> Result<(), TensorError> {
        if self.dtype == DType::Bool && self.bytes().iter().any(|b| *b > 1) {
            return Err(TensorError::NotBool);
        }
        Ok(())
    }

    /// Copies `data`, row-major.
    pub fn from_slice<T: Element>(shape: &[usize], data: &[T]) -> Result<Tensor, TensorError> {
        Self::from_bytes(T::DTYPE, shape, bytemuck::cast_slice(data))
    }

    /// Copies booleans.
    pub fn from_bools(shape: &[usize], data: &[bool]) -> Result<Tensor, TensorError> {
        let bytes: Vec<u8> = data.iter().map(|b| u8::from(*b)).collect();
        Self::from_bytes(DType::Bool, shape, &bytes)
    }

    /// A scalar.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Self::from_slice(&[], &[value]).expect("a scalar fits")
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of bytes.
    pub fn byte_len(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// The row-major bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.block.bytes()[self.offset..self.offset + self.byte_len()]
    }

    /// The bytes to write, where this is the only tensor on the buffer.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let (offset, len) = (self.offset, self.byte_len());
        Some(&mut Arc::get_mut(&mut self.block)?.bytes_mut()[offset..offset + len])
    }

    /// Whether no other tensor shares the buffer.
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.block) == 1
    }

    /// Whether its buffer is cut from a region that others are cut from as well.
    pub fn is_of_region(&self) -> bool {
        self.block.is_of_region()
    }

    /// The elements, where `T` is the dtype. A bool tensor reads as `u8`.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        self.check_dtype(T::DTYPE)?;
        Ok(bytemuck::cast_slice(self.bytes()))
    }

    /// The elements to write, where `T` is the dtype and the buffer is unshared.
    pub fn as_mut_slice<T: Element>(&mut self) -> Option<&mut [T]> {
        self.check_dtype(T::DTYPE).ok()?;
        Some(bytemuck::cast_slice_mut(self.bytes_mut()?))
    }

    fn check_dtype(&self, want: DType) -> Result<(), TensorError> {
        if self.dtype == want || (self.dtype == DType::Bool && want == DType::U8) {
            return Ok(());
        }
        Err(TensorError::WrongDType {
            have: self.dtype,
            want,
        })
    }

    /// The same bytes under another shape of as many elements; no copy.
    pub fn reshape(&self, shape: &[usize]) -> Option<Tensor> {
        (element_count(shape)? == self.elements()).then(|| Tensor {
            shape: shape.into(),
            ..self.clone()
        })
    }

    /// Rows `start..end` of the outermost axis; no copy.
    pub fn outer_range(&self, start: usize, end: usize) -> Option<Tensor> {
        let rows = *self.shape.first()?;
        if start > end || end > rows {
            return None;
        }
        let row = self.byte_len().checked_div(rows).unwrap_or(0);
        let mut shape = self.shape.clone();
        shape[0] = end - start;
        Some(Tensor {
            shape,
            offset: self.offset + start * row,
            ..self.clone()
        })
    }

    /// An integer or bool tensor's elements as i64, where every one fits.
    pub fn to_i64s(&self) -> Option<Vec<i64>> {
        fn conv<T: Element + TryInto<i64>>(t: &Tensor) -> Option<Vec<i64>> {
            t.as_slice::<T>()
                .ok()?
                .iter()
                .map(|v| (*v).try_into().ok())
                .collect()
        }
        match self.dtype {
            DType::I8 => conv::<i8>(self),
            DType::I16 => conv::<i16>(self),
            DType::I32 => conv::<i32>(self),
            DType::I64 => conv::<i64>(self),
            DType::U8 | DType::Bool => conv::<u8>(self),
            DType::U16 => conv::<u16>(self),
            DType::U32 => conv::<u32>(self),
            DType::U64 => conv::<u64>(self),
            DType::F32 | DType::F64 | DType::F16 | DType::BF16 => None,
        }
    }

    /// BLAKE3 of the raw little-endian bytes, in hexadecimal.
    pub fn digest(&self) -> String {
        blake3::hash(self.bytes()).to_hex().to_string()
    }

    /// `f32[2, 3]`.
    pub fn signature(&self) -> String {
        format!("{}{:?}", self.dtype, self.shape.as_slice())
    }
}

/// Same dtype, shape and bits.
impl PartialEq for Tensor {
    fn eq(&self, other: &Tensor) -> bool {
        self.dtype == other.dtype && self.shape == other.shape && self.bytes() == other.bytes()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.signature())
    }
}

#[derive(Serialize, Deserialize)]
struct Wire<'a> {
    dtype: DType,
    shape: Vec<u64>,
    #[serde(borrow)]
    bytes: std::borrow::Cow<'a, [u8]>,
}

/// For small tensors inside graphs; large ones travel as raw bytes.
impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        Wire {
            dtype: self.dtype,
            shape: self.shape.iter().map(|d| *d as u64).collect(),
            bytes: self.bytes().into(),
        }
        .serialize(s)
    }
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Tensor, D::Error> {
        #[derive(Deserialize)]
        struct Owned {
            dtype: DType,
            shape: Vec<u64>,
            bytes: Vec<u8>,
        }
        use serde::de::Error;
        let w = Owned::deserialize(d)?;
        let shape: Result<Vec<usize>, _> = w.shape.iter().map(|d| usize::try_from(*d)).collect();
        let shape = shape.map_err(|_| D::Error::custom("dimension too large"))?;
        Tensor::from_bytes(w.dtype, &shape, &w.bytes).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_share_and_writes_need_a_sole_owner() {
        let mut t = Tensor::from_slice(&[2, 3], &[1f32, 2., 3., 4., 5., 6.]).unwrap();
        let row = t.outer_range(1, 2).unwrap();
        assert_eq!(row.as_slice::<f32>().unwrap(), [4., 5., 6.]);
        assert_eq!(t.reshape(&[6]).unwrap().shape(), [6]);
        assert!(t.reshape(&[5]).is_none());
        assert!(t.as_mut_slice::<f32>().is_none());
        drop(row);
        t.as_mut_slice::<f32>().unwrap()[0] = 9.;
        assert_eq!(t.as_slice::<f32>().unwrap()[0], 9.);
        assert_eq!(t.bytes().as_ptr() as usize % ALIGN, 0);
    }

    #[test]
    fn absurd_sizes_are_errors() {
        assert!(matches!(
            Tensor::zeros(DType::F32, &[usize::MAX, 2]),
            Err(TensorError::TooLarge { .. })
        ));
        assert!(matches!(
            Tensor::zeros(DType::U8, &[isize::MAX as usize]),
            Err(TensorError::OutOfMemory { .. })
        ));
        assert!(
            Tensor::zeros(DType::F32, &[0, 7])
                .unwrap()
                .bytes()
                .is_empty()
        );
    }

    #[test]
    fn bools_are_checked() {
        assert_eq!(
            Tensor::from_bytes(DType::Bool, &[2], &[1, 2]),
            Err(TensorError::NotBool)
        );
        assert_eq!(
            Tensor::from_bools(&[2], &[true, false]).unwrap().bytes(),
            [1, 0]
        );
    }
}
