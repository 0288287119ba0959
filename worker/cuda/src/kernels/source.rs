//! The sources of kernels: the text that all begin with, and the names of types and functions in it.

use std::ffi::CStr;

use convoke_graph::{DType, Tensor};

use super::args::Arguments;

/// The names of the functions of a source, by their numbers. Most sources have one.
pub const FUNCTIONS: [&CStr; 5] = [
    c"convoke_0",
    c"convoke_1",
    c"convoke_2",
    c"convoke_3",
    c"convoke_4",
];

/// The text that every source begins with.
const PRELUDE: &str = include_str!("prelude.cu");

/// The name in a source of a dtype that kernels can move; `None` for those that share bytes or have lengths of their own.
pub(super) fn type_name(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::U8 | DType::Bool => "u8",
        DType::U16 => "u16",
        DType::U32 => "u32",
        DType::U64 => "u64",
        _ => return None,
    })
}

/// The name of the type of this size that copies move.
pub(super) fn moved_as(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ | DType::F8E8M0 => {
            "u8"
        }
        other => match Tensor::size_of(other, &[1]).ok()? {
            _ if type_name(other).is_none() => return None,
            1 => "u8",
            2 => "u16",
            4 => "u32",
            _ => "u64",
        },
    })
}

/// Whether elements are computed in f32.
pub(super) fn in_f32(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// A source: the prelude, definitions of names by their texts, and a family's text.
pub(super) fn source(definitions: &[(&str, &str)], family: &str) -> String {
    let mut text = format!("#define ARGUMENTS {}\n{PRELUDE}\n", size_of::<Arguments>());
    for (name, value) in definitions {
        text.push_str(&format!("#define {name} {value}\n"));
    }
    text.push_str(family);
    text
}
