//! Tensors of strings.
//!
//! ```text
//! table: a u64 for each string, in little-endian order     text: UTF-8, one string after the other
//!        (where its text ends)
//! ```
//!
//! Table and text are one range of bytes, so that frames, artifacts and hashes carry strings as they carry numbers.
//!
//! Invariants
//! 1. The ends ascend, the last one is the length of the text, and each of them lies between two characters: equal
//!    strings have equal bytes. Whatever comes from outside is checked for that, and so is each tensor that is read.
//! 2. Strings fill the buffer of their tensor, whose length therefore says how long the text is.
//! 3. The bytes of one tensor are at most [`MOST_BYTES`].

pub(crate) mod layout;

use crate::block::Block;
use crate::dtype::DType;
use crate::tensor::error::TensorError;
use crate::tensor::{Shape, Tensor, element_count};
use layout::ENTRY;

pub use layout::{ESTIMATE, MOST_BYTES, table_len};

/// Bytes of a tensor of strings with these lengths. Fails above [`MOST_BYTES`].
pub fn size_of(lengths: impl Iterator<Item = usize>) -> Result<usize, TensorError> {
    let sum = lengths.fold(0usize, |sum, len| {
        sum.saturating_add(len.saturating_add(ENTRY))
    });
    match sum <= MOST_BYTES {
        true => Ok(sum),
        false => Err(TensorError::TooMuchText { bytes: sum }),
    }
}

/// Writes strings one after the other into the bytes of a tensor.
pub struct Writer<'a> {
    /// The entries that are still to be written.
    table: std::slice::ChunksExactMut<'a, u8>,
    text: &'a mut [u8],
    /// Bytes of text that are written.
    at: usize,
}

impl<'a> Writer<'a> {
    /// A writer of `count` strings, which have to fill `bytes`.
    pub fn new(bytes: &'a mut [u8], count: usize) -> Result<Writer<'a>, TensorError> {
        let parts = table_len(count).and_then(|table| bytes.split_at_mut_checked(table));
        let (table, text) = parts.ok_or_else(other_length)?;
        Ok(Writer {
            table: table.chunks_exact_mut(ENTRY),
            text,
            at: 0,
        })
    }

    /// Adds a part of the current string. Fails where the bytes have no room for it.
    pub fn part(&mut self, part: &str) -> Result<(), TensorError> {
        let to = self
            .text
            .get_mut(self.at..)
            .and_then(|rest| rest.get_mut(..part.len()));
        to.ok_or_else(other_length)?
            .copy_from_slice(part.as_bytes());
        self.at += part.len();
        Ok(())
    }

    /// Ends the current string.
    pub fn end(&mut self) -> Result<(), TensorError> {
        let entry = self.table.next().ok_or_else(other_length)?;
        entry.copy_from_slice(&(self.at as u64).to_le_bytes());
        Ok(())
    }

    /// Fails unless the strings fill the bytes.
    pub fn finish(self) -> Result<(), TensorError> {
        match self.table.len() == 0 && self.at == self.text.len() {
            true => Ok(()),
            false => Err(other_length()),
        }
    }
}

fn other_length() -> TensorError {
    not_strings("they are of another length")
}

fn not_strings(reason: &'static str) -> TensorError {
    TensorError::NotStrings { reason }
}

/// The strings of a tensor, which were checked.
#[derive(Debug, Clone, Copy)]
pub struct Strings<'a> {
    /// By string, where its text ends.
    table: &'a [[u8; ENTRY]],
    text: &'a str,
}

impl<'a> Strings<'a> {
    fn new(bytes: &'a [u8], count: usize) -> Result<Strings<'a>, TensorError> {
        let table = table_len(count).and_then(|table| bytes.split_at_checked(table));
        let (table, text) = table.ok_or_else(|| not_strings("the table is cut short"))?;
        let text = std::str::from_utf8(text).map_err(|_| not_strings("the text is not UTF-8"))?;
        let strings = Strings {
            table: bytemuck::cast_slice(table),
            text,
        };
        let mut before = 0;
        for i in 0..count {
            let end = strings.end(i);
            if end < before || !text.is_char_boundary(end) {
                return Err(not_strings("a string ends outside of the text"));
            }
            before = end;
        }
        match before == text.len() {
            true => Ok(strings),
            false => Err(not_strings("the text goes on after the last string")),
        }
    }

    fn end(&self, i: usize) -> usize {
        let end = self
            .table
            .get(i)
            .map_or(0, |entry| u64::from_le_bytes(*entry));
        usize::try_from(end).unwrap_or(usize::MAX)
    }

    /// How many strings there are.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// String `i`; empty where there is no such string.
    pub fn get(&self, i: usize) -> &'a str {
        let start = i.checked_sub(1).map_or(0, |before| self.end(before));
        self.text.get(start..self.end(i)).unwrap_or_default()
    }

    /// All strings, row-major.
    pub fn iter(self) -> impl ExactSizeIterator<Item = &'a str> + Clone {
        (0..self.len()).map(move |i| self.get(i))
    }
}

impl Tensor {
    /// Makes a tensor of strings, which are row-major. Fails where they do not fill the shape, or are too long.
    pub fn from_strings<S: AsRef<str>>(
        shape: &[usize],
        strings: &[S],
    ) -> Result<Tensor, TensorError> {
        Self::of_strings(shape, strings.iter().map(AsRef::as_ref))
    }

