//! Macros that go from a dtype to the Rust type that code is generic over.

/// `by_dtype!(class dtype, T => expr)` is `Some(expr)` with `T` the element type of `dtype`, or `None` where the dtype
/// is not of the class. Classes: `float`, `integer`, `number` (both), `any` (`number` and bool as `u8`), or a list of
/// dtypes in brackets.
macro_rules! by_dtype {
    (float $d:expr, $t:ident => $e:expr) => {
        $crate::cpu::dispatch::by_dtype!([F32 f32, F64 f64, F16 half::f16, BF16 half::bf16] $d, $t => $e)
    };
    (integer $d:expr, $t:ident => $e:expr) => {
        $crate::cpu::dispatch::by_dtype!(
            [I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64] $d, $t => $e
        )
    };
    (number $d:expr, $t:ident => $e:expr) => {
        $crate::cpu::dispatch::by_dtype!(
            [F32 f32, F64 f64, F16 half::f16, BF16 half::bf16,
             I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64] $d, $t => $e
        )
    };
    (any $d:expr, $t:ident => $e:expr) => {
        $crate::cpu::dispatch::by_dtype!(
            [F32 f32, F64 f64, F16 half::f16, BF16 half::bf16,
             I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64, Bool u8] $d, $t => $e
        )
    };
    ([$($name:ident $ty:ty),*] $d:expr, $t:ident => $e:expr) => {
        match $d {
            $(convoke_graph::DType::$name => {
                type $t = $ty;
                Some($e)
            })*
            #[allow(unreachable_patterns)]
            _ => None,
        }
    };
}
pub(crate) use by_dtype;

/// `by_size!(dtype, T => expr)` is `expr` with `T` the unsigned integer of the element's size, for code that only moves
/// elements.
macro_rules! by_size {
    ($d:expr, $t:ident => $e:expr) => {
        match $d.width() {
            1 => {
                type $t = u8;
                $e
            }
            2 => {
                type $t = u16;
                $e
            }
            4 => {
                type $t = u32;
                $e
            }
            _ => {
                type $t = u64;
                $e
            }
        }
    };
}
pub(crate) use by_size;
