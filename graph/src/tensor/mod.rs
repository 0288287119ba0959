//! Tensors: a dtype, a shape and a view into an aligned, reference-counted buffer.
//!
//! Invariants
//! 1. A tensor is dense and row-major: its bytes are one contiguous range of its buffer, so views by
//!    reshape and along the outermost axis copy nothing.
//! 2. Every allocation size is checked against `isize::MAX` and comes back as an error, never a panic.
//! 3. Bytes are mutable only through the one owner of the buffer ([`Tensor::bytes_mut`]).
//! 4. A tensor of up to [`INLINE`] bytes holds them itself, and no ledger counts them: other bounds limit the number of
//!    such tensors.

pub mod block;
mod error;
pub mod narrow;
pub mod outputs;
pub mod segment;
pub mod text;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;
// This `Arc` has no weak count, which would cost every tensor two more atomic operations.
use triomphe::Arc as Shared;

use crate::dtype::{DType, Element};
use block::{Block, Cover};
use convoke_functions::packed;
use segment::{Segment, SegmentLoan};

pub use error::TensorError;

/// Concrete dimensions, outermost first. Rank 0 is a scalar.
pub type Shape = SmallVec<[usize; 4]>;

/// The most bytes that a tensor holds itself. That suffices for scalars and pairs, whose ops would spend most of their
/// time on allocating a block for the result.
pub const INLINE: usize = 16;

/// Rank above which tensors are refused everywhere.
pub const MAX_RANK: usize = 16;

/// Elements in `shape`; `None` on overflow.
#[inline]
pub fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))
}

/// Bytes of a dense tensor, which for strings are those of empty ones; `None` on overflow.
#[inline]
pub fn byte_size(dtype: DType, shape: &[usize]) -> Option<usize> {
    dtype
        .least_bytes_for(element_count(shape)?)
        .filter(|n| *n <= isize::MAX as usize)
}

/// A dense tensor. It is as large as one pointer, and clones share its elements.
#[derive(Clone)]
pub struct Tensor(Shared<Inner>);

struct Inner {
    dtype: DType,
    shape: Shape,
    buffer: Buffer,
}

/// The place of a tensor's bytes.
enum Buffer {
    Own(Block),
    /// In the tensor itself, in words that are aligned for every element type.
    Inline([u64; INLINE / 8]),
    /// In memory that a peer lent, for reading only.
    Lent(SegmentLoan),
    /// In the buffer of a tensor that is not a view, from this offset on.
    View(Shared<Inner>, usize),
    /// In the buffer of a tensor that is neither a view nor covered, from this offset on; the cover accounts for them.
    Covered(Shared<Inner>, usize, Cover),
}

impl Buffer {
    /// All bytes of a buffer that is not another tensor's.
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Buffer::Own(block) => block.bytes(),
            Buffer::Inline(words) => bytemuck::bytes_of(words),
            Buffer::Lent(lent) => lent.bytes(),
            Buffer::View(..) | Buffer::Covered(..) => &[],
        }
    }
}

