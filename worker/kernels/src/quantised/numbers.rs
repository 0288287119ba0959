//! Elements of any format as f32 numbers, and back.

use convoke_functions::narrow::{Narrow, NarrowRounding};
use convoke_functions::packed;

use crate::cast::CastTo;
use crate::element::{bf16, f16};
use crate::multiversion::multiversion;

/// Elements that are converted at a time; whole bytes of any packed type.
pub(super) const BLOCK: usize = 256;

/// The format of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    F32,
    F16,
    BF16,
    I8,
    U8,
    I16,
    U16,
    I32,
    Narrow(Narrow),
}

impl Format {
    /// Elements in a byte, and bytes of an element that has whole bytes.
    pub(super) fn density(self) -> (usize, usize) {
        match self {
            Format::F32 | Format::I32 => (1, 4),
            Format::F16 | Format::BF16 | Format::I16 | Format::U16 => (1, 2),
            Format::I8 | Format::U8 => (1, 1),
            Format::Narrow(narrow) => (packed::per_byte(narrow.bits()), 1),
        }
    }

    /// Bytes of this many elements.
    pub(super) fn bytes(self, elements: usize) -> usize {
        let (per, width) = self.density();
        elements.div_ceil(per) * width
    }
}

/// Elements as the bytes that a tensor has.
pub struct Numbers<'a> {
    format: Format,
    bytes: &'a [u8],
    /// The number of each code of a narrow format.
    decoded: [f32; 256],
}

impl<'a> Numbers<'a> {
    /// The elements that lie in `bytes`.
    pub fn new(format: Format, bytes: &'a [u8]) -> Numbers<'a> {
        let mut decoded = [0.0; 256];
        if let Format::Narrow(narrow) = format {
            for (code, number) in (0..=u8::MAX).zip(&mut decoded) {
                *number = match narrow {
                    Narrow::Int(int) => int.decode(code).into(),
                    Narrow::Float(float) => float.decode(code),
                };
            }
        }
        Numbers {
            format,
            bytes,
            decoded,
        }
    }

    /// Whether there are at least `elements` elements.
    pub(super) fn has(&self, elements: usize) -> bool {
        self.bytes.len() >= self.format.bytes(elements)
    }

    /// Reads the elements from number `first` on.
    pub(super) fn read(&self, first: usize, to: &mut [f32]) {
        let (_, width) = self.format.density();
        match self.format {
            Format::Narrow(narrow) => self.decode(narrow.bits(), first, to),
            format => read_plain(
                format,
                &self.bytes[first * width..(first + to.len()) * width],
                to,
            ),
        }
    }

    fn decode(&self, bits: usize, first: usize, to: &mut [f32]) {
        let per = packed::per_byte(bits);
        if per == 1 {
            let codes = &self.bytes[first..first + to.len()];
            for (y, code) in to.iter_mut().zip(codes) {
                *y = self.decoded[usize::from(*code)];
            }
            return;
        }
        let mask = (1u8 << bits) - 1;
        let mut at = first;
        let mut rest = to;
        // The elements before the first whole byte, then a byte at a time.
        while !rest.is_empty() && !at.is_multiple_of(per) {
            let (y, others) = rest.split_at_mut(1);
            y[0] = self.decoded[usize::from(packed::element(bits, self.bytes, at))];
            (rest, at) = (others, at + 1);
        }
        for (part, byte) in rest.chunks_mut(per).zip(&self.bytes[at / per..]) {
            let mut byte = *byte;
            for y in part {
                *y = self.decoded[usize::from(byte & mask)];
                byte >>= bits;
            }
        }
    }
}

/// An element that is a plain Rust number.
trait Plain<const WIDTH: usize>: CastTo<f32> {
    fn of(bytes: [u8; WIDTH]) -> Self;
}

macro_rules! plain {
    ($($t:ty = $width:literal),*) => {$(
        impl Plain<$width> for $t {
            #[inline(always)]
            fn of(bytes: [u8; $width]) -> Self {
                <$t>::from_ne_bytes(bytes)
            }
        }
    )*};
}
plain!(
    f32 = 4,
    f16 = 2,
    bf16 = 2,
    i8 = 1,
    u8 = 1,
    i16 = 2,
    u16 = 2,
    i32 = 4
);

#[inline(always)]
fn read_as<T: Plain<W>, const W: usize>(bytes: &[u8], to: &mut [f32]) {
    let (bytes, _) = bytes.as_chunks::<W>();
    let n = to.len().min(bytes.len());
    let (bytes, to) = (&bytes[..n], &mut to[..n]);
    for i in 0..n {
        to[i] = T::of(bytes[i]).cast();
    }
}

multiversion! {
    fn read_plain<>(format: Format, bytes: &[u8], to: &mut [f32]) {
        match format {
            Format::F32 => read_as::<f32, 4>(bytes, to),
            Format::F16 => read_as::<f16, 2>(bytes, to),
            Format::BF16 => read_as::<bf16, 2>(bytes, to),
            Format::I8 => read_as::<i8, 1>(bytes, to),
            Format::U8 => read_as::<u8, 1>(bytes, to),
            Format::I16 => read_as::<i16, 2>(bytes, to),
            Format::U16 => read_as::<u16, 2>(bytes, to),
            Format::I32 => read_as::<i32, 4>(bytes, to),
            Format::Narrow(_) => {}
        }
    }
}

/// The low bits of a whole number of at most 22 bits: between 2^23 and 2^24, the fraction of an f32 counts ones. Loops of this
/// are compiled to vectors, which those of `as`, which saturates, are not.
#[inline(always)]
pub(super) fn code_of(x: f32) -> u8 {
    (x + 12_582_912.0).to_bits() as u8
}

/// Writes numbers as elements of `format`. They fit it where it is an integer format; a float is rounded.
pub(super) fn write(format: Format, numbers: &[f32], how: NarrowRounding, to: &mut [u8]) {
    match format {
        Format::Narrow(narrow) => {
            let mut codes = [0; BLOCK];
            let n = numbers.len().min(BLOCK);
            for (code, x) in codes.iter_mut().zip(&numbers[..n]) {
                *code = match narrow {
                    Narrow::Int(_) => *x as i32 as u8,
                    Narrow::Float(float) => float.encode(*x, how),
                };
            }
            packed::pack(narrow.bits(), &codes[..n], to);
        }
        format => write_plain(format, numbers, to),
    }
}

macro_rules! write_as {
    ($t:ty, $width:literal, $numbers:expr, $to:expr) => {{
        let (to, _) = $to.as_chunks_mut::<$width>();
        let n = to.len().min($numbers.len());
        let (numbers, to) = (&$numbers[..n], &mut to[..n]);
        for i in 0..n {
            let y: $t = numbers[i].cast();
            to[i] = y.to_ne_bytes();
        }
    }};
}

multiversion! {
    fn write_plain<>(format: Format, numbers: &[f32], to: &mut [u8]) {
        match format {
            Format::F32 => write_as!(f32, 4, numbers, to),
            Format::F16 => write_as!(f16, 2, numbers, to),
            Format::BF16 => write_as!(bf16, 2, numbers, to),
            Format::I8 | Format::U8 => {
                let n = to.len().min(numbers.len());
                let (numbers, to) = (&numbers[..n], &mut to[..n]);
                for i in 0..n {
                    to[i] = code_of(numbers[i]);
                }
            }
            Format::I16 => write_as!(i16, 2, numbers, to),
            Format::U16 => write_as!(u16, 2, numbers, to),
            Format::I32 => write_as!(i32, 4, numbers, to),
            Format::Narrow(_) => {}
        }
    }
}
