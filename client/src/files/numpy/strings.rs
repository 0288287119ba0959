//! Arrays of strings in numpy's files.

use std::io::Write;

use convoke_graph::tensor::{TensorError, element_count};
use convoke_graph::{DType, Tensor};

use super::from_fortran;
use super::header::{Header, StoredText};

/// Most bytes that are written for one array: numpy gives each string the room of the longest one.
const MOST_WRITTEN: u64 = 4 << 30;

/// Bytes that an array of strings has in a file.
pub(super) fn stored_len(text: StoredText, shape: &[usize]) -> Result<usize, TensorError> {
    // The table of the tensor must not be too large either.
    Tensor::size_of(DType::Str, shape)?;
    let width = text.width().zip(element_count(shape));
    let bytes = width.and_then(|(width, n)| width.checked_mul(n));
    let bytes = bytes.filter(|n| isize::try_from(*n).is_ok());
    bytes.ok_or_else(|| TensorError::TooLarge {
        dtype: DType::Str,
        shape: shape.to_vec(),
    })
}

/// The tensor of the strings that a file has in `bytes`.
pub(super) fn decode(text: StoredText, header: &Header, bytes: &[u8]) -> Result<Tensor, String> {
    let shape = &header.shape;
    let count = element_count(shape).unwrap_or(0);
    // Nothing in the file would bound the number of strings that have no room for a character.
    if count > 0 && text.width() == Some(0) {
        return Err("has strings without room for a character".into());
    }
    Tensor::check_size(DType::Str, shape, count.saturating_mul(8)).map_err(|e| e.to_string())?;
    let width = text.width().unwrap_or(0);
    let (mut all, mut ends) = (String::new(), Vec::with_capacity(count));
    for i in 0..count {
        let stored = bytes.get(i * width..(i + 1) * width).unwrap_or_default();
        let added = match text {
            StoredText::Wide(_) => wide(stored, &mut all),
            StoredText::Bytes(_) => {
                let end = stored.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
                let string = std::str::from_utf8(&stored[..end]).ok();
                string.map(|string| all.push_str(string))
            }
        };
        added.ok_or_else(|| format!("string {i} is not valid Unicode"))?;
        ends.push(all.len());
    }
    let string = |i: usize| {
        let start = i.checked_sub(1).map_or(0, |before| ends[before]);
        &all[start..ends[i]]
    };
    let made = match header.fortran && shape.len() > 1 {
        false => Tensor::of_strings(shape, (0..count).map(string)),
        true => {
            let places: Vec<u64> = (0..count as u64).collect();
            let places = Tensor::from_slice(shape, &places).and_then(|t| from_fortran(&t));
            let places = places.map_err(|e| e.to_string())?;
            let places = places.as_slice::<u64>().map_err(|e| e.to_string())?;
            Tensor::of_strings(shape, places.iter().map(|i| string(*i as usize)))
        }
    };
    made.map_err(|e| e.to_string())
}

/// Adds a string of characters of four bytes; `None` where one of them is no character.
fn wide(stored: &[u8], to: &mut String) -> Option<()> {
    let code = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let codes = stored.chunks_exact(4).map(code);
    let end = codes.clone().rposition(|c| c != 0).map_or(0, |at| at + 1);
    for code in codes.take(end) {
        to.push(char::from_u32(code)?);
    }
    Some(())
}

/// Writes a tensor of strings, header included.
pub(super) fn write(to: &mut impl Write, tensor: &Tensor) -> std::io::Result<()> {
    let strings = tensor.strings().map_err(std::io::Error::other)?;
    let longest = strings.iter().map(|s| s.chars().count()).max();
    // numpy has no type of strings without characters.
    let longest = longest.unwrap_or(0).max(1);
    let bytes = (longest as u64 * 4).saturating_mul(strings.len() as u64);
    if bytes > MOST_WRITTEN {
        return Err(std::io::Error::other(format!(
            "numpy stores {} strings of up to {longest} characters in {bytes} bytes, above the limit of {MOST_WRITTEN}",
            strings.len()
        )));
    }
    to.write_all(&Header::text(&format!("<U{longest}"), tensor.shape()))?;
    let mut stored = Vec::with_capacity(longest * 4);
    for string in strings.iter() {
        stored.clear();
        for c in string.chars() {
            stored.extend(u32::from(c).to_le_bytes());
        }
        stored.resize(longest * 4, 0);
        to.write_all(&stored)?;
    }
    Ok(())
}