impl Tensor {
    /// Makes a tensor of zeros, or of empty strings.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Tensor, TensorError> {
        let bytes = Self::size_of(dtype, shape)?;
        match Self::inline(dtype, shape, bytes) {
            Some(t) => Ok(t),
            None => Ok(Self::from_block(dtype, shape, Block::zeroed(bytes)?)),
        }
    }

    /// Makes a tensor of zeros without a block. Returns `None` where `bytes`, the size of the shape, is above
    /// [`INLINE`]. Strings, which fill their block, have one unless there are none.
    #[inline]
    pub fn inline(dtype: DType, shape: &[usize], bytes: usize) -> Option<Tensor> {
        (bytes <= INLINE && (dtype != DType::Str || bytes == 0)).then(|| {
            Tensor(Shared::new(Inner {
                dtype,
                shape: Shape::from_slice(shape),
                buffer: Buffer::Inline([0; INLINE / 8]),
            }))
        })
    }

    /// Bytes that `shape` needs, which for strings are those of empty ones. Fails where its rank or its size is above the
    /// limits.
    #[inline(always)]
    pub fn size_of(dtype: DType, shape: &[usize]) -> Result<usize, TensorError> {
        match byte_size(dtype, shape) {
            Some(bytes) if shape.len() <= MAX_RANK => Ok(bytes),
            _ => Err(Self::no_size(dtype, shape)),
        }
    }

    /// Why a shape has no size.
    #[cold]
    fn no_size(dtype: DType, shape: &[usize]) -> TensorError {
        match shape.len() {
            rank if rank > MAX_RANK => TensorError::Rank { rank },
            _ => TensorError::TooLarge {
                dtype,
                shape: shape.to_vec(),
            },
        }
    }

    /// Fails unless a tensor of this dtype and shape may have `bytes` bytes. Only strings leave a choice.
    pub fn check_size(dtype: DType, shape: &[usize], bytes: usize) -> Result<(), TensorError> {
        let need = Self::size_of(dtype, shape)?;
        match dtype {
            DType::Str if bytes > text::MOST_BYTES => Err(TensorError::TooMuchText { bytes }),
            // No strings have no text.
            DType::Str if bytes >= need && (need > 0 || bytes == 0) => Ok(()),
            _ if bytes == need => Ok(()),
            _ => Err(TensorError::WrongLength {
                dtype,
                shape: shape.to_vec(),
                need,
                got: bytes,
            }),
        }
    }

    /// Makes a tensor over the first bytes of `block`, which must be at least as long as the shape needs. Strings take the
    /// whole block.
    pub fn from_block(dtype: DType, shape: &[usize], block: Block) -> Tensor {
        let need = byte_size(dtype, shape);
        assert!(
            need.is_some_and(|n| n <= block.len()),
            "block shorter than its shape"
        );
        Tensor(Shared::new(Inner {
            dtype,
            shape: Shape::from_slice(shape),
            buffer: Buffer::Own(block),
        }))
    }

    /// Makes a tensor over the first bytes that a peer lent, which must be at least as many as the shape needs. Strings
    /// take all of them.
    pub fn lent(dtype: DType, shape: &[usize], lent: SegmentLoan) -> Tensor {
        let need = byte_size(dtype, shape);
        assert!(
            need.is_some_and(|n| n <= lent.bytes().len()),
            "a loan shorter than its shape"
        );
        Tensor(Shared::new(Inner {
            dtype,
            shape: Shape::from_slice(shape),
            buffer: Buffer::Lent(lent),
        }))
    }

    /// A tensor of the same bytes, without a copy. `cover` accounts for them as long as the result, or a view of it,
    /// lives.
    pub fn covered(&self, cover: Cover) -> Tensor {
        let (of, before) = self.root();
        Tensor(Shared::new(Inner {
            dtype: self.0.dtype,
            shape: self.0.shape.clone(),
            buffer: Buffer::Covered(of.clone(), before, cover),
        }))
    }

    /// The value that accounts for the buffer: the one given to the last [`Tensor::covered`], or else the block's own.
    pub fn cover(&self) -> Option<&dyn Any> {
        let of = match &self.0.buffer {
            Buffer::View(of, _) => of,
            _ => &self.0,
        };
        match &of.buffer {
            Buffer::Own(block) => block.cover(),
            Buffer::Covered(_, _, cover) => Some(&**cover),
            Buffer::Inline(_) | Buffer::Lent(_) | Buffer::View(..) => None,
        }
    }

    /// The tensor that owns the block or the loan, and the offset of this tensor's bytes there.
    #[inline]
    fn root(&self) -> (&Shared<Inner>, usize) {
        match &self.0.buffer {
            Buffer::Own(_) | Buffer::Inline(_) | Buffer::Lent(_) => (&self.0, 0),
            Buffer::Covered(of, offset, _) => (of, *offset),
            Buffer::View(of, offset) => match &of.buffer {
                Buffer::Covered(root, before, _) => (root, before + offset),
                _ => (of, *offset),
            },
        }
    }

    /// Makes a tensor of a copy of row-major little-endian bytes. Fails where they do not fill the shape, or a bool is
    /// neither 0 nor 1, or bits after the last packed element are not zero, or they are no strings.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Tensor, TensorError> {
        Self::check_size(dtype, shape, bytes.len())?;
        let mut t = match Self::inline(dtype, shape, bytes.len()) {
            Some(t) => t,
            None => Self::from_block(dtype, shape, Block::zeroed(bytes.len())?),
        };
        if let Some(own) = t.bytes_mut() {
            own.copy_from_slice(bytes);
        }
        t.check_elements()?;
        Ok(t)
    }

    /// Fails where the bytes are no elements of the dtype: a bool that is neither 0 nor 1, bits after the last element of
    /// a packed tensor that are not zero, or a table that does not divide a text of UTF-8 into strings.
    #[inline(always)]
    pub fn check_elements(&self) -> Result<(), TensorError> {
        match self.dtype() {
            // Any bytes are numbers, as the ops that a step launches one after the other have them.
            DType::F32 | DType::F16 | DType::I64 | DType::I32 | DType::U8 => Ok(()),
            _ => self.check_all_elements(),
        }
    }

    fn check_all_elements(&self) -> Result<(), TensorError> {
        match self.dtype() {
            DType::Bool if self.bytes().iter().any(|b| *b > 1) => Err(TensorError::NotBool),
            dtype if dtype.is_packed() => {
                let padding = packed::padding(dtype.bits(), self.elements());
                match self.bytes().last() {
                    Some(last) if last & padding != 0 => Err(TensorError::Padding),
                    _ => Ok(()),
                }
            }
            DType::Str => self.strings().map(drop),
            _ => Ok(()),
        }
    }

    /// Makes a tensor of a copy of `data`, which is row-major.
    pub fn from_slice<T: Element>(shape: &[usize], data: &[T]) -> Result<Tensor, TensorError> {
        Self::from_bytes(T::DTYPE, shape, bytemuck::cast_slice(data))
    }

    /// Makes a bool tensor of a copy of `data`, which is row-major.
    pub fn from_bools(shape: &[usize], data: &[bool]) -> Result<Tensor, TensorError> {
        let bytes: Vec<u8> = data.iter().map(|b| u8::from(*b)).collect();
        Self::from_bytes(DType::Bool, shape, &bytes)
    }

    /// Makes a scalar.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Self::from_slice(&[], &[value]).expect("a scalar fits")
    }

    /// The element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The dimensions, outermost first.
    #[inline]
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// Number of elements.
    #[inline]
    pub fn elements(&self) -> usize {
        self.0.shape.iter().product()
    }

    /// Number of bytes.
    #[inline]
    pub fn byte_len(&self) -> usize {
        // The size of every tensor was checked when it was made.
        match self.0.dtype {
            plain if plain as u8 <= DType::Bool as u8 => self.elements() * plain.width(),
            _ => self.uneven_len(),
        }
    }

    /// Number of bytes of strings, or of elements that share bytes.
    #[inline(never)]
    fn uneven_len(&self) -> usize {
        match (self.0.dtype, self.elements()) {
            // Strings fill their buffer, unless there are none, which need no buffer.
            (DType::Str, 1..) => {
                let (root, from) = self.root();
                root.buffer.bytes().len().saturating_sub(from)
            }
            (dtype, elements) => dtype.least_bytes_for(elements).unwrap_or(0),
        }
    }

    /// The row-major bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let (root, from) = self.root();
        &root.buffer.bytes()[from..][..self.byte_len()]
    }

    /// The bytes for writing; `None` where another tensor or a peer shares the buffer.
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let len = self.byte_len();
        let bytes = match &mut Shared::get_mut(&mut self.0)?.buffer {
            Buffer::Own(block) => block.bytes_mut(),
            Buffer::Inline(words) => bytemuck::bytes_of_mut(words),
            Buffer::View(of, offset) | Buffer::Covered(of, offset, _) => {
                match &mut Shared::get_mut(of)?.buffer {
                    Buffer::Own(block) => block.bytes_mut().get_mut(*offset..)?,
                    Buffer::Inline(words) => bytemuck::bytes_of_mut(words).get_mut(*offset..)?,
                    Buffer::Lent(_) | Buffer::View(..) | Buffer::Covered(..) => return None,
                }
            }
            Buffer::Lent(_) => return None,
        };
        bytes.get_mut(..len)
    }

    /// The same tensor with another shape, which begins with its elements and goes on with unspecified ones in the rest of its
    /// block.
    ///
    /// # Errors
    /// The tensor itself, where its buffer is shared, or its block has no room for the shape.
    pub fn grown(mut self, shape: &[usize]) -> Result<Tensor, Tensor> {
        let need = Self::size_of(self.dtype(), shape).ok();
        match Shared::get_mut(&mut self.0) {
            Some(Inner {
                dtype,
                shape: own,
                buffer: Buffer::Own(block),
            }) if *dtype != DType::Str && need.is_some_and(|need| need <= block.len()) => {
                *own = Shape::from_slice(shape);
                Ok(self)
            }
            _ => Err(self),
        }
    }

    /// Whether no other tensor shares the buffer, nor any peer.
    #[inline]
    pub fn is_unique(&self) -> bool {
        Shared::strong_count(&self.0) == 1
            && match &self.0.buffer {
                Buffer::Own(_) | Buffer::Inline(_) => true,
                Buffer::Lent(_) => false,
                Buffer::View(of, _) | Buffer::Covered(of, ..) => {
                    Shared::strong_count(of) == 1
                        && matches!(of.buffer, Buffer::Own(_) | Buffer::Inline(_))
                }
            }
    }

    /// Whether the memory has to be given back to its owner: it is cut from a region, or lent by a peer.
    #[inline]
    pub fn is_borrowed(&self) -> bool {
        match &self.root().0.buffer {
            Buffer::Own(block) => block.is_of_region(),
            Buffer::Inline(_) => false,
            Buffer::Lent(_) | Buffer::View(..) | Buffer::Covered(..) => true,
        }
    }

    /// The segment that the bytes lie in and their offset there, if peers on this host can read them.
    pub fn segment(&self) -> Option<(&Arc<Segment>, u64)> {
        let (root, before) = self.root();
        match &root.buffer {
            Buffer::Own(block) => {
                let (segment, at) = block.segment()?;
                Some((segment, at + before as u64))
            }
            Buffer::Inline(_) | Buffer::Lent(_) | Buffer::View(..) | Buffer::Covered(..) => None,
        }
    }

    /// The elements. Fails unless `T` is the dtype; a bool tensor is read as `u8`.
    #[inline]
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        self.check_dtype(T::DTYPE)?;
        Ok(bytemuck::cast_slice(self.bytes()))
    }

    /// The elements for writing; `None` unless `T` is the dtype and the buffer is unshared.
    #[inline]
    pub fn as_mut_slice<T: Element>(&mut self) -> Option<&mut [T]> {
        self.check_dtype(T::DTYPE).ok()?;
        Some(bytemuck::cast_slice_mut(self.bytes_mut()?))
    }

    #[inline]
    fn check_dtype(&self, want: DType) -> Result<(), TensorError> {
        let have = self.0.dtype;
        if have == want || (have == DType::Bool && want == DType::U8) {
            return Ok(());
        }
        Err(TensorError::WrongDType { have, want })
    }

    /// A view of the bytes from `offset` on, under another shape.
    fn view(&self, shape: Shape, offset: usize) -> Tensor {
        let (of, before) = match &self.0.buffer {
            Buffer::View(of, before) => (of, *before),
            _ => (&self.0, 0),
        };
        Tensor(Shared::new(Inner {
            dtype: self.0.dtype,
            shape,
            buffer: Buffer::View(of.clone(), before + offset),
        }))
    }

    /// The same bytes under another shape, without a copy; `None` where that has another number of elements.
    pub fn reshape(&self, shape: &[usize]) -> Option<Tensor> {
        (element_count(shape)? == self.elements()).then(|| self.view(shape.into(), 0))
    }

    /// As [`Tensor::reshape`], but consumes the tensor, and makes no view where it has no clone.
    pub fn into_shape(mut self, shape: &[usize]) -> Option<Tensor> {
        if element_count(shape)? != self.elements() {
            return None;
        }
        match Shared::get_mut(&mut self.0) {
            Some(inner) => {
                inner.shape = Shape::from_slice(shape);
                Some(self)
            }
            None => Some(self.view(shape.into(), 0)),
        }
    }

    /// Rows `start..end` of the outermost axis, without a copy unless the dtype is packed or they are strings; `None`
    /// where there are no such rows.
    pub fn outer_range(&self, start: usize, end: usize) -> Option<Tensor> {
        let rows = *self.0.shape.first()?;
        if start > end || end > rows {
            return None;
        }
        let mut shape = self.0.shape.clone();
        shape[0] = end - start;
        if self.0.dtype.is_packed() {
            return self.packed_rows(start, shape);
        }
        if self.0.dtype == DType::Str {
            return self.string_rows(start, &shape);
        }
        let row = self.byte_len().checked_div(rows).unwrap_or(0);
        Some(self.view(shape, start * row))
    }

    /// The rows from `start` on that `shape` has room for, of a packed tensor, where rows may begin within a byte.
    fn packed_rows(&self, start: usize, shape: Shape) -> Option<Tensor> {
        let mut rows = Tensor::zeros(self.0.dtype, &shape).ok()?;
        let row = element_count(&shape[1..])?;
        let mut elements = vec![0; rows.elements()];
        packed::unpack(
            self.0.dtype.bits(),
            self.bytes(),
            start * row,
            &mut elements,
        );
        packed::pack(self.0.dtype.bits(), &elements, rows.bytes_mut()?);
        Some(rows)
    }

    /// The elements of an integer or bool tensor as i64; `None` for floats and narrow dtypes, and where an
    /// element does not fit.
    pub fn to_i64s(&self) -> Option<Vec<i64>> {
        fn conv<T: Element + TryInto<i64>>(t: &Tensor) -> Option<Vec<i64>> {
            t.as_slice::<T>()
                .ok()?
                .iter()
                .map(|v| (*v).try_into().ok())
                .collect()
        }
        match self.0.dtype {
            DType::I8 => conv::<i8>(self),
            DType::I16 => conv::<i16>(self),
            DType::I32 => conv::<i32>(self),
            DType::I64 => conv::<i64>(self),
            DType::U8 | DType::Bool => conv::<u8>(self),
            DType::U16 => conv::<u16>(self),
            DType::U32 => conv::<u32>(self),
            DType::U64 => conv::<u64>(self),
            // Elements of narrow dtypes are not followed.
            _ => None,
        }
    }

    /// BLAKE3 of the raw little-endian bytes, in hexadecimal.
    pub fn digest(&self) -> String {
        blake3::hash(self.bytes()).to_hex().to_string()
    }

    /// Dtype and shape as text, such as `f32[2, 3]`.
    pub fn signature(&self) -> String {
        format!("{}{:?}", self.0.dtype, self.0.shape.as_slice())
    }
}

/// Tensors are equal if their dtypes, shapes and bits are.
impl PartialEq for Tensor {
    fn eq(&self, other: &Tensor) -> bool {
        self.dtype() == other.dtype()
            && self.shape() == other.shape()
            && self.bytes() == other.bytes()
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

/// Small tensors inside graphs are serialised in this way; large ones travel as raw bytes.
impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        Wire {
            dtype: self.dtype(),
            shape: self.shape().iter().map(|d| *d as u64).collect(),
            bytes: self.bytes().into(),
        }
        .serialize(s)
    }
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Tensor, D::Error> {
        #[derive(Deserialize)]
        struct WireTensor {
            dtype: DType,
            shape: Vec<u64>,
            bytes: Vec<u8>,
        }
        use serde::de::Error;
        let w = WireTensor::deserialize(d)?;
        let shape: Result<Vec<usize>, _> = w.shape.iter().map(|d| usize::try_from(*d)).collect();
        let shape = shape.map_err(|_| D::Error::custom("dimension too large"))?;
        Tensor::from_bytes(w.dtype, &shape, &w.bytes).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests;
