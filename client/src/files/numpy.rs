//! numpy's own files: `.npy` holds one array, `.npz` several by name.
//!
//! ```no_run
//! # fn f() -> Result<(), convoke::numpy::NumpyError> {
//! let inputs = convoke::numpy::read_npz("inputs.npz")?;
//! convoke::numpy::write_npz("copy.npz", &inputs)?;
//! # Ok(()) }
//! ```
//!
//! [`Npz`] reads a file of which nothing is known yet: it returns the dtypes and shapes of the arrays before any of
//! them is decompressed, so that a program can compare them with what it expects.
//!
//! Little-endian arrays of `f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 bool` are read, in C or Fortran order. numpy has no
//! bfloat16: a bf16 tensor is written as float32, which holds every one of its values. It is read from what `ml_dtypes`
//! writes. Tensors of narrow dtypes are written wider as well: floats of four and eight bits as float32, integers of
//! two and four bits as int8 or uint8. Where `ml_dtypes` writes a narrow dtype, the file names the type only for
//! `float8_e5m2`. The others come as untyped elements of one byte, which are read as uint8.
//!
//! Arrays of strings are read from `U` (little-endian) and from `S`, whose bytes have to be UTF-8, and written as `U`.
//! numpy drops zeros at the end of a string. Arrays of Python objects are refused: use `.astype('U')`.
//!
//! Invariants
//! 1. Nothing is allocated for an array before its declared size was checked against the bytes that its file holds,
//!    or, where they are compressed, can hold. No byte of a file counts for two arrays.
//! 2. A file is written without a name, or under another one, and renamed: a reader sees all of it or nothing.

mod header;
mod npz;
mod strings;

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use convoke_common::error::{Code, Error};
use convoke_graph::Printable;
use convoke_graph::tensor::{Tensor, TensorError};
use convoke_graph::{DType, Shape};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use zip::write::SimpleFileOptions;

use crate::files::drafts;
use crate::model::signature::ArrayType;
use header::Header;
pub use npz::{MOST_MEMBERS, Npz};

/// Bytes of float32 that a bf16 tensor is widened to and written as at once.
const CHUNK: usize = 1 << 20;

/// Why an array file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NumpyError {
    /// The operating system refused to read or write the file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was refused: `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it was refused.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a `.npz`, or is damaged.
    #[error("{} is not a .npz file: {reason}", path.display())]
    NotNpz {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// An array of the file cannot be read.
    #[error("{}{}: {reason}", path.display(), in_array(array))]
    Array {
        /// The file.
        path: PathBuf,
        /// The array's name; empty in a `.npy`.
        array: String,
        /// What is wrong.
        reason: String,
    },
    /// The file has more members than [`MOST_MEMBERS`].
    #[error("{} declares {members} members; at most {MOST_MEMBERS} are read", path.display())]
    TooMany {
        /// The file.
        path: PathBuf,
        /// How many members the file declares.
        members: usize,
    },
    /// The archive has no array of this name.
    #[error("{} holds no array named '{}'", path.display(), Printable(array))]
    Missing {
        /// The file.
        path: PathBuf,
        /// The name that was asked for.
        array: String,
    },
    /// Two arrays have one name.
    #[error("{} holds two arrays named '{}'", path.display(), Printable(array))]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// The name of both arrays.
        array: String,
    },
}

fn in_array(name: &str) -> String {
    if name.is_empty() {
        String::new()
    } else {
        format!(", array '{}'", Printable(name))
    }
}

impl From<NumpyError> for Error {
    fn from(e: NumpyError) -> Error {
        let (code, advice) = match &e {
            NumpyError::Io {
                action: "write",
                path,
                source,
            } => return Error::new(Code::Io, e.to_string()).advise(unwritable(path, source)),
            NumpyError::Io { .. } => (Code::Io, "check the path and its permissions"),
            NumpyError::TooMany { .. } => (
                Code::InvalidInput,
                "split the file, or give the arrays one by one as .npy files",
            ),
            NumpyError::Missing { .. } | NumpyError::Duplicate { .. } => (
                Code::InvalidInput,
                "write the file with one array of each name, as numpy.savez does",
            ),
            _ => (
                Code::InvalidInput,
                "write it with numpy.save (.npy) or numpy.savez (.npz), little-endian",
            ),
        };
        Error::new(code, e.to_string()).advise(advice)
    }
}

