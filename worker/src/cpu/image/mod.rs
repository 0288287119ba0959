//! The kernel that reads image files. It runs on the host, whatever the device.
//!
//! ```text
//! bytes ──> header: size and kind of pixels ──> memory ──> decoder ──> samples ──> pixels of the wanted format
//! ```
//!
//! Invariants
//! 1. A decoder sees an image's pixels only after its size has been read, has been bounded, and has been reserved in the
//!    pool, with the memory that the decoder needs beside the samples.
//! 2. A decoder that panics fails the image, with an error that says so.
//! 3. Pixels do not depend on the instruction set: JPEG 2000 is decoded by scalar code, and the other decoders compute with
//!    integers alone.

mod files;
mod jpeg;
mod jpeg2000;
mod webp;

use std::panic::{AssertUnwindSafe, catch_unwind};

use convoke_common::Error;
use convoke_graph::ops::attrs::PixelFormat;
use convoke_graph::{DType, Tensor};
use image::ImageFormat;

use super::KernelFailure;
use super::call::{FamilyAnswer, OpLaunch, Spec, body, one, write};

/// The most pixels of an image. Decoders other than that of JPEG cannot be cancelled, and may take a minute for that many.
const MOST_PIXELS: u64 = 1 << 26;

/// Bytes that a decoder takes beside any number of pixels.
const DECODER: u64 = 4 << 20;

/// The formats that are read, as errors name them.
const FORMATS: &str = "BMP, JPEG, JPEG 2000, PNG, PNM, TIFF and WebP";

/// Finds the kernel of `ImageDecoder`.
pub(super) fn find(spec: &Spec<'_>) -> FamilyAnswer {
    let format = PixelFormat::new(spec.attrs)?;
    body(move |call| one(decoded(&call, format)?))
}

fn decoded(call: &OpLaunch<'_, '_>, format: PixelFormat) -> Result<Tensor, KernelFailure> {
    call.launch.exec.check()?;
    let file = call.slice::<u8>(0)?;
    let kind = kind_of(file)?;
    let read = || match kind {
        Kind::Jpeg => jpeg::read(file, call),
        Kind::Jpeg2000 => uninterrupted(call, || jpeg2000::read(file, call)),
        Kind::Other(format) => uninterrupted(call, || files::read(file, format, call)),
    };
    let picture = catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(refused("its decoder broke down over the file")))?;
    picture.pixels(call, format)
}

/// Runs a decoder that does not look whether its step was cancelled, so that the thread stands still for as long as it takes.
fn uninterrupted<T>(call: &OpLaunch<'_, '_>, decode: impl FnOnce() -> T) -> T {
    let _excused = call.launch.exec.excused();
    decode()
}

/// The decoder that a file needs.
enum Kind {
    Jpeg,
    Jpeg2000,
    Other(ImageFormat),
}

/// The decoder that a file needs, by its first bytes.
fn kind_of(file: &[u8]) -> Result<Kind, KernelFailure> {
    use ImageFormat::{Bmp, Jpeg, Png, Pnm, Tiff, WebP};
    if jpeg2000::is(file) {
        return Ok(Kind::Jpeg2000);
    }
    match image::guess_format(file) {
        Ok(Jpeg) => Ok(Kind::Jpeg),
        Ok(other @ (Bmp | Png | Pnm | Tiff | WebP)) => Ok(Kind::Other(other)),
        _ if file.is_empty() => Err(refused("there are no bytes")),
        _ => {
            let first = file.get(..4).unwrap_or(file);
            Err(refused(format!(
                "a file that begins with {first:02x?} is none of {FORMATS}"
            )))
        }
    }
}

/// The failure of an image, for whatever reason lies in its file.
fn refused(why: impl std::fmt::Display) -> KernelFailure {
    KernelFailure::values(format!("the image cannot be decoded: {why}"))
}

