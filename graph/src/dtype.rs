//! Element types.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum DType {
    F32 = 0,
    F64 = 1,
    F16 = 2,
    BF16 = 3,
    I8 = 4,
    I16 = 5,
    I32 = 6,
    I64 = 7,
    U8 = 8,
    U16 = 9,
    U32 = 10,
    U64 = 11,
    /// One byte per element, 0 or 1.
    Bool = 12,
    /// Two elements per byte, the first in the low bits, as ONNX packs them.
    I4 = 13,
    /// Two unsigned elements per byte, the first in the low bits.
    U4 = 14,
    /// Four elements per byte, the first in the lowest bits.
    I2 = 15,
    /// Four unsigned elements per byte, the first in the lowest bits.
    U2 = 16,
    /// Two elements per byte: a sign, two bits of exponent, one of mantissa; neither infinities nor NaN.
    F4E2M1 = 17,
    /// Four bits of exponent, three of mantissa; NaN, but no infinities.
    F8E4M3FN = 18,
    /// As [`DType::F8E4M3FN`] with another bias; the bits of negative zero are NaN.
    F8E4M3FNUZ = 19,
    /// Five bits of exponent, two of mantissa; infinities and NaN, as IEEE has them.
    F8E5M2 = 20,
    /// As [`DType::F8E5M2`] with another bias and without infinities; the bits of negative zero are NaN.
    F8E5M2FNUZ = 21,
    /// A power of two from 2^-127 to 2^127, or NaN.
    F8E8M0 = 22,
    /// Strings of UTF-8, each of a length of its own; see [`crate::text`].
    Str = 23,
}