/// Advice for a file that cannot be written.
fn unwritable(path: &Path, why: &std::io::Error) -> String {
    use std::io::ErrorKind as E;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let at = folder.display();
    let owner = std::fs::metadata(folder);
    let me = std::fs::metadata("/proc/self").map(|m| m.uid());
    match (why.kind(), owner, me) {
        (E::PermissionDenied, Ok(m), Ok(me)) => format!(
            "the folder {at} belongs to user {} (mode {:04o}) and this runs as user {me}: let that user write there, or name \
             another folder",
            m.uid(),
            m.mode() & 0o7777
        ),
        (E::ReadOnlyFilesystem, ..) => format!(
            "{at} is on a read-only file system, as all folders of a container may be that are not mounted: name another folder"
        ),
        (E::StorageFull | E::QuotaExceeded, ..) => {
            format!("there is no room left for it in {at}: make some, or name another folder")
        }
        _ => "check that the folder exists, is writable, and has room".into(),
    }
}

/// Checks that a file can be written, before the work whose result it is to hold. An existing file stays as it is.
///
/// # Errors
/// Fails where [`write_npz`] would, except for want of room. A pipe with a name is not opened, since its reader would
/// take that for the whole file.
pub fn check_writable(path: impl AsRef<Path>) -> Result<(), NumpyError> {
    let path = &target(path.as_ref());
    let failed = |e| io("write", path, e);
    let special = std::fs::metadata(path).ok().filter(|m| !m.is_file());
    if special.as_ref().is_some_and(|m| m.file_type().is_fifo()) {
        let allowed = rustix::fs::access(path, Access::WRITE_OK);
        return allowed.map_err(|e| failed(e.into()));
    }
    if special.is_some() {
        return File::options()
            .write(true)
            .open(path)
            .map(drop)
            .map_err(failed);
    }
    let draft = DraftFile::beside(path).map_err(failed)?;
    draft.discard().map_err(failed)
}

/// Resolves `path` where it is a link to a file, so that the file is replaced and not the link.
fn target(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// A file that takes another's place once it is complete. Nothing is left of it where the process ends before, if the file
/// system has files without names.
enum DraftFile {
    Unnamed(File),
    Named(PathBuf, File),
}

impl DraftFile {
    /// Creates a file beside `path`. Where it needs a name, that is a new one, so that a file which somebody else has planted
    /// there is never written to.
    fn beside(path: &Path) -> std::io::Result<DraftFile> {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o666);
        // Without this folder a file that has no name cannot be given one.
        if Path::new("/proc/self/fd").is_dir()
            && let Ok(file) = rustix::fs::open(folder.unwrap_or(Path::new(".")), flags, mode)
        {
            return Ok(DraftFile::Unnamed(file.into()));
        }
        under_new_name(path, |name| {
            let made = File::options().write(true).create_new(true).open(name);
            made.map(|file| DraftFile::Named(name.to_owned(), file))
        })
    }

    fn file(&mut self) -> &mut File {
        match self {
            DraftFile::Unnamed(file) | DraftFile::Named(_, file) => file,
        }
    }

    /// Puts the file in the place of `path`.
    fn complete(&self, path: &Path) -> std::io::Result<()> {
        let name = match self {
            DraftFile::Named(name, _) => name.clone(),
            DraftFile::Unnamed(file) => {
                // A file in use may be given a name by way of this link.
                let open = format!("/proc/self/fd/{}", file.as_raw_fd());
                under_new_name(path, |name| {
                    let follow = AtFlags::SYMLINK_FOLLOW;
                    rustix::fs::linkat(CWD, &open, CWD, name, follow)?;
                    Ok(name.to_owned())
                })?
            }
        };
        std::fs::rename(&name, path).inspect_err(|_| {
            // The error to report is that of the move, not of the removal.
            let _ = std::fs::remove_file(&name);
        })
    }

    /// Removes the file.
    fn discard(self) -> std::io::Result<()> {
        match self {
            DraftFile::Unnamed(_) => Ok(()),
            DraftFile::Named(name, _) => std::fs::remove_file(name),
        }
    }
}