    /// Makes a tensor of strings, as [`Tensor::from_strings`] does.
    pub fn of_strings<'a>(
        shape: &[usize],
        strings: impl ExactSizeIterator<Item = &'a str> + Clone,
    ) -> Result<Tensor, TensorError> {
        let need = Self::size_of(DType::Str, shape)?;
        if element_count(shape) != Some(strings.len()) {
            return Err(TensorError::WrongLength {
                dtype: DType::Str,
                shape: shape.to_vec(),
                need,
                got: table_len(strings.len()).unwrap_or(usize::MAX),
            });
        }
        let bytes = size_of(strings.clone().map(str::len))?;
        if let Some(none) = Self::inline(DType::Str, shape, bytes) {
            return Ok(none);
        }
        let mut block = Block::zeroed(bytes)?;
        let mut writer = Writer::new(block.bytes_mut(), strings.len())?;
        for string in strings {
            writer.part(string)?;
            writer.end()?;
        }
        writer.finish()?;
        Ok(Self::from_block(DType::Str, shape, block))
    }

    /// The strings of the tensor. Fails where its dtype is another, or its bytes are no strings.
    pub fn strings(&self) -> Result<Strings<'_>, TensorError> {
        match self.dtype() {
            DType::Str => Strings::new(self.bytes(), self.elements()),
            have => Err(TensorError::WrongDType {
                have,
                want: DType::Str,
            }),
        }
    }

    /// The strings of the tensor, row-major. Fails where its dtype is another.
    pub fn to_strings(&self) -> Result<Vec<String>, TensorError> {
        Ok(self.strings()?.iter().map(String::from).collect())
    }

    /// The rows from `start` on that `shape` has room for, of a tensor of strings.
    pub(crate) fn string_rows(&self, start: usize, shape: &Shape) -> Option<Tensor> {
        let row = element_count(shape.get(1..)?)?;
        let (first, strings) = (start.checked_mul(row)?, self.strings().ok()?);
        let rows = (0..element_count(shape)?).map(|i| strings.get(first + i));
        Self::of_strings(shape, rows).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Tensor {
        Tensor::from_strings(&[3, 2], &["a", "", "été", "日本", "\0", "end"]).unwrap()
    }

    #[test]
    fn strings_come_back() {
        let t = some();
        let want = ["a", "", "été", "日本", "\0", "end"];
        assert_eq!(t.to_strings().unwrap(), want);
        assert_eq!(t.byte_len(), 6 * 8 + 1 + 5 + 6 + 1 + 3);
        assert_eq!(
            Tensor::from_bytes(DType::Str, &[3, 2], t.bytes()),
            Ok(t.clone())
        );
        let coded = crate::codec::encode(&t).unwrap();
        assert_eq!(crate::codec::decode::<Tensor>(&coded).unwrap(), t);
        let flat = t.reshape(&[6]).unwrap();
        assert_eq!(flat.strings().unwrap().get(3), "日本");
        assert_eq!((flat.byte_len(), t.digest()), (t.byte_len(), flat.digest()));
        assert_eq!(t.signature(), "string[3, 2]");
    }

    #[test]
    fn rows_are_tensors_of_their_own() {
        let check = |from, to, want: &[&str]| {
            let rows = some().outer_range(from, to).unwrap();
            assert_eq!(rows, Tensor::from_strings(&[to - from, 2], want).unwrap());
        };
        check(0, 3, &["a", "", "été", "日本", "\0", "end"]);
        check(1, 2, &["été", "日本"]);
        check(2, 2, &[]);
        assert!(some().outer_range(2, 4).is_none());
    }

    #[test]
    fn no_strings_and_empty_ones() {
        let none = Tensor::zeros(DType::Str, &[0, 4]).unwrap();
        assert_eq!((none.byte_len(), none.to_strings().unwrap().len()), (0, 0));
        assert_eq!(Tensor::from_strings::<&str>(&[0, 4], &[]), Ok(none));
        let empty = Tensor::zeros(DType::Str, &[]).unwrap();
        assert_eq!(empty.to_strings().unwrap(), [""]);
        assert_eq!(Tensor::from_strings(&[], &[""]), Ok(empty));
    }

    #[test]
    fn bytes_that_are_no_strings_are_refused() {
        let check = |shape: &[usize], ends: &[u64], text: &[u8], ok: bool| {
            let mut bytes: Vec<u8> = ends.iter().flat_map(|e| e.to_le_bytes()).collect();
            bytes.extend(text);
            let made = Tensor::from_bytes(DType::Str, shape, &bytes);
            assert_eq!(made.is_ok(), ok, "{shape:?} {ends:?} {text:?}: {made:?}");
        };
        check(&[2], &[1, 3], b"abc", true);
        check(&[2], &[1, 2], b"abc", false);
        check(&[2], &[1, 4], b"abc", false);
        check(&[2], &[2, 1], b"abc", false);
        check(&[2], &[u64::MAX, 3], b"abc", false);
        check(&[2], &[4], b"", false);
        check(&[0], &[], b"a", false);
        check(&[1], &[2], "é".as_bytes(), true);
        check(&[2], &[1, 2], "é".as_bytes(), false);
        check(&[1], &[1], &[0xff], false);
        check(&[usize::MAX, 2], &[], b"", false);
        check(&[1 << 60], &[], b"", false);
        let long = Tensor::check_size(DType::Str, &[1], MOST_BYTES + 1);
        assert!(matches!(long, Err(TensorError::TooMuchText { .. })));
    }

    #[test]
    fn strings_have_to_fill_their_shape() {
        assert!(Tensor::from_strings(&[3], &["a", "b"]).is_err());
        assert!(Tensor::scalar(1f32).strings().is_err());
        assert!(some().to_i64s().is_none() && some().as_slice::<u64>().is_err());
    }
}
