//! Weights in the safetensors format: only the header is read, which gives the location of each tensor; the data stays
//! in the file.
//!
//! Offsets of tensors need no alignment.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use convoke_graph::DType;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::error::ModelError;
use crate::file::{DataFile, Identity};

/// Largest header in bytes, the limit of the reference implementation.
pub(crate) const MAX_HEADER: u64 = 100_000_000;

/// The tensors of a set of weights files, by name.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    files: Vec<(PathBuf, Identity)>,
    tensors: HashMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    file: usize,
    offset: u64,
    info: TensorInfo,
}

/// The location of a weight.
#[derive(Debug, PartialEq)]
pub(crate) struct WeightLocation<'a> {
    pub path: &'a Path,
    pub identity: Identity,
    pub offset: u64,
}

impl Weights {
    /// Reads the headers of `paths`.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Weights, ModelError> {
        let mut all = Weights::default();
        for path in paths {
            let opened = DataFile::open(path)?;
            let (start, header) = read_header(&opened)?;
            let file = all.files.len();
            all.files.push((path.clone(), opened.identity()));
            for (name, info) in header.tensors() {
                let offset = start + info.data_offsets.0 as u64;
                let entry = Entry {
                    file,
                    offset,
                    info: info.clone(),
                };
                if let Some(old) = all.tensors.insert(name.clone(), entry) {
                    let first = all.files[old.file].0.clone();
                    return Err(ModelError::DuplicateWeight {
                        name,
                        first,
                        second: path.clone(),
                    });
                }
            }
        }
        Ok(all)
    }

    /// Whether no files were given.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The location of weight `name`; `None` where no file has the weight. Fails where the weight has another dtype or
    /// shape.
    pub(crate) fn find(
        &self,
        name: &str,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Option<WeightLocation<'_>>, ModelError> {
        let Some(e) = self.tensors.get(name) else {
            return Ok(None);
        };
        let (path, identity) = &self.files[e.file];
        if dtype_of(e.info.dtype) != Some(dtype) || e.info.shape != shape {
            let have = dtype_of(e.info.dtype).map_or(e.info.dtype.to_string(), |d| d.to_string());
            return Err(ModelError::WeightMismatch {
                name: name.into(),
                wanted: format!("{dtype}{shape:?}"),
                found: format!("{have}{:?}", e.info.shape),
                path: path.clone(),
            });
        }
        Ok(Some(WeightLocation {
            path,
            identity: *identity,
            offset: e.offset,
        }))
    }
}

/// Reads the header of a file, and returns it after the offset at which the data starts.
pub(crate) fn read_header(file: &DataFile) -> Result<(u64, Metadata), ModelError> {
    let path = file.path();
    let bad = |reason: String| ModelError::Safetensors {
        path: path.into(),
        reason,
    };
    let truncated = |need| ModelError::Truncated {
        path: path.into(),
        at: 0,
        need,
        len: file.len(),
    };
    if file.len() < 8 {
        return Err(truncated(8));
    }
    let mut len = [0; 8];
    file.read_at(0, &mut len)?;
    let len = u64::from_le_bytes(len);
    if len > MAX_HEADER {
        return Err(bad(format!("its header claims {len} bytes")));
    }
    let start = 8 + len;
    if start > file.len() {
        return Err(truncated(start));
    }
    let header: Metadata =
        serde_json::from_slice(&file.bytes(8, len)?).map_err(|e| bad(e.to_string()))?;
    let need = start
        .checked_add(header.data_len() as u64)
        .ok_or_else(|| bad("sizes overflow".into()))?;
    if need > file.len() {
        return Err(truncated(need));
    }
    if need < file.len() {
        return Err(bad(format!(
            "it has {} bytes after its last tensor",
            file.len() - need
        )));
    }
    file.check_unchanged()?;
    Ok((start, header))
}

pub(crate) fn dtype_of(d: Dtype) -> Option<DType> {
    Some(match d {
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::U8 => DType::U8,
        Dtype::U16 => DType::U16,
        Dtype::U32 => DType::U32,
        Dtype::U64 => DType::U64,
        Dtype::BOOL => DType::Bool,
        Dtype::F8_E4M3 => DType::F8E4M3FN,
        Dtype::F8_E5M2 => DType::F8E5M2,
        Dtype::F8_E8M0 => DType::F8E8M0,
        Dtype::F8_E4M3FNUZ => DType::F8E4M3FNUZ,
        Dtype::F8_E5M2FNUZ => DType::F8E5M2FNUZ,
        Dtype::F4 => DType::F4E2M1,
        _ => return None,
    })
}

/// The name of a dtype in the safetensors format; `None` where it has none.
pub(crate) fn name_of(d: DType) -> Option<Dtype> {
    Some(match d {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::Bool => Dtype::BOOL,
        DType::F8E4M3FN => Dtype::F8_E4M3,
        DType::F8E4M3FNUZ => Dtype::F8_E4M3FNUZ,
        DType::F8E5M2 => Dtype::F8_E5M2,
        DType::F8E5M2FNUZ => Dtype::F8_E5M2FNUZ,
        DType::F8E8M0 => Dtype::F8_E8M0,
        DType::F4E2M1 => Dtype::F4,
        DType::I4 | DType::U4 | DType::I2 | DType::U2 | DType::Str => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    fn file(s: &Scratch, name: &str, header: &str, data: &[u8]) -> PathBuf {
        let len = (header.len() as u64).to_le_bytes();
        s.write(name, &[&len, header.as_bytes(), data].concat())
    }

    #[test]
    fn finds_tensors_of_the_right_type_only() {
        let s = Scratch::new();
        let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"I8","shape":[3],"data_offsets":[8,11]}}"#;
        let path = file(&s, "w", header, &[0; 11]);
        let w = Weights::open(std::slice::from_ref(&path)).unwrap();
        let at = 8 + header.len() as u64;
        let offset = |name, dtype, shape| w.find(name, dtype, shape).unwrap().unwrap().offset;
        assert_eq!(offset("a", DType::F32, &[2]), at);
        assert_eq!(offset("b", DType::I8, &[3]), at + 8);
        assert_eq!(w.find("c", DType::I8, &[3]).unwrap(), None);
        for (dtype, shape) in [(DType::F64, [2]), (DType::F32, [1])] {
            let e = w.find("a", dtype, &shape).unwrap_err();
            let want = format!(
                "weight 'a' is {dtype}{shape:?} in the model but f32[2] in {}",
                path.display()
            );
            assert_eq!(e.to_string(), want);
        }
        let again = Weights::open(&[path.clone(), path]).unwrap_err();
        assert!(matches!(again, ModelError::DuplicateWeight { .. }));
    }

    #[test]
    fn broken_files_are_errors() {
        let s = Scratch::new();
        let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let whole = std::fs::read(file(&s, "w", header, &[0; 8])).unwrap();
        for len in 0..whole.len() {
            let path = s.write("cut", &whole[..len]);
            assert!(Weights::open(&[path]).is_err(), "{len}");
        }
        let check = |header: &str| {
            let e = Weights::open(&[file(&s, "bad", header, &[0; 8])]).unwrap_err();
            assert!(matches!(e, ModelError::Safetensors { .. }), "{e}");
        };
        check("[]");
        check(r#"{"a":{"dtype":"F32","shape":[18446744073709551615,9],"data_offsets":[0,8]}}"#);
        check(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#);
        check(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#);
        let huge = s.write("huge", &[0xff; 64]);
        assert!(matches!(
            Weights::open(&[huge]).unwrap_err(),
            ModelError::Safetensors { .. }
        ));
    }
}