/// Calls `make` with new names for a temporary file beside `path`, until one is not taken.
fn under_new_name<T>(
    path: &Path,
    make: impl Fn(&Path) -> std::io::Result<T>,
) -> std::io::Result<T> {
    let mut last = None;
    for temporary in drafts(path, "tmp") {
        match make(&temporary) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => last = Some(e),
            done => return done,
        }
    }
    Err(last.unwrap_or_else(|| std::io::ErrorKind::AlreadyExists.into()))
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

/// Reads the array of a `.npy` file.
pub fn read_npy(path: impl AsRef<Path>) -> Result<Tensor, NumpyError> {
    let path = path.as_ref();
    let (file, size) = open(path)?;
    npy(&mut BufReader::new(file), size, path)
}

/// Reads the array of a `.npy` file of `size` bytes.
pub(crate) fn npy(from: &mut impl Read, size: u64, path: &Path) -> Result<Tensor, NumpyError> {
    read_array(from, size, None, &Origin { path, array: "" })
}

/// Reads the dtype and shape of the array in a `.npy` file, without its elements.
///
/// # Errors
/// Fails where the file cannot be read, or holds no array that [`read_npy`] would take.
pub fn npy_type(path: impl AsRef<Path>) -> Result<ArrayType, NumpyError> {
    let path = path.as_ref();
    let (file, size) = open(path)?;
    let origin = Origin { path, array: "" };
    let (header, _) = read_header(&mut BufReader::new(file), size, &origin)?;
    Ok(header.array_type())
}

/// Reads the arrays of a `.npz` file, in its order. All of them are decompressed, whatever their sizes; for a file that
/// others made, [`Npz`] returns the sizes first.
pub fn read_npz(path: impl AsRef<Path>) -> Result<Vec<(String, Tensor)>, NumpyError> {
    Npz::open(path)?.read_all()
}

/// Reads the header of an array from a source of exactly `size` bytes, and checks that the array fills the rest.
/// Returns it with its length in bytes.
fn read_header(
    from: &mut impl Read,
    size: u64,
    origin: &Origin<'_>,
) -> Result<(Header, u64), NumpyError> {
    let (header, length) = Header::read(from, size).map_err(|e| match e {
        header::Failure::Io(e) => origin.ended(e),
        header::Failure::Bad(reason) => origin.bad(reason),
    })?;
    let need = match header.text {
        Some(text) => strings::stored_len(text, &header.shape),
        None => Tensor::size_of(header.dtype, &header.shape),
    };
    let need = need.map_err(|e| origin.bad(e.to_string()))?;
    let have = size.saturating_sub(length);
    if need as u64 != have {
        return Err(origin.bad(format!(
            "{} needs {need} bytes, the file holds {have}",
            signature(header.dtype, &header.shape)
        )));
    }
    Ok((header, length))
}

/// Reads an array from a source of exactly `size` bytes. Fails where its header is not `before`, the header that was
/// read earlier.
fn read_array(
    from: &mut impl Read,
    size: u64,
    before: Option<&Header>,
    origin: &Origin<'_>,
) -> Result<Tensor, NumpyError> {
    let (header, length) = read_header(from, size, origin)?;
    if before.is_some_and(|b| *b != header) {
        return Err(origin.bad("the file changed while it was read"));
    }
    let failed = |e: TensorError| origin.bad(e.to_string());
    let mut tensor = match header.text {
        // The bytes are turned into strings once they are there.
        Some(_) => Tensor::zeros(DType::U8, &[(size - length) as usize]),
        None => Tensor::zeros(header.dtype, &header.shape),
    }
    .map_err(failed)?;
    let Some(bytes) = tensor.bytes_mut() else {
        return Err(origin.bad("its buffer is shared"));
    };
    from.read_exact(bytes).map_err(|e| origin.ended(e))?;
    // An archive verifies its checksum when the end is read.
    match from.read(&mut [0]) {
        Ok(0) => {}
        Ok(_) => return Err(origin.bad("the file goes on after the array")),
        Err(e) => return Err(origin.ended(e)),
    }
    if let Some(text) = header.text {
        let decoded = strings::decode(text, &header, tensor.bytes());
        return decoded.map_err(|e| origin.bad(e));
    }
    if header.fortran && header.shape.len() > 1 {
        tensor = from_fortran(&tensor).map_err(failed)?;
    }
    tensor.check_elements().map_err(failed)?;
    Ok(tensor)
}

