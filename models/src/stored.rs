//! The list of tensors in a safetensors file, and the header of a file that is to be written.

use std::collections::HashSet;
use std::path::Path;

use convoke_graph::graph::TensorType;
use convoke_graph::tensor::{MAX_RANK, byte_size};
use convoke_graph::{DType, Printable};
use safetensors::tensor::TensorInfo;

use crate::artifact_index::{ArtifactIndex, Progress, Source, default_cache_dir};
use crate::error::ModelError;
use crate::file::DataFile;
use crate::safetensors::{MAX_HEADER, dtype_of, name_of, read_header};

/// A tensor in a file.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredTensor {
    pub name: String,
    pub ty: TensorType,
    /// The offset of its elements in the file, and their length, in bytes.
    pub offset: u64,
    pub len: u64,
}

/// A safetensors file.
#[derive(Debug, Clone)]
pub struct StoredTensors {
    pub source: Source,
    /// The tensors, in the order of their elements in the file.
    pub tensors: Vec<StoredTensor>,
}

/// Lists the tensors of a safetensors file. Workers read the file themselves where it is beneath `root`, the folder
/// that they share.
pub fn stored_tensors(
    path: &Path,
    root: Option<&Path>,
    progress: Option<&(dyn Fn(Progress) + Send + Sync)>,
) -> Result<StoredTensors, ModelError> {
    let file = DataFile::open(path)?;
    let (start, header) = read_header(&file)?;
    let mut tensors = Vec::new();
    for (name, info) in header.tensors() {
        tensors.push(stored(name, info, start)?);
    }
    tensors.sort_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
    let index = ArtifactIndex::new(default_cache_dir().as_deref(), root);
    let changed = || ModelError::Changed { path: path.into() };
    let sources = index.sources(&[path.into()], progress)?;
    let source = sources.into_iter().next().ok_or_else(changed)?;
    match source.identity() == file.identity() {
        true => Ok(StoredTensors { source, tensors }),
        false => Err(changed()),
    }
}

fn stored(name: String, info: &TensorInfo, start: u64) -> Result<StoredTensor, ModelError> {
    let unsupported = |reason: String| ModelError::UnsupportedType {
        what: format!("tensor '{}'", Printable(&name)),
        reason,
    };
    let dtype = dtype_of(info.dtype);
    let dtype = dtype.ok_or_else(|| unsupported(format!("there is no dtype {}", info.dtype)))?;
    if info.shape.len() > MAX_RANK {
        let reason = format!("rank {} is above {MAX_RANK}", info.shape.len());
        return Err(unsupported(reason));
    }
    let (from, to) = info.data_offsets;
    Ok(StoredTensor {
        ty: TensorType::fixed(dtype, &info.shape),
        offset: start + from as u64,
        len: (to - from) as u64,
        name,
    })
}

/// Returns the header of a file with these tensors, and the order in which their elements must follow it: wide dtypes
/// come first, so that every tensor is aligned.
pub fn stored_header(
    path: &Path,
    tensors: &[(&str, DType, &[usize])],
) -> Result<(Vec<u8>, Vec<usize>), ModelError> {
    let bad = |reason: String| ModelError::Safetensors {
        path: path.into(),
        reason,
    };
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|i| (usize::MAX - tensors[*i].1.width(), tensors[*i].0));
    let mut names = HashSet::new();
    let mut json = String::from("{");
    let mut from = 0usize;
    for (n, i) in order.iter().enumerate() {
        let (name, dtype, shape) = tensors[*i];
        if name == "__metadata__" || !names.insert(name) {
            return Err(bad(format!(
                "two tensors cannot have the name '{}'",
                Printable(name)
            )));
        }
        let bytes = byte_size(dtype, shape).and_then(|b| from.checked_add(b));
        let to = bytes.ok_or_else(|| bad("sizes overflow".into()))?;
        // The format has no padding within a byte.
        let elements = shape.iter().fold(1usize, |n, d| n.wrapping_mul(*d));
        if dtype.is_packed() && !elements.is_multiple_of(2) {
            let reason = format!("'{}' ends within a byte", Printable(name));
            return Err(bad(reason));
        }
        let lacking = || ModelError::UnsupportedType {
            what: format!("tensor '{}'", Printable(name)),
            reason: format!("safetensors files have no dtype {dtype}"),
        };
        let info = TensorInfo {
            dtype: name_of(dtype).ok_or_else(lacking)?,
            shape: shape.to_vec(),
            data_offsets: (from, to),
        };
        let text = serde_json::to_string(name).and_then(|name| {
            let info = serde_json::to_string(&info)?;
            Ok(format!("{}{name}:{info}", if n > 0 { "," } else { "" }))
        });
        json.push_str(&text.map_err(|e| bad(e.to_string()))?);
        from = to;
    }
    json.push('}');
    // Padding makes the elements begin at a multiple of eight bytes.
    json.extend(std::iter::repeat_n(
        ' ',
        json.len().next_multiple_of(8) - json.len(),
    ));
    let len = json.len() as u64;
    if len > MAX_HEADER {
        return Err(bad(format!("its header would have {len} bytes")));
    }
    let mut header = len.to_le_bytes().to_vec();
    header.extend_from_slice(json.as_bytes());
    Ok((header, order))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn a_header_that_is_written_is_read_again() {
        let s = Scratch::new();
        let path = Path::new("w");
        let named = DType::ALL.into_iter().filter(|d| name_of(*d).is_some());
        let tensors: Vec<(String, DType, Vec<usize>)> = named
            .enumerate()
            .map(|(i, dtype)| (format!("a \"{i}\""), dtype, vec![i % 4, 6]))
            .collect();
        let given: Vec<_> = tensors
            .iter()
            .map(|(name, dtype, shape)| (name.as_str(), *dtype, shape.as_slice()))
            .collect();
        let (header, order) = stored_header(path, &given).unwrap();
        let bytes = |i: &usize| byte_size(given[*i].1, given[*i].2).unwrap();
        let all: usize = order.iter().map(bytes).sum();
        let file = s.write("w", &[header.clone(), vec![0; all]].concat());
        let read = stored_tensors(&file, None, None).unwrap().tensors;
        assert_eq!(read.len(), given.len());
        for (name, dtype, shape) in given {
            let found = read.iter().find(|t| t.name == name).unwrap();
            assert_eq!(found.ty, TensorType::fixed(dtype, shape), "{name}");
            assert_eq!(found.offset % dtype.width() as u64, 0, "{name}");
            assert_eq!(found.len, byte_size(dtype, shape).unwrap() as u64);
        }
        for names in [["a", "a"], ["b", "__metadata__"]] {
            let twice = names.map(|n| (n, DType::F32, [1usize].as_slice()));
            assert!(stored_header(path, &twice).is_err());
        }
        for (dtype, shape) in [(DType::I4, [2]), (DType::F4E2M1, [3])] {
            let given = [("a", dtype, shape.as_slice())];
            assert!(stored_header(path, &given).is_err(), "{dtype}");
        }
    }

    #[test]
    fn dtypes_that_there_are_not_are_named() {
        let s = Scratch::new();
        let header = r#"{"a":{"dtype":"C64","shape":[2],"data_offsets":[0,16]}}"#;
        let len = (header.len() as u64).to_le_bytes();
        let path = s.write("w", &[&len, header.as_bytes(), &[0; 16]].concat());
        let e = stored_tensors(&path, None, None).unwrap_err().to_string();
        assert!(e.contains("tensor 'a'") && e.contains("C64"), "{e}");
    }
}
