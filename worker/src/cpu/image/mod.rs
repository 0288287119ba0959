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
mod picture;
mod webp;

use std::panic::{AssertUnwindSafe, catch_unwind};

use convoke_graph::Tensor;
use convoke_graph::ops::attrs::PixelFormat;
use image::ImageFormat;

use self::picture::refused;
use super::kernel::{FamilyAnswer, KernelFailure, OpLaunch, Spec, body, one};

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

#[cfg(test)]
mod tests;