fn signature(dtype: DType, shape: &[usize]) -> String {
    format!("{dtype}{shape:?}")
}

/// Converts a tensor from column-major order, with the first axis fastest, to row-major order, with the last axis
/// fastest.
fn from_fortran(t: &Tensor) -> Result<Tensor, TensorError> {
    let mut out = Tensor::zeros(t.dtype(), t.shape())?;
    let (shape, width) = (t.shape(), t.dtype().width());
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

/// The dtype of the array that a tensor of a dtype is written as: numpy has neither bf16 nor narrow dtypes.
pub fn written_as(dtype: DType) -> DType {
    match dtype {
        DType::BF16 => DType::F32,
        dtype if dtype.is_narrow() => dtype.widened(),
        other => other,
    }
}

/// Writes one array, of the dtype that [`written_as`] says.
pub fn write_npy(path: impl AsRef<Path>, tensor: &Tensor) -> Result<(), NumpyError> {
    replace(path.as_ref(), |file| {
        let mut out = BufWriter::new(file);
        write_array(&mut out, tensor)?;
        out.flush()
    })
}

/// Writes arrays by name, uncompressed, each as [`write_npy`] does.
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
    replace(path, |file| {
        let whole = file.metadata()?.is_file();
        let to = BufWriter::new(file);
        match whole {
            true => write_zip(zip::ZipWriter::new(to), arrays),
            // Sizes cannot be filled in later in a pipe, and follow the arrays.
            false => write_zip(zip::ZipWriter::new_stream(to), arrays),
        }
    })
}

fn write_zip<W: Write + Seek>(
    mut zip: zip::ZipWriter<W>,
    arrays: &[(String, Tensor)],
) -> std::io::Result<()> {
    for (name, tensor) in arrays {
        // The form for sizes beyond 4 GiB, which numpy always writes.
        let options = SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored)
            .large_file(true);
        zip.start_file(format!("{name}.npy"), options)?;
        write_array(&mut zip, tensor)?;
    }
    zip.finish()?.flush()
}

fn write_array(to: &mut impl Write, tensor: &Tensor) -> std::io::Result<()> {
    if tensor.dtype().is_narrow() {
        let wide = tensor.widened().map_err(std::io::Error::other)?;
        return write_array(to, &wide);
    }
    if tensor.dtype() == DType::Str {
        return strings::write(to, tensor);
    }
    let descr = header::descr(written_as(tensor.dtype()));
    to.write_all(&Header::text(descr, tensor.shape()))?;
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

/// Writes a file beside `path`, then renames it to `path`. A path that cannot be renamed over (`/dev/stdout`) is
/// written directly.
fn replace(
    path: &Path,
    write: impl FnOnce(&mut File) -> std::io::Result<()>,
) -> Result<(), NumpyError> {
    let path = &target(path);
    let failed = |e| io("write", path, e);
    let special = std::fs::metadata(path).is_ok_and(|m| !m.is_file());
    if special {
        let mut file = File::options().write(true).open(path).map_err(failed)?;
        return write(&mut file).map_err(failed);
    }
    let mut draft = DraftFile::beside(path).map_err(failed)?;
    // Some file systems report only at a sync that they are full.
    let written = write(draft.file()).and_then(|()| draft.file().sync_all());
    if let Err(e) = written {
        // The error to report is that of the write, not of the removal.
        let _ = draft.discard();
        return Err(failed(e));
    }
    draft.complete(path).map_err(failed)
}

#[cfg(test)]
mod seeds;
#[cfg(test)]
mod tests;
