//! The protobuf wire format: tags, varints and lengths, read in place and checked against what encloses them.

use crate::error::ModelError;
use crate::file::Reader;

/// A field and its location in the file.
#[derive(Debug, Clone, Copy)]
pub(in crate::onnx) struct Field {
    pub number: u32,
    pub kind: Kind,
    /// File offset of the tag.
    pub start: u64,
    /// File offset of the content, which follows the tag, and the length where the field has one.
    pub content: u64,
    /// File offset after the content.
    pub end: u64,
}

/// The wire types of protobuf, without groups, which are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::onnx) enum Kind {
    Varint,
    Fixed64,
    Bytes,
    Fixed32,
}

/// An error about offset `at` of the reader's file.
pub(in crate::onnx) fn malformed(r: &Reader<'_>, at: u64, reason: impl Into<String>) -> ModelError {
    ModelError::Malformed {
        path: r.file().path().into(),
        at,
        reason: reason.into(),
    }
}

/// Reads a varint that must not extend beyond `end`.
pub(in crate::onnx) fn varint(r: &mut Reader<'_>, end: u64) -> Result<u64, ModelError> {
    let at = r.pos();
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let byte = match r.peek(end)?.first().copied() {
            Some(b) => b,
            None if end == r.file().len() => {
                let (path, len) = (r.file().path().into(), end);
                return Err(ModelError::Truncated {
                    path,
                    at: end,
                    need: 1,
                    len,
                });
            }
            None => {
                return Err(malformed(
                    r,
                    at,
                    "a number runs past the message that holds it",
                ));
            }
        };
        r.skip(1);
        if shift == 63 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(malformed(r, at, "a number has more than 64 bits"))
}

/// Reads the tag of the field at the position, in a message that ends at `end`, and moves to the field's content.
pub(in crate::onnx) fn field(r: &mut Reader<'_>, end: u64) -> Result<Field, ModelError> {
    let start = r.pos();
    let tag = varint(r, end)?;
    let number = u32::try_from(tag >> 3)
        .ok()
        .filter(|n| (1..1 << 29).contains(n));
    let number = number.ok_or_else(|| malformed(r, start, format!("field number {}", tag >> 3)))?;
    let (kind, len) = match tag & 7 {
        0 => (Kind::Varint, None),
        1 => (Kind::Fixed64, Some(8)),
        2 => (Kind::Bytes, Some(varint(r, end)?)),
        5 => (Kind::Fixed32, Some(4)),
        other => return Err(malformed(r, start, format!("wire type {other}"))),
    };
    let content = r.pos();
    let field_end = match len {
        None => {
            varint(r, end)?;
            let at = r.pos();
            r.seek(content);
            at
        }
        Some(len) => match content.checked_add(len) {
            Some(e) if e <= end => e,
            _ if end == r.file().len() => {
                let path = r.file().path().into();
                return Err(ModelError::Truncated {
                    path,
                    at: content,
                    need: len,
                    len: end,
                });
            }
            _ => {
                return Err(malformed(
                    r,
                    start,
                    "a field is longer than the message that holds it",
                ));
            }
        },
    };
    Ok(Field {
        number,
        kind,
        start,
        content,
        end: field_end,
    })
}

/// Appends a length-delimited field.
pub(in crate::onnx) fn put_bytes(number: u32, content: &[u8], out: &mut Vec<u8>) {
    put_varint(u64::from(number) << 3 | 2, out);
    put_varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

/// Appends a varint.
pub(in crate::onnx) fn put_varint(mut v: u64, out: &mut Vec<u8>) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}
