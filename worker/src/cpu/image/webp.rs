//! The frames of a WebP file, whose own sizes its decoder takes before it compares them with the image's.
//!
//! ```text
//! RIFF size WEBP: chunk, chunk, ..
//! chunk:          kind, size, body, padding to an even length
//! ANMF:           16 bytes, chunk, chunk, ..
//! ```

use super::picture::refused;
use crate::cpu::kernel::KernelFailure;

/// The bytes before the first chunk of a file, and of an animation's frame.
const FILE_HEAD: usize = 12;
const FRAME_HEAD: usize = 16;

/// The chunks of `bytes`, with their kinds.
fn chunks(mut bytes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    std::iter::from_fn(move || {
        let kind = bytes.get(..4)?;
        let size = bytes.get(4..)?.first_chunk().copied()?;
        let size = usize::try_from(u32::from_le_bytes(size)).ok()?;
        let rest = bytes.get(8..)?;
        let body = rest.get(..size.min(rest.len()))?;
        let padded = size.saturating_add(size % 2);
        bytes = rest.get(padded..).unwrap_or_default();
        Some((kind, body))
    })
}

/// The width and height that a frame of lossy or lossless coding has of its own.
fn sides(kind: &[u8], body: &[u8]) -> Option<(u32, u32)> {
    match kind {
        b"VP8 " => {
            let side = |at: usize| {
                let bytes = body.get(at..)?.first_chunk().copied()?;
                Some(u32::from(u16::from_le_bytes(bytes) & 0x3FFF))
            };
            Some((side(6)?, side(8)?))
        }
        b"VP8L" => {
            let bits = body.get(1..)?.first_chunk().copied()?;
            let bits = u32::from_le_bytes(bits);
            Some(((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1))
        }
        _ => None,
    }
}

/// Refuses a file with a frame that is larger than the image.
pub(super) fn check(file: &[u8], width: u32, height: u32) -> Result<(), KernelFailure> {
    for (kind, body) in chunks(file.get(FILE_HEAD..).unwrap_or_default()) {
        let within = match kind {
            b"ANMF" => body.get(FRAME_HEAD..).unwrap_or_default(),
            _ => &[],
        };
        for (kind, body) in chunks(within).chain([(kind, body)]) {
            if let Some((across, down)) = sides(kind, body)
                && (across > width || down > height)
            {
                return Err(refused(format!(
                    "a frame of {across} by {down} pixels is larger than the image, which has {width} by {height}"
                )));
            }
        }
    }
    Ok(())
}
