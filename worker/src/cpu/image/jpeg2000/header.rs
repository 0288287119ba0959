//! The headers of a JPEG 2000 file, read before the decoder is: it makes planes, code blocks and layers as they say.
//!
//! ```text
//! JP2:         box, box, jp2h (cmap, pclr, ..), jp2c (codestream)
//! codestream:  SOC, SIZ, COD, COC, .., tile-part, tile-part, .., EOC
//! tile-part:   SOT, COD, COC, .., SOD, data
//! ```

use super::super::picture::refused;
use super::STREAM;
use crate::cpu::kernel::KernelFailure;

/// The most components of an image, and of a table of colours.
const MOST_COMPONENTS: usize = 4;
/// The binary logarithm of the fewest samples of a block, which an encoder makes of 4,096.
const SMALLEST_BLOCK: u8 = 8;
/// The most layers.
const MOST_LAYERS: u16 = 32;
/// The most markers of all headers.
const MOST_MARKERS: usize = 1 << 18;
/// The most tiles, which are enough for an image of 8192 by 8192 samples in tiles of 128 by 128.
const MOST_TILES: u64 = 4096;
/// The most bytes of steps of quantisation: two for each band of 32 levels.
const MOST_STEPS: usize = 2 * (3 * 32 + 1);

/// The markers SIZ, COD, COC, QCD, QCC, RGN, SOT, SOD and EOC.
const SIZES: u16 = 0xFF51;
const CODING: u16 = 0xFF52;
const CODING_OF_COMPONENT: u16 = 0xFF53;
const STEPS: u16 = 0xFF5C;
const STEPS_OF_COMPONENT: u16 = 0xFF5D;
const REGION: u16 = 0xFF5E;
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

/// Refuses files for which the decoder would need more memory than a bounded number of bytes for each pixel and each tile.
/// Returns the number of tiles.
pub(super) fn check(file: &[u8]) -> Result<u64, KernelFailure> {
    if file.starts_with(STREAM) {
        return check_stream(file);
    }
    let mut tiles = None;
    for (kind, body) in boxes(file) {
        match kind {
            b"jp2h" => check_colours(body)?,
            b"jp2c" => tiles = tiles.max(Some(check_stream(body)?)),
            _ => {}
        }
    }
    tiles.ok_or_else(|| refused("there is no codestream"))
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

/// Checks the number of tiles, which follows from the sizes of the grid and of a tile and from the tiles' offset.
fn check_tiles(sizes: &[u8]) -> Result<u64, KernelFailure> {
    let along = |axis: usize| {
        let word = |at: usize| u32_at(sizes, at + 4 * axis);
        let (end, side, begin) = (word(2)?, word(18)?, word(26)?);
        let tiles = end.checked_sub(begin)?.checked_add(side.checked_sub(1)?)? / side;
        u64::try_from(tiles).ok()
    };
    let tiles = along(0).zip(along(1)).map(|(x, y)| x.saturating_mul(y));
    match tiles {
        Some(tiles @ 1..=MOST_TILES) => Ok(tiles),
        None | Some(0) => Err(refused("the sizes of its tiles are invalid")),
        Some(tiles) => Err(refused(format!(
            "it has {tiles} tiles; at most {MOST_TILES} are decoded"
        ))),
    }
}

/// Refuses a segment that is longer or shorter than the part that the decoder reads of it, since the decoder continues
/// right behind that part, whatever length the segment states.
fn check_length(marker: u16, body: &[u8]) -> Result<(), KernelFailure> {
    let at = |at: usize| body.get(at).copied().ok_or_else(truncated);
    let precincts = |style: u8, levels: u8| match style & 1 {
        1 => usize::from(levels) + 1,
        _ => 0,
    };
    // Steps are one byte each, or two, or two in all.
    let steps = |style: u8, len: usize| match style & 0x1F {
        _ if len > MOST_STEPS => false,
        0 => true,
        1 => len == 2,
        _ => len.is_multiple_of(2),
    };
    let fits = match marker {
        SIZES => body.len() == 36 + 3 * usize::from(u16_at(body, 34).ok_or_else(truncated)?),
        CODING => body.len() == 10 + precincts(at(0)?, at(5)?),
        CODING_OF_COMPONENT => body.len() == 7 + precincts(at(1)?, at(2)?),
        STEPS => steps(at(0)?, body.len() - 1),
        STEPS_OF_COMPONENT => steps(at(1)?, body.len() - 2),
        REGION => body.len() == 3,
        PART => body.len() == 8,
        // These have no length.
        0xFF30..=0xFF3F => false,
        _ => true,
    };
    match fits {
        true => Ok(()),
        false => Err(refused(format!(
            "its segment {marker:x} has a wrong length"
        ))),
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

fn check_stream(stream: &[u8]) -> Result<u64, KernelFailure> {
    let (mut at, mut next, mut tiles) = (STREAM.len() - 2, None, 1);
    for _ in 0..MOST_MARKERS {
        let marker = u16_at(stream, at).ok_or_else(truncated)?;
        match (marker, next) {
            (END, _) => return Ok(tiles),
            (DATA, Some(begin)) if at < begin && begin < stream.len() => {
                at = begin;
                continue;
            }
            (DATA, _) => return Ok(tiles),
            _ => {}
        }
        let len = usize::from(u16_at(stream, at + 2).ok_or_else(truncated)?.max(2));
        let body = stream.get(at + 4..at + 2 + len).ok_or_else(truncated)?;
        let style = |at: usize| body.get(at).copied().ok_or_else(truncated);
        match marker {
            SIZES => {
                check_components(u16_at(body, 34))?;
                tiles = check_tiles(body)?;
            }
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
        check_length(marker, body)?;
        at += 2 + len;
    }
    Err(refused("it has too many markers"))
}
