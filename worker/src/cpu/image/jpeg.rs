//! JPEG files, which a decoder of our own reads: ONNX prescribes how coarse colours become fine.

use convoke_kernels::jpeg::{Jpeg, JpegError};

use super::picture::{Picture, Sample, checked, refused, reserved};
use crate::cpu::kernel::{KernelFailure, OpLaunch, write};

fn failure(e: JpegError) -> KernelFailure {
    match e {
        JpegError::Cancelled => KernelFailure::Cancelled,
        JpegError::File(why) => refused(why),
    }
}

/// Decodes a file.
pub(super) fn read(file: &[u8], call: &OpLaunch<'_, '_>) -> Result<Picture, KernelFailure> {
    let jpeg = Jpeg::open(file).map_err(failure)?;
    let (width, height, channels) = (jpeg.width(), jpeg.height(), jpeg.channels());
    let pixels = checked(width as u64, height as u64)?;
    let work = jpeg.coefficients();
    let mut samples = reserved(call, pixels * channels as u64)?;
    let mut coefficients = call.scratch::<i16>(work)?;
    let mut planes = call.scratch::<u8>(work)?;
    jpeg.decode(
        &call.launch.exec,
        write(&mut coefficients)?,
        write(&mut planes)?,
        write(&mut samples)?,
    )
    .map_err(failure)?;
    Ok(Picture {
        samples,
        width,
        height,
        channels,
        sample: Sample::U8,
    })
}
