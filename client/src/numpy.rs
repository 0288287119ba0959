//! numpy's own files: `.npy` holds one array, `.npz` several by name.
//!
//! ```no_run
//! # fn f() -> Result<(), convoke::numpy::NumpyError> {
//! let inputs = convoke::numpy::read_npz("inputs.npz")?;
//! convoke::numpy::write_npz("copy.npz", &inputs)?;
//! # Ok(()) }
//! ```
//!
//! Read are little-endian arrays of `f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 bool`, in C or Fortran order. numpy has no
//! bfloat16: such tensors are written as float32, which holds every one of their values.
//!
//! Invariants
//! 1. Nothing is allocated for an array before its declared size was checked against the bytes that its file holds,
//!    or, where they are compressed, can hold. No byte of a file counts for two arrays.
//! 2. A file is written under another name and renamed: a reader sees all of it or nothing.

mod header;

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use convoke_common::error::{Code, Error};
use convoke_common::tensor::{Tensor, TensorError};
use convoke_common::{DType, Shape};
use zip::write::SimpleFileOptions;

use header::Header;

/// Deflate cannot shrink further than this.
const MOST_COMPRESSION: u64 = 1032;
/// Bytes moved at once.
const CHUNK: usize = 1 << 20;

/// An array file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NumpyError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Not a `.npz`, or a damaged one.
    #[error("{} is not a .npz file: {reason}", path.display())]
    NotNpz {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// An array that cannot be read.
    #[error("{}{}: {reason}", path.display(), in_array(array))]
    Array {
        /// The file.
        path: PathBuf,
        /// The array's name; empty in a `.npy`.
        array: String,
        /// What is wrong.
        reason: String,
    },
    /// Two arrays of one name.
    #[error("{} holds two arrays named '{array}'", path.display())]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// Their name.
        array: String,
    },
}

fn in_array(name: &str) -> String {
    if name.is_empty() {
        String::new()
    } else {
        format!(", array '{name}'")
    }
}

impl From<NumpyError> for Error {
    fn from(e: NumpyError) -> Error {
        let (code, advice) = match &e {
            NumpyError::Io { action, .. } => (
                Code::Io,
                match *action {
                    "read" => "check the path and its permissions",
                    _ => "check that the folder exists, is writable, and has room",
                },
            ),
            _ => (
                Code::InvalidInput,
                "write it with numpy.save (.npy) or numpy.savez (.npz), little-endian",
            ),
        };
        Error::new(code, e.to_string()).advise(advice)
    }
}

/// Where an array comes from, for errors.
struct Origin<'a> {
    path: &'a Path,
    array: &'a str,
}

impl Origin<'_> {
    fn bad(&self, reason: impl Into<String>) -> NumpyError {
        NumpyError::Array {
            path: self.path.to_owned(),
            array: self.array.to_owned(),
            reason: reason.into(),
        }
    }

    fn ended(&self, e: std::io::Error) -> NumpyError {
        match e.kind() {
            std::io::ErrorKind::UnexpectedEof => self.bad("the file ends inside the array"),
            _ => self.bad(format!("cannot be read: {e}")),
        }
    }
}

fn io(action: &'static str, path: &Path, source: std::io::Error) -> NumpyError {
    NumpyError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

fn open(path: &Path) -> Result<(File, u64), NumpyError> {
    let opened = File::open(path).and_then(|f| f.metadata().map(|m| (f, m)));
    let (file, meta) = opened.map_err(|e| io("read", path, e))?;
    if !meta.is_file() {
        let e = std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file");
        return Err(io("read", path, e));
    }
    Ok((file, meta.len()))
}

/// The array of a `.npy` file.
pub fn read_npy(path: impl AsRef<Path>) -> Result<Tensor, NumpyError> {
    let path = path.as_ref();
    let (file, size) = open(path)?;
    npy(&mut BufReader::new(file), size, path)
}

/// The array of a `.npy` file of `size` bytes.
pub(crate) fn npy(from: &mut impl Read, size: u64, path: &Path) -> Result<Tensor, NumpyError> {
    read_array(from, size, &Origin { path, array: "" })
}

/// The arrays of a `.npz` file, in its order.
pub fn read_npz(path: impl AsRef<Path>) -> Result<Vec<(String, Tensor)>, NumpyError> {
    let path = path.as_ref();
    let (file, size) = open(path)?;
    npz(BufReader::new(file), size, path)
}

/// The arrays of a `.npz` file of `file_size` bytes.
pub(crate) fn npz(
    from: impl Read + Seek,
    file_size: u64,
    path: &Path,
) -> Result<Vec<(String, Tensor)>, NumpyError> {
    let not_npz = |reason: String| NumpyError::NotNpz {
        path: path.to_owned(),
        reason,
    };
    let archive = zip::ZipArchive::new(from);
    let mut archive = archive.map_err(|e| not_npz(e.to_string()))?;
    let mut all: Vec<(String, Tensor)> = Vec::new();
    // What is left of the file for the arrays to come: several may not be made of the same bytes.
    let mut left = file_size;
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).map_err(|e| not_npz(e.to_string()))?;
        let name = entry.name().map_err(|e| not_npz(e.to_string()))?;
        // Whatever else lies in the archive is not numpy's.
        let Some(name) = name.strip_suffix(".npy").map(str::to_owned) else {
            continue;
        };
        let origin = Origin { path, array: &name };
        if all.iter().any(|(n, _)| *n == name) {
            let path = path.to_owned();
            return Err(NumpyError::Duplicate { path, array: name });
        }
        let (size, held) = (entry.size(), entry.compressed_size());
        let possible = match entry.compression() {
            zip::CompressionMethod::Stored => held,
            _ => held.saturating_mul(MOST_COMPRESSION),
        };
        let rest = left.checked_sub(held).filter(|_| size <= possible);
        let Some(rest) = rest else {
            return Err(origin.bad(format!(
                "declares {size} bytes, more than the file can hold"
            )));
        };
        left = rest;
        let tensor = read_array(&mut entry, size, &origin)?;
        all.push((name, tensor));
    }
    Ok(all)
}

