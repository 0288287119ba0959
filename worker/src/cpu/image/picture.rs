//! What the decoders share: their bounds and refusals, and a decoded image with its conversion to pixels.

use convoke_common::Error;
use convoke_graph::ops::attrs::PixelFormat;
use convoke_graph::{DType, Tensor};

use crate::cpu::kernel::{KernelFailure, OpLaunch, write};

/// The most pixels of an image. Decoders other than that of JPEG cannot be cancelled, and may take a minute for that many.
const MOST_PIXELS: u64 = 1 << 26;

/// Bytes that a decoder takes beside any number of pixels.
pub(super) const DECODER: u64 = 4 << 20;

/// The failure of an image, for whatever reason lies in its file.
pub(super) fn refused(why: impl std::fmt::Display) -> KernelFailure {
    KernelFailure::values(format!("the image cannot be decoded: {why}"))
}

/// Refuses images that are empty or too large. Returns how many pixels there are.
pub(super) fn checked(width: u64, height: u64) -> Result<u64, KernelFailure> {
    match width.checked_mul(height) {
        Some(0) => Err(refused(format!("it has {width}x{height} pixels"))),
        Some(pixels) if pixels <= MOST_PIXELS => Ok(pixels),
        _ => Err(refused(format!(
            "it has {width}x{height} pixels; at most {MOST_PIXELS} are decoded"
        ))),
    }
}

/// Memory of the step's pool: a decoder's samples, or its known need.
pub(super) fn reserved(call: &OpLaunch<'_, '_>, bytes: u64) -> Result<Tensor, KernelFailure> {
    let len = usize::try_from(bytes).map_err(|_| Error::internal("an image beyond memory"))?;
    call.scratch::<u8>(len)
}

/// The kind of samples that a decoder gives.
#[derive(Clone, Copy)]
pub(super) enum Sample {
    U8,
    U16,
    F32,
}

/// A decoded image: the samples of its pixels, row by row.
pub(super) struct Picture {
    pub(super) samples: Tensor,
    pub(super) width: usize,
    pub(super) height: usize,
    /// Samples of a pixel: 1 or 3, and one more where there is alpha.
    pub(super) channels: usize,
    pub(super) sample: Sample,
}

impl Picture {
    /// The pixels in the format that is asked for. Alpha is left out.
    pub(super) fn pixels(
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
