//! BMP, PNG, PNM, TIFF and WebP: of several images in a file, the first.

use std::io::Cursor;

use image::{ColorType, ImageDecoder, ImageFormat, ImageReader, Limits};

use super::picture::{DECODER, Picture, Sample, checked, refused, reserved};
use super::webp;
use crate::cpu::kernel::{KernelFailure, OpLaunch, write};

/// Decodes a file.
pub(super) fn read(
    file: &[u8],
    format: ImageFormat,
    call: &OpLaunch<'_, '_>,
) -> Result<Picture, KernelFailure> {
    // Tables of colours, text and profiles are read before the size of the image is known.
    let header = reserved(call, DECODER)?;
    let limits = |most: u64| {
        let mut limits = Limits::no_limits();
        limits.max_alloc = Some(most);
        limits
    };
    let mut reader = ImageReader::with_format(Cursor::new(file), format);
    reader.limits(limits(DECODER));
    let mut decoder = reader.into_decoder().map_err(refused)?;
    let (width, height) = decoder.dimensions();
    checked(width.into(), height.into())?;
    if format == ImageFormat::WebP {
        webp::check(file, width, height)?;
    }
    let (channels, sample) = match decoder.color_type() {
        ColorType::L8 => (1, Sample::U8),
        ColorType::La8 => (2, Sample::U8),
        ColorType::Rgb8 => (3, Sample::U8),
        ColorType::Rgba8 => (4, Sample::U8),
        ColorType::L16 => (1, Sample::U16),
        ColorType::La16 => (2, Sample::U16),
        ColorType::Rgb16 => (3, Sample::U16),
        ColorType::Rgba16 => (4, Sample::U16),
        ColorType::Rgb32F => (3, Sample::F32),
        ColorType::Rgba32F => (4, Sample::F32),
        other => return Err(refused(format!("pixels of {other:?} are not known"))),
    };
    drop(header);
    let bytes = decoder.total_bytes();
    let each = match format {
        // Its decoder minds no limit. An animation has a frame, a canvas, planes and an alpha channel.
        ImageFormat::WebP => 6,
        _ => 2,
    };
    let beside = bytes.saturating_mul(each).saturating_add(DECODER);
    let mut samples = reserved(call, bytes)?;
    let _beside = reserved(call, beside)?;
    decoder.set_limits(limits(beside)).map_err(refused)?;
    decoder
        .read_image(write::<u8>(&mut samples)?)
        .map_err(refused)?;
    Ok(Picture {
        samples,
        width: width as usize,
        height: height as usize,
        channels,
        sample,
    })
}
