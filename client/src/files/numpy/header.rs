//! The header of a `.npy` array: magic, version, and a Python dictionary of three known keys.

use std::io::Read;

use convoke_graph::tensor::MAX_RANK;
use convoke_graph::{DType, Printable, Shape};

use crate::model::signature::ArrayType;

const MAGIC: &[u8] = b"\x93NUMPY";
/// The longest header that is read, in bytes. numpy's own headers have some hundred bytes, and numpy reads none beyond
/// 10,000.
const LONGEST: u32 = 10_000;
/// An array's data starts at a multiple of this many bytes.
const ALIGN: usize = 64;

/// The contents of a header.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Header {
    pub dtype: DType,
    /// How strings are stored, where the array has strings.
    pub text: Option<StoredText>,
    pub fortran: bool,
    pub shape: Shape,
}

/// Strings as numpy stores them: each has room for as many characters as the longest has, and ends with zeros.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum StoredText {
    /// This many characters of four bytes, `U`.
    Wide(usize),
    /// This many bytes, `S`.
    Bytes(usize),
}

impl StoredText {
    /// Bytes of a string; `None` on overflow.
    pub fn width(self) -> Option<usize> {
        match self {
            StoredText::Wide(characters) => characters.checked_mul(4),
            StoredText::Bytes(bytes) => Some(bytes),
        }
    }

    fn parse(descr: &str) -> Option<StoredText> {
        let length = |digits: &str| digits.parse().ok();
        match descr.split_at_checked(2)? {
            ("<U" | "=U" | "|U", digits) => length(digits).map(StoredText::Wide),
            ("|S" | "<S" | ">S" | "=S", digits) => length(digits).map(StoredText::Bytes),
            _ => None,
        }
    }
}

/// Why a header cannot be read.
#[derive(Debug)]
pub(super) enum Failure {
    Io(std::io::Error),
    Bad(String),
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        Failure::Io(e)
    }
}

fn bad<T>(reason: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Bad(reason.into()))
}

impl Header {
    /// The dtype and shape of the array. Only this module needs to know the order of its elements.
    pub fn array_type(&self) -> ArrayType {
        ArrayType {
            dtype: self.dtype,
            shape: self.shape.clone(),
        }
    }

    /// Reads the header of a source of `size` bytes. Returns it with its length in bytes.
    pub fn read(from: &mut impl Read, size: u64) -> Result<(Header, u64), Failure> {
        let mut start = [0; 8];
        if size < start.len() as u64 {
            return bad("not a .npy array");
        }
        from.read_exact(&mut start)?;
        if !start.starts_with(MAGIC) {
            return bad("not a .npy array");
        }
        let (length, fixed) = match start[6] {
            1 => {
                let mut b = [0; 2];
                from.read_exact(&mut b)?;
                (u32::from(u16::from_le_bytes(b)), 10)
            }
            2 | 3 => {
                let mut b = [0; 4];
                from.read_exact(&mut b)?;
                (u32::from_le_bytes(b), 12)
            }
            v => return bad(format!("version {v} of the .npy format is unknown")),
        };
        let end = fixed + u64::from(length);
        if length > LONGEST || end > size {
            return bad(format!("declares a header of {length} bytes"));
        }
        let mut text = vec![0; length as usize];
        from.read_exact(&mut text)?;
        match std::str::from_utf8(&text) {
            Ok(text) => Ok((Header::parse(text)?, end)),
            Err(_) => bad("its header is not text"),
        }
    }

    fn parse(text: &str) -> Result<Header, Failure> {
        let mut p = Parser(text.trim_start());
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        p.expect("{")?;
        while !p.take("}") {
            let key = p.string()?;
            p.expect(":")?;
            match key {
                "descr" if p.0.starts_with('\'') => descr = Some(p.string()?),
                "descr" => return bad("is a structured array; convert it to plain numbers"),
                "fortran_order" => fortran = Some(p.bool()?),
                "shape" => shape = Some(p.tuple()?),
                other => {
                    return bad(format!(
                        "its header has an unknown key '{}'",
                        Printable(other)
                    ));
                }
            }
            if !p.take(",") {
                p.expect("}")?;
                break;
            }
        }
        match (descr, fortran, shape) {
            (Some(descr), Some(fortran), Some(shape)) => {
                let text = StoredText::parse(descr);
                let dtype = match text {
                    Some(_) => DType::Str,
                    None => dtype(descr)?,
                };
                Ok(Header {
                    dtype,
                    text,
                    fortran,
                    shape,
                })
            }
            _ => bad("its header lacks descr, fortran_order or shape"),
        }
    }

