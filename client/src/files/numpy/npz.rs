//! `.npz`: a zip archive whose members are `.npy` files.
//!
//! Invariants
//! 1. Before an array is asked for, no more of it is decompressed than its header.
//! 2. Reading an array decompresses the bytes that its header declares and one more, never the rest of its member.
//! 3. The number of members that are kept in memory is bounded by [`MOST_MEMBERS`], whatever the file declares.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use convoke_graph::tensor::Tensor;
use zip::read::OwnedZipFileEntry;
use zip::unstable::read::ZipIterable;
use zip::{CompressionMethod, ZipReadOptions};

use super::header::Header;
use super::{NumpyError, Origin, open, read_array, read_header};
use crate::model::signature::ArrayType;

/// The most members that a `.npz` file may have. No known model has as many inputs.
pub const MOST_MEMBERS: usize = 4096;

/// The greatest ratio by which deflate can compress.
const MOST_COMPRESSION: u64 = 1032;

/// An open `.npz` file whose arrays are known by name, dtype and shape, and are read one by one.
///
/// ```no_run
/// # fn f() -> Result<(), convoke::numpy::NumpyError> {
/// let mut file = convoke::numpy::Npz::open("inputs.npz")?;
/// for (name, array) in file.arrays() {
///     println!("{name}: {array}");
/// }
/// let image = file.read("image")?;
/// # Ok(()) }
/// ```
pub struct Npz<R = BufReader<File>> {
    path: PathBuf,
    reader: R,
    arrays: Vec<Array>,
}

struct Array {
    name: String,
    header: Header,
    entry: OwnedZipFileEntry,
}

impl Npz {
    /// Opens a file and reads the headers of its arrays.
    ///
    /// # Errors
    /// Fails where the file cannot be read, is not a `.npz`, has more than [`MOST_MEMBERS`] members, holds two arrays
    /// of one name, or holds an array that cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Npz, NumpyError> {
        let path = path.as_ref();
        let (file, size) = open(path)?;
        Npz::new(BufReader::new(file), size, path)
    }
}

impl<R: Read + Seek> Npz<R> {
    /// Reads the headers in an archive of `size` bytes, which errors call `path`.
    pub(crate) fn new(mut reader: R, size: u64, path: &Path) -> Result<Npz<R>, NumpyError> {
        let not_npz = |e: zip::result::ZipError| NumpyError::NotNpz {
            path: path.to_owned(),
            reason: e.to_string(),
        };
        let mut members = Vec::new();
        // The archive is read entry by entry, so that the number of entries is checked, and that no two have one name.
        let archive = ZipIterable::try_new(&mut reader, zip::read::Config::default());
        let mut archive = archive.map_err(not_npz)?;
        if archive.len() > MOST_MEMBERS {
            return Err(NumpyError::TooMany {
                path: path.to_owned(),
                members: archive.len(),
            });
        }
        for entry in archive.files().map_err(not_npz)? {
            let entry = entry.map_err(not_npz)?;
            let name = entry.name().map_err(not_npz)?;
            // Other members of the archive are not numpy's.
            if let Some(name) = name.strip_suffix(".npy").map(str::to_owned) {
                members.push((name, OwnedZipFileEntry::from(entry)));
            }
        }
        let mut names = HashSet::new();
        let twice = members
            .iter()
            .find(|(name, _)| !names.insert(name.as_str()));
        if let Some((name, _)) = twice {
            return Err(NumpyError::Duplicate {
                path: path.to_owned(),
                array: name.clone(),
            });
        }
        // The bytes of the file that are left for the next arrays: no two arrays may be made of the same bytes.
        let mut left = size;
        let mut arrays = Vec::with_capacity(members.len());
        for (name, entry) in members {
            let origin = Origin { path, array: &name };
            let (size, held) = (entry.size(), entry.compressed_size());
            let possible = match entry.compression() {
                CompressionMethod::Stored => held,
                _ => held.saturating_mul(MOST_COMPRESSION),
            };
            let rest = left.checked_sub(held).filter(|_| size <= possible);
            let Some(rest) = rest else {
                return Err(origin.bad(format!(
                    "declares {size} bytes, more than the file can hold"
                )));
            };
            left = rest;
            let opened = entry.as_ref();
            let opened = opened.with_reader(&mut reader, ZipReadOptions::default());
            let mut member = opened.map_err(not_npz)?;
            let (header, _) = read_header(&mut member, size, &origin)?;
            drop(member);
            arrays.push(Array {
                name,
                header,
                entry,
            });
        }
        Ok(Npz {
            path: path.to_owned(),
            reader,
            arrays,
        })
    }

    /// Name, dtype and shape of each array, in the file's order.
    pub fn arrays(&self) -> impl Iterator<Item = (&str, ArrayType)> {
        self.arrays
            .iter()
            .map(|a| (&*a.name, a.header.array_type()))
    }

    /// Reads the array of this name.
    ///
    /// # Errors
    /// Fails where the file has no such array, and where the array cannot be read or is damaged.
    pub fn read(&mut self, name: &str) -> Result<Tensor, NumpyError> {
        let missing = || NumpyError::Missing {
            path: self.path.clone(),
            array: name.to_owned(),
        };
        let at = self.arrays.iter().position(|a| a.name == name);
        self.read_at(at.ok_or_else(missing)?)
    }

    /// Reads all arrays, in the file's order.
    pub(crate) fn read_all(mut self) -> Result<Vec<(String, Tensor)>, NumpyError> {
        let mut all = Vec::with_capacity(self.arrays.len());
        for i in 0..self.arrays.len() {
            let tensor = self.read_at(i)?;
            all.push((std::mem::take(&mut self.arrays[i].name), tensor));
        }
        Ok(all)
    }

    fn read_at(&mut self, index: usize) -> Result<Tensor, NumpyError> {
        let Array {
            name,
            header,
            entry,
        } = &self.arrays[index];
        let path = &self.path;
        let origin = Origin { path, array: name };
        let size = entry.size();
        let entry = entry.as_ref();
        let opened = entry.with_reader(&mut self.reader, ZipReadOptions::default());
        let mut member = opened.map_err(|e| origin.bad(e.to_string()))?;
        read_array(&mut member, size, Some(header), &origin)
    }
}
