//! Reading of a `TensorProto`: its dtype, its dimensions, and the location of its content.

mod content;
pub(in crate::onnx) mod sparse;

use convoke_graph::graph::INLINE_LIMIT;
use convoke_graph::{DType, Printable, Tensor};

use super::encoded::Elements;
use crate::error::ModelError;
use crate::onnx::proto::{TensorProto, tensor_proto::DataLocation, tensor_proto::DataType};
use crate::onnx::skeleton::Payload;

pub(in crate::onnx) use content::{Constant, Content, Scattered};

/// The dtype with ONNX's code `code`. The error names a dtype that is not supported.
pub(in crate::onnx) fn dtype(code: i32) -> Result<DType, String> {
    Ok(match DataType::try_from(code) {
        Ok(DataType::Float) => DType::F32,
        Ok(DataType::Double) => DType::F64,
        Ok(DataType::Float16) => DType::F16,
        Ok(DataType::Bfloat16) => DType::BF16,
        Ok(DataType::Int8) => DType::I8,
        Ok(DataType::Int16) => DType::I16,
        Ok(DataType::Int32) => DType::I32,
        Ok(DataType::Int64) => DType::I64,
        Ok(DataType::Uint8) => DType::U8,
        Ok(DataType::Uint16) => DType::U16,
        Ok(DataType::Uint32) => DType::U32,
        Ok(DataType::Uint64) => DType::U64,
        Ok(DataType::Bool) => DType::Bool,
        Ok(DataType::Int4) => DType::I4,
        Ok(DataType::Uint4) => DType::U4,
        Ok(DataType::Int2) => DType::I2,
        Ok(DataType::Uint2) => DType::U2,
        Ok(DataType::Float4e2m1) => DType::F4E2M1,
        Ok(DataType::Float8e4m3fn) => DType::F8E4M3FN,
        Ok(DataType::Float8e4m3fnuz) => DType::F8E4M3FNUZ,
        Ok(DataType::Float8e5m2) => DType::F8E5M2,
        Ok(DataType::Float8e5m2fnuz) => DType::F8E5M2FNUZ,
        Ok(DataType::Float8e8m0) => DType::F8E8M0,
        Ok(DataType::String) => DType::Str,
        Ok(DataType::Undefined) => return Err("has no element type".into()),
        Ok(other) => {
            return Err(format!(
                "element type {} is not supported",
                other.as_str_name()
            ));
        }
        Err(_) => return Err(format!("element type {code} is unknown")),
    })
}

/// Converts declared dimensions. Fails where one is negative.
pub(in crate::onnx) fn shape(dims: &[i64]) -> Result<Vec<usize>, String> {
    let one = |d: &i64| {
        usize::try_from(*d).map_err(|_| format!("dimension {d} is negative, in {dims:?}"))
    };
    dims.iter().map(one).collect()
}

/// Reads the constant `t`, which errors call `name`.
pub(in crate::onnx) fn constant(
    t: &TensorProto,
    name: &str,
    payloads: &[Payload],
) -> Result<Constant, ModelError> {
    let unsupported = |reason| ModelError::UnsupportedType {
        what: format!("tensor '{}'", Printable(name)),
        reason,
    };
    let dtype = dtype(t.data_type.unwrap_or(0)).map_err(unsupported)?;
    read(t, dtype, payloads).map_err(|reason| ModelError::Tensor {
        tensor: name.into(),
        reason,
    })
}

fn read(t: &TensorProto, dtype: DType, payloads: &[Payload]) -> Result<Constant, String> {
    let shape = shape(&t.dims)?;
    if t.segment.is_some() {
        return Err("is stored in segments, which is not supported".into());
    }
    if dtype == DType::Str {
        return strings(t, shape);
    }
    let bytes = Tensor::size_of(dtype, &shape).map_err(|e| e.to_string())?;
    let content = content(t, dtype, &shape, bytes, payloads)?;
    Ok(Constant {
        dtype,
        shape,
        bytes: bytes as u64,
        content,
    })
}

/// Reads strings, which ONNX stores in one way only.
fn strings(t: &TensorProto, shape: Vec<usize>) -> Result<Constant, String> {
    let external = t.data_location == Some(DataLocation::External as i32);
    if external || t.raw_data.is_some() || t.stored.is_some() || Elements::of(t).is_some() {
        return Err("has strings that are stored as another type".into());
    }
    let all = t.string_data.iter().map(|s| std::str::from_utf8(s));
    let all: Vec<&str> = all.collect::<Result<_, _>>().map_err(|_| "is not UTF-8")?;
    let t = Tensor::from_strings(&shape, &all).map_err(|e| e.to_string())?;
    Ok(Constant {
        dtype: DType::Str,
        shape,
        bytes: t.byte_len() as u64,
        content: Content::Inline(t),
    })
}

fn content(
    t: &TensorProto,
    dtype: DType,
    shape: &[usize],
    bytes: usize,
    payloads: &[Payload],
) -> Result<Content, String> {
    let wrong = |got: u64| format!("{dtype}{shape:?} takes {bytes} bytes, the file has {got}");
    if t.data_location == Some(DataLocation::External as i32) {
        return external(t, bytes as u64);
    }
    let payload = match t.stored {
        Some(i) => Some(payloads.get(i as usize).ok_or("refers to no content")?),
        None => None,
    };
    match payload {
        Some(Payload::Raw { offset, len }) if *len == bytes as u64 => {
            return Ok(Content::Model(*offset));
        }
        Some(Payload::Raw { len, .. }) => return Err(wrong(*len)),
        Some(Payload::Encoded(pieces)) => {
            // An encoded byte yields at most eight decoded ones, which bounds the size of the sidecar.
            let most = pieces.iter().map(|p| p.len).sum::<u64>().saturating_mul(8);
            let fits = bytes as u64 <= most;
            return if fits {
                Ok(Content::Encoded(pieces.clone()))
            } else {
                Err(wrong(most))
            };
        }
        None => {}
    }
    let inline = |data: &[u8]| {
        Tensor::from_bytes(dtype, shape, data)
            .map(Content::Inline)
            .map_err(|e| e.to_string())
    };
    if let Some(raw) = t.raw_data.as_ref().filter(|r| !r.is_empty() || bytes == 0) {
        return if raw.len() == bytes {
            inline(raw)
        } else {
            Err(wrong(raw.len() as u64))
        };
    }
    let Some(elements) = Elements::of(t) else {
        return if bytes == 0 {
            inline(&[])
        } else {
            Ok(Content::Missing)
        };
    };
    let data = elements.encode(dtype)?;
    if data.len() != bytes {
        return Err(wrong(data.len() as u64));
    }
    if bytes <= INLINE_LIMIT {
        inline(&data)
    } else {
        Ok(Content::Decoded(data))
    }
}

fn external(t: &TensorProto, bytes: u64) -> Result<Content, String> {
    let entry = |key: &str| {
        t.external_data
            .iter()
            .find(|e| e.key() == key)
            .map(|e| e.value().trim().to_string())
    };
    let number = |key: &str| {
        let parse = |v: String| {
            v.parse::<u64>()
                .map_err(|_| format!("external {key} '{v}' is not a number"))
        };
        entry(key).map(parse).transpose()
    };
    let location = entry("location")
        .filter(|l| !l.is_empty())
        .ok_or("names no external file")?;
    let offset = number("offset")?.unwrap_or(0);
    if let Some(len) = number("length")?.filter(|len| *len != bytes) {
        return Err(format!("needs {bytes} bytes, its external data has {len}"));
    }
    Ok(Content::External { location, offset })
}
