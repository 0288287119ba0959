//! JPEG 2000: bare codestreams, and those in JP2 files.

mod header;

use hayro_jpeg2000::{ColorSpace, DecodeSettings, DecoderContext, Image};

use super::picture::{DECODER, Picture, Sample, checked, refused, reserved};
use crate::cpu::kernel::{KernelFailure, OpLaunch, write};

/// The first bytes of a JP2 file.
const BOX: &[u8] = b"\x00\x00\x00\x0cjP  \r\n\x87\n";
/// The first bytes of a codestream.
const STREAM: &[u8] = b"\xff\x4f\xff\x51";
/// Memory beside the samples, for each pixel: coefficients and samples of four components in f32, and the blocks
/// and layers that [`header::check`] allows.
const BESIDE: u64 = 64;
/// Memory for each tile: its description and those of its components, with their steps of quantisation.
const OF_TILE: u64 = 8 << 10;

/// Whether a file is JPEG 2000.
pub(super) fn is(file: &[u8]) -> bool {
    file.starts_with(BOX) || file.starts_with(STREAM)
}

/// Decodes a file.
pub(super) fn read(file: &[u8], call: &OpLaunch<'_, '_>) -> Result<Picture, KernelFailure> {
    let tiles = header::check(file)?;
    let of_tiles = reserved(call, tiles * OF_TILE)?;
    let settings = DecodeSettings {
        strict: true,
        ..DecodeSettings::default()
    };
    let image = Image::new(file, &settings).map_err(refused)?;
    let pixels = checked(image.width().into(), image.height().into())?;
    let colours = match image.color_space() {
        ColorSpace::CMYK => return Err(refused("its colours are CMYK; save it as RGB")),
        other => other.num_channels(),
    };
    let channels = usize::from(colours) + usize::from(image.has_alpha());
    if !matches!(colours, 1 | 3) {
        return Err(refused(format!(
            "a pixel has {colours} colours, and not 1 or 3"
        )));
    }
    let mut samples = reserved(call, pixels * channels as u64)?;
    let _beside = (reserved(call, pixels * BESIDE + DECODER)?, of_tiles);
    let mut context = DecoderContext::default();
    let picture = image.decode(&mut context).map_err(refused)?;
    let components = picture.components();
    let whole = |samples: &[f32]| samples.len() as u64 == pixels;
    if components.len() != channels || !components.iter().all(|c| whole(c.samples())) {
        return Err(refused("its components differ in size"));
    }
    picture.store_u8_into(write::<u8>(&mut samples)?);
    Ok(Picture {
        samples,
        width: image.width() as usize,
        height: image.height() as usize,
        channels,
        sample: Sample::U8,
    })
}