/// Refuses images that are empty or too large. Returns how many pixels there are.
fn checked(width: u64, height: u64) -> Result<u64, KernelFailure> {
    match width.checked_mul(height) {
        Some(0) => Err(refused(format!("it has {width}x{height} pixels"))),
        Some(pixels) if pixels <= MOST_PIXELS => Ok(pixels),
        _ => Err(refused(format!(
            "it has {width}x{height} pixels; at most {MOST_PIXELS} are decoded"
        ))),
    }
}

/// Memory of the step's pool: a decoder's samples, or its known need.
fn reserved(call: &OpLaunch<'_, '_>, bytes: u64) -> Result<Tensor, KernelFailure> {
    let len = usize::try_from(bytes).map_err(|_| Error::internal("an image beyond memory"))?;
    call.scratch::<u8>(len)
}

/// The kind of samples that a decoder gives.
#[derive(Clone, Copy)]
enum Sample {
    U8,
    U16,
    F32,
}

/// A decoded image: the samples of its pixels, row by row.
struct Picture {
    samples: Tensor,
    width: usize,
    height: usize,
    /// Samples of a pixel: 1 or 3, and one more where there is alpha.
    channels: usize,
    sample: Sample,
}

impl Picture {
    /// The pixels in the format that is asked for. Alpha is left out.
    fn pixels(
        &self,
        call: &OpLaunch<'_, '_>,
        format: PixelFormat,
    ) -> Result<Tensor, KernelFailure> {
        let shape = [self.height, self.width, format.channels()];
        let mut y = call.launch.pool.tensor(DType::U8, &shape)?;
        let out = write::<u8>(&mut y)?;
        let bytes = self.samples.as_slice::<u8>()?;
        match self.sample {
            Sample::U8 => self.spread(call, format, bytes, out, |[v]: [u8; 1]| v),
            // Rounded, so that the brightest sample stays the brightest.
            Sample::U16 => self.spread(call, format, bytes, out, |v| {
                ((u32::from(u16::from_ne_bytes(v)) + 128) / 257) as u8
            }),
            Sample::F32 => self.spread(call, format, bytes, out, |v| {
                (f32::from_ne_bytes(v).clamp(0.0, 1.0) * 255.0).round() as u8
            }),
        }?;
        Ok(y)
    }

    /// Writes pixels of samples of `N` bytes each.
    fn spread<const N: usize>(
        &self,
        call: &OpLaunch<'_, '_>,
        format: PixelFormat,
        bytes: &[u8],
        out: &mut [u8],
        sample: impl Fn([u8; N]) -> u8,
    ) -> Result<(), KernelFailure> {
        let at = |pixel: &[u8], i: usize| {
            let bytes = pixel.get(i * N..).and_then(|rest| rest.first_chunk());
            sample(bytes.copied().unwrap_or([0; N]))
        };
        let width = N * self.channels;
        let rows = bytes.chunks_exact(width * self.width);
        for (row, out) in rows.zip(out.chunks_exact_mut(self.width * format.channels())) {
            call.launch.exec.check()?;
            let pixels = row.chunks_exact(width);
            for (from, to) in pixels.zip(out.chunks_exact_mut(format.channels())) {
                let [r, g, b] = match self.channels {
                    1 | 2 => [at(from, 0); 3],
                    _ => [at(from, 0), at(from, 1), at(from, 2)],
                };
                match (format, to) {
                    (PixelFormat::Rgb, to) => to.copy_from_slice(&[r, g, b]),
                    (PixelFormat::Bgr, to) => to.copy_from_slice(&[b, g, r]),
                    (PixelFormat::Grayscale, to) => to.fill(luma(r, g, b)),
                }
            }
        }
        Ok(())
    }
}

/// The brightness of a colour by ITU-R 601, in the arithmetic of Pillow.
fn luma(r: u8, g: u8, b: u8) -> u8 {
    let [r, g, b] = [r, g, b].map(u32::from);
    ((r * 19_595 + g * 38_470 + b * 7_471 + (1 << 15)) >> 16) as u8
}

#[cfg(test)]
mod tests;