impl DType {
    /// Every dtype, in wire order.
    pub const ALL: [DType; 24] = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::Bool,
        DType::I4,
        DType::U4,
        DType::I2,
        DType::U2,
        DType::F4E2M1,
        DType::F8E4M3FN,
        DType::F8E4M3FNUZ,
        DType::F8E5M2,
        DType::F8E5M2FNUZ,
        DType::F8E8M0,
        DType::Str,
    ];

    /// Bits per element; of a string, those of its entry in the table of a tensor.
    #[inline]
    pub const fn bits(self) -> usize {
        match self {
            DType::F64 | DType::I64 | DType::U64 | DType::Str => 64,
            DType::F32 | DType::I32 | DType::U32 => 32,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 16,
            DType::I8 | DType::U8 | DType::Bool => 8,
            DType::I4 | DType::U4 | DType::F4E2M1 => 4,
            DType::I2 | DType::U2 => 2,
            DType::F8E4M3FN
            | DType::F8E4M3FNUZ
            | DType::F8E5M2
            | DType::F8E5M2FNUZ
            | DType::F8E8M0 => 8,
        }
    }

    /// Bytes of an element by itself: those that it takes in a tensor, or one where several share a byte.
    #[inline]
    pub const fn width(self) -> usize {
        self.bits().div_ceil(8)
    }

    /// Bytes of a tensor of this many elements; `None` on overflow. For strings, whose lengths only data decides, this
    /// is an estimate that plans use; the allocation has the true size.
    #[inline]
    pub const fn bytes_for(self, elements: usize) -> Option<usize> {
        match self {
            DType::Str => elements.checked_mul(crate::tensor::text::layout::ESTIMATE),
            _ => self.least_bytes_for(elements),
        }
    }

    /// Bytes of a tensor of this many elements, of empty ones where they are strings; `None` on overflow.
    #[inline]
    pub const fn least_bytes_for(self, elements: usize) -> Option<usize> {
        match self.bits() {
            4 => Some(elements.div_ceil(2)),
            2 => Some(elements.div_ceil(4)),
            bits => elements.checked_mul(bits / 8),
        }
    }

    /// Whether several elements share a byte.
    #[inline]
    pub const fn is_packed(self) -> bool {
        self.bits() < 8
    }

    /// Whether the dtype is one of those of less than 16 bits that only few ops take: its elements are stored, moved and
    /// converted, but not computed with.
    pub const fn is_narrow(self) -> bool {
        self as u8 > DType::Bool as u8 && !matches!(self, DType::Str)
    }

    /// The short name used in messages: `f32`, `i64`, `bool`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::Bool => "bool",
            DType::I4 => "i4",
            DType::U4 => "u4",
            DType::I2 => "i2",
            DType::U2 => "u2",
            DType::F4E2M1 => "f4e2m1",
            DType::F8E4M3FN => "f8e4m3fn",
            DType::F8E4M3FNUZ => "f8e4m3fnuz",
            DType::F8E5M2 => "f8e5m2",
            DType::F8E5M2FNUZ => "f8e5m2fnuz",
            DType::F8E8M0 => "f8e8m0",
            DType::Str => "string",
        }
    }

    /// The dtype with wire code `code`.
    pub fn from_code(code: u8) -> Option<DType> {
        DType::ALL.get(code as usize).copied()
    }

    /// Whether the dtype is a float of any width.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DType::F32
                | DType::F64
                | DType::F16
                | DType::BF16
                | DType::F4E2M1
                | DType::F8E4M3FN
                | DType::F8E4M3FNUZ
                | DType::F8E5M2
                | DType::F8E5M2FNUZ
                | DType::F8E8M0
        )
    }

    /// Whether the dtype is a signed or unsigned integer of any width; bool is none.
    pub const fn is_int(self) -> bool {
        !self.is_float() && self.is_number()
    }

    /// Whether the dtype is a signed integer.
    pub const fn is_signed_int(self) -> bool {
        matches!(
            self,
            DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::I4 | DType::I2
        )
    }

    /// The dtype that elements of a narrow dtype are computed in: each of its values is one of the result's.
    pub const fn widened(self) -> DType {
        match self {
            DType::I4 | DType::I2 => DType::I8,
            DType::U4 | DType::U2 => DType::U8,
            DType::F4E2M1
            | DType::F8E4M3FN
            | DType::F8E4M3FNUZ
            | DType::F8E5M2
            | DType::F8E5M2FNUZ
            | DType::F8E8M0 => DType::F32,
            plain => plain,
        }
    }

    /// Whether the dtype is anything except bool and strings.
    pub const fn is_number(self) -> bool {
        !matches!(self, DType::Bool | DType::Str)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The dtype that elements of `a` and of `b` are converted to before an op computes with both: numpy's rule for arrays
/// (`np.promote_types` of numpy 2).
///
/// - bool with `x` is `x`.
/// - Integers give the narrowest integer that holds both; u64 with a signed one has none, and gives f64.
/// - Floats give the wider one; f16 with bf16, of which neither can hold the other, gives f32.
/// - A float `f` with an integer gives `f` for 8 bits, at least f32 for 16, and f64 for 32 and 64.
///
/// numpy has no bf16. The package `ml_dtypes`, which adds it, gives bf16 for bf16 with bool and with integers of 8
/// bits, as here, and refuses it with f16 and with wider integers; with the latter bf16 gives here what f16 gives.
///
/// A narrow dtype with another dtype gives what its [`DType::widened`] gives with that. Strings with anything are strings.
///
/// The rule is symmetric. It is associative among floats, and among integers with bool, but not where both meet: (i8,
/// u16) with f32 is f64, i8 with (u16, f32) is f32.
pub fn promote(a: DType, b: DType) -> DType {
    let wider = |a: DType, b: DType| if a.width() < b.width() { b } else { a };
    match (a, b) {
        _ if a == b => a,
        (DType::Str, _) | (_, DType::Str) => DType::Str,
        (DType::Bool, x) | (x, DType::Bool) => x,
        _ if a.is_narrow() || b.is_narrow() => promote(a.widened(), b.widened()),
        (DType::F16, DType::BF16) | (DType::BF16, DType::F16) => DType::F32,
        _ if a.is_float() && b.is_float() => wider(a, b),
        (float, int) | (int, float) if float.is_float() => match int.width() {
            1 => float,
            2 => wider(float, DType::F32),
            _ => DType::F64,
        },
        _ if a.is_signed_int() == b.is_signed_int() => wider(a, b),
        _ => {
            let (signed, unsigned) = if a.is_signed_int() { (a, b) } else { (b, a) };
            let least = match unsigned.width() {
                1 => DType::I16,
                2 => DType::I32,
                4 => DType::I64,
                _ => DType::F64,
            };
            wider(least, signed)
        }
    }
}

/// A Rust type that is the element type of a [`DType`]. `bool` tensors are `u8` in memory and have no
/// `Element` of their own, since not every byte is a valid `bool`.
pub trait Element: bytemuck::Pod + PartialEq + std::fmt::Debug + Send + Sync {
    /// The matching dtype.
    const DTYPE: DType;
}

macro_rules! element {
    ($($t:ty => $d:ident),* $(,)?) => { $(impl Element for $t { const DTYPE: DType = DType::$d; })* };
}
element! {
    f32 => F32, f64 => F64, f16 => F16, bf16 => BF16, i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        for (i, d) in DType::ALL.into_iter().enumerate() {
            assert_eq!(DType::from_code(i as u8), Some(d));
            assert_eq!(d as u8 as usize, i);
        }
        assert_eq!(DType::from_code(24), None);
    }

    fn plain() -> impl Iterator<Item = DType> {
        let stored = |d: &DType| d.is_narrow() || *d == DType::Str;
        DType::ALL.into_iter().filter(move |d| !stored(d))
    }

    #[test]
    fn packed_elements_share_bytes() {
        let check = |dtype: DType, elements: usize, want: Option<usize>| {
            assert_eq!(dtype.bytes_for(elements), want, "{elements} of {dtype}");
        };
        for (elements, halves, quarters) in [(0, 0, 0), (1, 1, 1), (2, 1, 1), (3, 2, 1), (5, 3, 2)]
        {
            check(DType::I4, elements, Some(halves));
            check(DType::F4E2M1, elements, Some(halves));
            check(DType::U2, elements, Some(quarters));
        }
        check(DType::F8E8M0, 5, Some(5));
        check(DType::F64, 5, Some(40));
        check(DType::U4, usize::MAX, Some(usize::MAX / 2 + 1));
        check(DType::F16, usize::MAX, None);
    }

    #[test]
    fn narrow_dtypes_are_promoted_as_what_they_widen_to() {
        let check = |a, b, want| {
            assert_eq!(promote(a, b), want, "{a} with {b}");
            assert_eq!(promote(b, a), want, "{b} with {a}");
        };
        check(DType::I4, DType::I4, DType::I4);
        check(DType::I4, DType::Bool, DType::I4);
        check(DType::I4, DType::I2, DType::I8);
        check(DType::U4, DType::I2, DType::I16);
        check(DType::F8E5M2, DType::F8E4M3FN, DType::F32);
        check(DType::F8E5M2, DType::F64, DType::F64);
        check(DType::F4E2M1, DType::U2, DType::F32);
    }

    /// `np.promote_types` by numpy 2.4, a row and a column for each dtype in wire order. numpy has no bf16; its row and
    /// column follow the rule of [`promote`].
    const PROMOTED: &str = "
        f32 f64 f32 f32  f32  f32 f64 f64 f32  f32 f64 f64 f32
        f64 f64 f64 f64  f64  f64 f64 f64 f64  f64 f64 f64 f64
        f32 f64 f16 f32  f16  f32 f64 f64 f16  f32 f64 f64 f16
        f32 f64 f32 bf16 bf16 f32 f64 f64 bf16 f32 f64 f64 bf16
        f32 f64 f16 bf16 i8   i16 i32 i64 i16  i32 i64 f64 i8
        f32 f64 f32 f32  i16  i16 i32 i64 i16  i32 i64 f64 i16
        f64 f64 f64 f64  i32  i32 i32 i64 i32  i32 i64 f64 i32
        f64 f64 f64 f64  i64  i64 i64 i64 i64  i64 i64 f64 i64
        f32 f64 f16 bf16 i16  i16 i32 i64 u8   u16 u32 u64 u8
        f32 f64 f32 f32  i32  i32 i32 i64 u16  u16 u32 u64 u16
        f64 f64 f64 f64  i64  i64 i64 i64 u32  u32 u32 u64 u32
        f64 f64 f64 f64  f64  f64 f64 f64 u64  u64 u64 u64 u64
        f32 f64 f16 bf16 i8   i16 i32 i64 u8   u16 u32 u64 bool";

    #[test]
    fn promotion_follows_numpy() {
        let mut table = PROMOTED.split_whitespace();
        for a in plain() {
            for b in plain() {
                let want = table.next().unwrap();
                assert_eq!(promote(a, b).name(), want, "{a} with {b}");
            }
        }
        assert_eq!(table.next(), None);
    }

    #[test]
    fn promotion_is_associative_within_floats_and_within_integers() {
        for float in [true, false] {
            let kin = || plain().filter(|d| d.is_float() == float);
            for a in kin() {
                for b in kin() {
                    for c in kin() {
                        let (left, right) = (promote(promote(a, b), c), promote(a, promote(b, c)));
                        assert_eq!(left, right, "{a}, {b}, {c}");
                        assert_eq!(promote(a, b), promote(b, a));
                    }
                }
            }
        }
        let (i8, u16, f32) = (DType::I8, DType::U16, DType::F32);
        assert_eq!(promote(promote(i8, u16), f32), DType::F64);
        assert_eq!(promote(i8, promote(u16, f32)), DType::F32);
    }
}
