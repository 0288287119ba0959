//! The headers of a JPEG 2000 file, read before the decoder is: it makes planes, code blocks and layers as they say.
//!
//! ```text
//! JP2:         box, box, jp2h (cmap, pclr, ..), jp2c (codestream)
//! codestream:  SOC, SIZ, COD, COC, .., tile-part, tile-part, .., EOC
//! tile-part:   SOT, COD, COC, .., SOD, data
//! ```

use super::super::refused;
use super::STREAM;
use crate::cpu::KernelFailure;

/// The most components of an image, and of a table of colours.
const MOST_COMPONENTS: usize = 4;
/// The binary logarithm of the fewest samples of a block, which an encoder makes of 4,096.
const SMALLEST_BLOCK: u8 = 8;
/// The most layers.
const MOST_LAYERS: u16 = 32;
/// The most markers of all headers.
const MOST_MARKERS: usize = 1 << 18;

/// The markers SIZ, COD, COC, SOT, SOD and EOC.
const SIZES: u16 = 0xFF51;
const CODING: u16 = 0xFF52;
const CODING_OF_COMPONENT: u16 = 0xFF53;
const PART: u16 = 0xFF90;
const DATA: u16 = 0xFF93;
const END: u16 = 0xFFD9;

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u16::from_be_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..)?.first_chunk().copied()?;
    usize::try_from(u32::from_be_bytes(word)).ok()
}

fn truncated() -> KernelFailure {
    refused("the file ends within its header")
}

/// The boxes of `bytes`, with their kinds.
fn boxes(mut bytes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    std::iter::from_fn(move || {
        let (kind, len) = (bytes.get(4..8)?, u32_at(bytes, 0)?);
        let (head, len) = match len {
            0 => (8, bytes.len()),
            1 => (
                16,
                u32_at(bytes, 12).filter(|_| u32_at(bytes, 8) == Some(0))?,
            ),
            len => (8, len),
        };
        let body = bytes.get(head..len.min(bytes.len()))?;
        bytes = bytes.get(len..).unwrap_or_default();
        Some((kind, body))
    })
}

/// Refuses files for which the decoder would need more memory than a bounded number of bytes for each pixel.
pub(super) fn check(file: &[u8]) -> Result<(), KernelFailure> {
    if file.starts_with(STREAM) {
        return check_stream(file);
    }
    let mut streams = 0;
    for (kind, body) in boxes(file) {
        match kind {
            b"jp2h" => check_colours(body)?,
            b"jp2c" => {
                streams += 1;
                check_stream(body)?;
            }
            _ => {}
        }
    }
    match streams {
        0 => Err(refused("there is no codestream")),
        _ => Ok(()),
    }
}

fn check_colours(header: &[u8]) -> Result<(), KernelFailure> {
    for (kind, body) in boxes(header) {
        let planes = match kind {
            b"cmap" => body.len().div_ceil(4),
            b"pclr" => body.get(2).copied().unwrap_or(0).into(),
            _ => 0,
        };
        if planes > MOST_COMPONENTS {
            return Err(refused(format!(
                "its table of colours has {planes} components; at most {MOST_COMPONENTS} are decoded"
            )));
        }
    }
    Ok(())
}

fn check_components(count: Option<u16>) -> Result<(), KernelFailure> {
    match usize::from(count.ok_or_else(truncated)?) {
        0 => Err(refused("it has no components")),
        1..=MOST_COMPONENTS => Ok(()),
        count => Err(refused(format!(
            "it has {count} components; at most {MOST_COMPONENTS} are decoded"
        ))),
    }
}

/// Checks the sizes of blocks and precincts, whose description begins at `levels` with the number of levels.
fn check_blocks(body: &[u8], has_precincts: bool, levels: usize) -> Result<(), KernelFailure> {
    let byte = |at: usize| body.get(levels + at).copied().ok_or_else(truncated);
    let (across, down) = ((byte(1)? & 15) + 2, (byte(2)? & 15) + 2);
    let precincts = match has_precincts {
        true => body.get(levels + 5..).unwrap_or_default(),
        false => &[],
    };
    let mut blocks = vec![(across, down)];
    for (level, sides) in precincts.iter().enumerate() {
        // A precinct of any but the first level has half as many samples of a band.
        let halved = |side: u8| side.saturating_sub(u8::from(level > 0));
        blocks.push((across.min(halved(sides & 15)), down.min(halved(sides >> 4))));
    }
    match blocks
        .iter()
        .all(|(across, down)| across + down >= SMALLEST_BLOCK)
    {
        true => Ok(()),
        false => Err(refused("its blocks of samples are too small")),
    }
}

fn check_layers(count: Option<u16>) -> Result<(), KernelFailure> {
    match count.ok_or_else(truncated)? {
        0..=MOST_LAYERS => Ok(()),
        count => Err(refused(format!(
            "it has {count} layers; at most {MOST_LAYERS} are decoded"
        ))),
    }
}

fn check_stream(stream: &[u8]) -> Result<(), KernelFailure> {
    let (mut at, mut next) = (STREAM.len() - 2, None);
    for _ in 0..MOST_MARKERS {
        let marker = u16_at(stream, at).ok_or_else(truncated)?;
        match (marker, next) {
            (END, _) => return Ok(()),
            (DATA, Some(begin)) if at < begin && begin < stream.len() => {
                at = begin;
                continue;
            }
            (DATA, _) => return Ok(()),
            _ => {}
        }
        let len = usize::from(u16_at(stream, at + 2).ok_or_else(truncated)?.max(2));
        let body = stream.get(at + 4..at + 2 + len).ok_or_else(truncated)?;
        let style = |at: usize| body.get(at).copied().ok_or_else(truncated);
        match marker {
            SIZES => check_components(u16_at(body, 34))?,
            CODING => {
                check_layers(u16_at(body, 2))?;
                check_blocks(body, style(0)? & 1 == 1, 5)?;
            }
            CODING_OF_COMPONENT => check_blocks(body, style(1)? & 1 == 1, 2)?,
            PART => {
                next = match u32_at(body, 2).ok_or_else(truncated)? {
                    0 => None,
                    len => Some(at.saturating_add(len)),
                };
            }
            _ => {}
        }
        at += 2 + len;
    }
    Err(refused("it has too many markers"))
}