    /// The bytes of a header for an array in C order.
    pub fn text(descr: &str, shape: &[usize]) -> Vec<u8> {
        let dims: Vec<String> = shape.iter().map(|d| d.to_string()).collect();
        let comma = if shape.len() == 1 { "," } else { "" };
        let mut text = format!(
            "{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}{comma}), }}",
            dims.join(", ")
        );
        let pad = ALIGN - (10 + text.len() + 1) % ALIGN;
        text.extend(std::iter::repeat_n(' ', pad % ALIGN));
        text.push('\n');
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        // MAX_RANK dimensions of twenty digits stay far below 64 KiB.
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes
    }
}

const CODES: [(DType, &str); 12] = [
    (DType::F32, "<f4"),
    (DType::F64, "<f8"),
    (DType::F16, "<f2"),
    (DType::I8, "|i1"),
    (DType::I16, "<i2"),
    (DType::I32, "<i4"),
    (DType::I64, "<i8"),
    (DType::U8, "|u1"),
    (DType::U16, "<u2"),
    (DType::U32, "<u4"),
    (DType::U64, "<u8"),
    (DType::Bool, "|b1"),
];

/// numpy's name of a dtype that it has.
pub(super) fn descr(dtype: DType) -> &'static str {
    let found = CODES.iter().find(|(d, _)| *d == dtype);
    // bf16 has no code: its elements are written as float32.
    found.map_or("<f4", |(_, code)| code)
}

fn dtype(descr: &str) -> Result<DType, Failure> {
    let order = descr.get(..1).unwrap_or_default();
    let kind = descr.get(1..).unwrap_or_default();
    if kind == "V2" {
        // numpy has no bfloat16: it writes those of the package `ml_dtypes` as elements of two bytes without a type.
        return Ok(DType::BF16);
    }
    match kind {
        // Numpy has no floats of eight bits and no integers of fewer either. The file names the type of one of them
        // only.
        "V1" => return Ok(DType::U8),
        "f1" => return Ok(DType::F8E5M2),
        _ => {}
    }
    let found = CODES.iter().find(|(_, code)| code[1..] == *kind);
    match found {
        Some((d, _)) if d.width() == 1 || matches!(order, "<" | "=") => Ok(*d),
        Some(_) => bad(format!(
            "has the byte order of '{}'; convert it with .astype('<{kind}')",
            Printable(descr)
        )),
        None => bad(format!(
            "has the unsupported dtype '{}'; supported are f1 f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 bool U S V1 V2",
            Printable(descr)
        )),
    }
}

/// The rest of a Python literal, which is still to be parsed.
struct Parser<'a>(&'a str);

impl<'a> Parser<'a> {
    fn take(&mut self, token: &str) -> bool {
        match self.0.strip_prefix(token) {
            Some(rest) => {
                self.0 = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<(), Failure> {
        if self.take(token) {
            return Ok(());
        }
        bad(format!("its header lacks a '{token}'"))
    }

    fn string(&mut self) -> Result<&'a str, Failure> {
        let rest = self.0;
        let quote = rest.chars().next().filter(|c| matches!(c, '\'' | '"'));
        let Some(quote) = quote else {
            return bad("its header lacks a quoted name");
        };
        let Some((text, rest)) = rest[1..].split_once(quote) else {
            return bad("its header has an unclosed quote");
        };
        self.0 = rest.trim_start();
        Ok(text)
    }

    fn bool(&mut self) -> Result<bool, Failure> {
        if self.take("True") {
            return Ok(true);
        }
        if self.take("False") {
            return Ok(false);
        }
        bad("its header says neither True nor False for fortran_order")
    }

    fn tuple(&mut self) -> Result<Shape, Failure> {
        self.expect("(")?;
        let mut shape = Shape::new();
        while !self.take(")") {
            let end = self.0.find(|c: char| !c.is_ascii_digit());
            let (digits, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
            let Ok(dim) = digits.parse() else {
                return bad("its shape is not a tuple of sizes");
            };
            if shape.len() == MAX_RANK {
                return bad(format!("has more than {MAX_RANK} dimensions"));
            }
            shape.push(dim);
            // Python 2 wrote longs with a suffix.
            self.0 = rest.strip_prefix('L').unwrap_or(rest).trim_start();
            if !self.take(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(shape)
    }
}