/// Reads an array from a source of exactly `size` bytes.
fn read_array(from: &mut impl Read, size: u64, origin: &Origin<'_>) -> Result<Tensor, NumpyError> {
    let (header, length) = Header::read(from, size).map_err(|e| match e {
        header::Failure::Io(e) => origin.ended(e),
        header::Failure::Bad(reason) => origin.bad(reason),
    })?;
    let need = Tensor::size_of(header.dtype, &header.shape);
    let need = need.map_err(|e| origin.bad(e.to_string()))?;
    let have = size.saturating_sub(length);
    if need as u64 != have {
        return Err(origin.bad(format!(
            "{} needs {need} bytes, the file holds {have}",
            signature(header.dtype, &header.shape)
        )));
    }
    let failed = |e: TensorError| origin.bad(e.to_string());
    let mut tensor = Tensor::zeros(header.dtype, &header.shape).map_err(failed)?;
    let Some(bytes) = tensor.bytes_mut() else {
        return Err(origin.bad("its buffer is shared"));
    };
    from.read_exact(bytes).map_err(|e| origin.ended(e))?;
    // Archives check their sums when the end is read.
    match from.read(&mut [0]) {
        Ok(0) => {}
        Ok(_) => return Err(origin.bad("the file goes on after the array")),
        Err(e) => return Err(origin.ended(e)),
    }
    if header.fortran && header.shape.len() > 1 {
        tensor = from_fortran(&tensor).map_err(failed)?;
    }
    tensor.check_bool().map_err(failed)?;
    Ok(tensor)
}

fn signature(dtype: DType, shape: &[usize]) -> String {
    format!("{dtype}{shape:?}")
}

/// A tensor whose bytes lie with the first axis fastest, with the last one fastest.
fn from_fortran(t: &Tensor) -> Result<Tensor, TensorError> {
    let mut out = Tensor::zeros(t.dtype(), t.shape())?;
    let (shape, width) = (t.shape(), t.dtype().size());
    let mut strides = Shape::new();
    let mut stride = width;
    for d in shape {
        strides.push(stride);
        stride = stride.saturating_mul(*d);
    }
    let from = t.bytes();
    let Some(to) = out.bytes_mut() else {
        return Ok(out);
    };
    let mut index = vec![0usize; shape.len()];
    for element in to.chunks_exact_mut(width) {
        let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        element.copy_from_slice(&from[at..at + width]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Ok(out)
}

/// Writes one array. A bf16 tensor becomes float32.
pub fn write_npy(path: impl AsRef<Path>, tensor: &Tensor) -> Result<(), NumpyError> {
    replace(path.as_ref(), |file| {
        let mut out = BufWriter::new(file);
        write_array(&mut out, tensor)?;
        out.flush()
    })
}

/// Writes arrays by name, uncompressed. bf16 tensors become float32.
pub fn write_npz(path: impl AsRef<Path>, arrays: &[(String, Tensor)]) -> Result<(), NumpyError> {
    let path = path.as_ref();
    for (i, (name, _)) in arrays.iter().enumerate() {
        if arrays[..i].iter().any(|(n, _)| n == name) {
            return Err(NumpyError::Duplicate {
                path: path.to_owned(),
                array: name.clone(),
            });
        }
    }
    replace(path, |file| write_zip(BufWriter::new(file), arrays))
}

fn write_zip(to: impl Write + Seek, arrays: &[(String, Tensor)]) -> std::io::Result<()> {
    let mut zip = zip::ZipWriter::new(to);
    for (name, tensor) in arrays {
        // The form for sizes beyond 4 GiB, as numpy writes it always.
        let options = SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored)
            .large_file(true);
        zip.start_file(format!("{name}.npy"), options)?;
        write_array(&mut zip, tensor)?;
    }
    zip.finish()?.flush()
}

fn write_array(to: &mut impl Write, tensor: &Tensor) -> std::io::Result<()> {
    let dtype = match tensor.dtype() {
        DType::BF16 => DType::F32,
        other => other,
    };
    to.write_all(&Header::text(dtype, tensor.shape()))?;
    if tensor.dtype() != DType::BF16 {
        return to.write_all(tensor.bytes());
    }
    let mut wide = Vec::with_capacity(CHUNK);
    for part in tensor.bytes().chunks(CHUNK / 2) {
        wide.clear();
        // The upper half of a float32 is a bfloat16.
        part.chunks_exact(2)
            .for_each(|b| wide.extend_from_slice(&[0, 0, b[0], b[1]]));
        to.write_all(&wide)?;
    }
    Ok(())
}

/// Writes beside `path`, then renames; what cannot be renamed over (`/dev/stdout`) is written directly.
fn replace(
    path: &Path,
    write: impl FnOnce(&mut File) -> std::io::Result<()>,
) -> Result<(), NumpyError> {
    let failed = |e| io("write", path, e);
    let special = std::fs::metadata(path).is_ok_and(|m| !m.is_file());
    if special {
        let mut file = File::options().write(true).open(path).map_err(failed)?;
        return write(&mut file).map_err(failed);
    }
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = File::create(&temporary).and_then(|mut file| {
        write(&mut file)?;
        std::fs::rename(&temporary, path)
    });
    written.map_err(|e| {
        // The error to report is the one that brought us here.
        let _ = std::fs::remove_file(&temporary);
        failed(e)
    })
}

#[cfg(test)]
mod seeds;
#[cfg(test)]
mod tests;
