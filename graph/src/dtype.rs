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
}

impl DType {
    /// Every dtype, in wire order.
    pub const ALL: [DType; 13] = [
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
    ];

    /// Bytes per element.
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 | DType::U64 => 8,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 2,
            DType::I8 | DType::U8 | DType::Bool => 1,
        }
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
        }
    }

    /// The dtype with wire code `code`.
    pub fn from_code(code: u8) -> Option<DType> {
        DType::ALL.get(code as usize).copied()
    }

    /// Whether the dtype is f16, bf16, f32 or f64.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
    }

    /// Whether the dtype is a signed or unsigned integer; bool is none.
    pub const fn is_int(self) -> bool {
        !self.is_float() && !matches!(self, DType::Bool)
    }

    /// Whether the dtype is i8, i16, i32 or i64.
    pub const fn is_signed_int(self) -> bool {
        matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// Whether the dtype is anything except bool.
    pub const fn is_number(self) -> bool {
        !matches!(self, DType::Bool)
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
/// The rule is symmetric. It is associative among floats, and among integers with bool, but not where both meet: (i8,
/// u16) with f32 is f64, i8 with (u16, f32) is f32.
pub fn promote(a: DType, b: DType) -> DType {
    let wider = |a: DType, b: DType| if a.size() < b.size() { b } else { a };
    match (a, b) {
        _ if a == b => a,
        (DType::Bool, x) | (x, DType::Bool) => x,
        (DType::F16, DType::BF16) | (DType::BF16, DType::F16) => DType::F32,
        _ if a.is_float() && b.is_float() => wider(a, b),
        (float, int) | (int, float) if float.is_float() => match int.size() {
            1 => float,
            2 => wider(float, DType::F32),
            _ => DType::F64,
        },
        _ if a.is_signed_int() == b.is_signed_int() => wider(a, b),
        _ => {
            let (signed, unsigned) = if a.is_signed_int() { (a, b) } else { (b, a) };
            let least = match unsigned.size() {
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
        assert_eq!(DType::from_code(13), None);
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
        for a in DType::ALL {
            for b in DType::ALL {
                let want = table.next().unwrap();
                assert_eq!(promote(a, b).name(), want, "{a} with {b}");
            }
        }
        assert_eq!(table.next(), None);
    }

    #[test]
    fn promotion_is_associative_within_floats_and_within_integers() {
        for float in [true, false] {
            let kin = || DType::ALL.into_iter().filter(|d| d.is_float() == float);
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
