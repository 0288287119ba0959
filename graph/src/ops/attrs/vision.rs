//! Attributes of ops that sample feature maps.

use super::{Window, bad, flag};
use crate::graph::Attrs;
use crate::ops::error::OpError;

/// The largest extent that regions are brought to.
const MAX_EXTENT: i64 = 1 << 24;

/// The most samples along an axis of a bin: more take hours, and tell nothing more.
const MAX_SAMPLES: i64 = 1 << 12;

/// The numbers that `ImageDecoder` gives for a pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PixelFormat {
    Rgb,
    Bgr,
    Grayscale,
}

impl PixelFormat {
    /// Reads the attributes of `ImageDecoder`.
    pub fn new(attrs: &Attrs) -> Result<PixelFormat, OpError> {
        match attrs.str("pixel_format", "RGB") {
            "RGB" => Ok(PixelFormat::Rgb),
            "BGR" => Ok(PixelFormat::Bgr),
            "Grayscale" => Ok(PixelFormat::Grayscale),
            other => {
                let why = format!("must be RGB, BGR or Grayscale, not '{other}'");
                Err(bad("pixel_format", why))
            }
        }
    }

    /// Numbers of a pixel.
    pub fn channels(self) -> usize {
        match self {
            PixelFormat::Rgb | PixelFormat::Bgr => 3,
            PixelFormat::Grayscale => 1,
        }
    }
}

/// How `GridSample` makes elements between those of its operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GridMode {
    Nearest,
    Linear,
    Cubic,
}

impl GridMode {
    /// The most spatial axes that have a kernel, which mixes at most 1,024 elements; `None` where there is no such limit.
    pub fn most_axes(self) -> Option<usize> {
        match self {
            GridMode::Nearest => None,
            GridMode::Linear => Some(10),
            GridMode::Cubic => Some(5),
        }
    }
}

/// The values that `GridSample` reads outside of its operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GridOutside {
    Zeros,
    Border,
    Reflection,
}

/// Attributes of `GridSample`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GridSampleAttrs {
    pub mode: GridMode,
    pub outside: GridOutside,
    /// Whether -1 and 1 are the centres of the outermost elements, and not their outer edges.
    pub align_corners: bool,
}

impl GridSampleAttrs {
    /// Reads the attributes of a node.
    pub fn new(attrs: &Attrs) -> Result<GridSampleAttrs, OpError> {
        let mode = match attrs.str("mode", "linear") {
            "linear" => GridMode::Linear,
            "nearest" => GridMode::Nearest,
            "cubic" => GridMode::Cubic,
            other => return Err(bad("mode", format!("'{other}' is unknown"))),
        };
        let outside = match attrs.str("padding_mode", "zeros") {
            "zeros" => GridOutside::Zeros,
            "border" => GridOutside::Border,
            "reflection" => GridOutside::Reflection,
            other => return Err(bad("padding_mode", format!("'{other}' is unknown"))),
        };
        Ok(GridSampleAttrs {
            mode,
            outside,
            align_corners: flag(attrs, "align_corners", false),
        })
    }
}

/// Attributes of `RoiAlign` and `MaxRoiPool`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoiAttrs {
    /// Whether a bin becomes its maximum, and not its mean.
    pub max: bool,
    /// Height and width of the output.
    pub pooled: [usize; 2],
    /// Samples along each axis of a bin; 0 chooses.
    pub sampling: usize,
    /// The factor from the regions' coordinates to those of the operand.
    pub scale: f32,
    /// Whether coordinates are shifted by half a pixel.
    pub half_pixel: bool,
}

impl RoiAttrs {
    /// Reads the attributes of `RoiAlign`.
    pub fn align(attrs: &Attrs) -> Result<RoiAttrs, OpError> {
        let max = match attrs.str("mode", "avg") {
            "avg" => false,
            "max" => true,
            other => return Err(bad("mode", format!("'{other}' is unknown"))),
        };
        let half_pixel = match attrs.str("coordinate_transformation_mode", "half_pixel") {
            "half_pixel" => true,
            "output_half_pixel" => false,
            other => {
                let reason = format!("'{other}' is unknown");
                return Err(bad("coordinate_transformation_mode", reason));
            }
        };
        let sampling = attrs.int("sampling_ratio", 0);
        if !(0..=MAX_SAMPLES).contains(&sampling) {
            let reason = format!("{sampling} is outside 0 to {MAX_SAMPLES}");
            return Err(bad("sampling_ratio", reason));
        }
        Ok(RoiAttrs {
            max,
            pooled: [
                extent("output_height", attrs.int("output_height", 1))?,
                extent("output_width", attrs.int("output_width", 1))?,
            ],
            sampling: sampling as usize,
            scale: attrs.float("spatial_scale", 1.0),
            half_pixel,
        })
    }

    /// Reads the attributes of `MaxRoiPool`.
    pub fn max_pool(attrs: &Attrs) -> Result<RoiAttrs, OpError> {
        let Some(&[height, width]) = attrs.ints("pooled_shape") else {
            return Err(bad("pooled_shape", "must be a height and a width"));
        };
        Ok(RoiAttrs {
            max: true,
            pooled: [
                extent("pooled_shape", height)?,
                extent("pooled_shape", width)?,
            ],
            sampling: 0,
            scale: attrs.float("spatial_scale", 1.0),
            half_pixel: false,
        })
    }
}

fn extent(attr: &str, v: i64) -> Result<usize, OpError> {
    match (1..=MAX_EXTENT).contains(&v) {
        true => Ok(v as usize),
        false => Err(bad(attr, format!("{v} is outside 1 to {MAX_EXTENT}"))),
    }
}

/// Attributes of `DeformConv`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeformAttrs {
    pub window: Window,
    pub group: usize,
    /// Groups of channels with offsets of their own.
    pub offset_group: usize,
}

impl DeformAttrs {
    /// Reads the attributes of a node; `kernel` is the weight's spatial shape.
    pub fn new(attrs: &Attrs, kernel: &[usize]) -> Result<DeformAttrs, OpError> {
        let count = |name: &str| match usize::try_from(attrs.int(name, 1)) {
            Ok(n) if n > 0 => Ok(n),
            _ => Err(bad(name, "must be above zero")),
        };
        Ok(DeformAttrs {
            window: Window::new(attrs, kernel.len(), Some(kernel))?,
            group: count("group")?,
            offset_group: count("offset_group")?,
        })
    }
}

/// The length of the axis that a pooling by `window` made `input` windows of, if the last one ended at its end; `None`
/// where there is no such length.
pub fn unpooled_len(window: &Window, axis: usize, input: usize) -> Option<usize> {
    let (before, after) = window.pads(axis, input);
    let covered = input.checked_sub(1)?.checked_mul(window.strides[axis])?;
    let covered = covered.checked_add(window.kernel[axis])?;
    covered.checked_sub(before.checked_add(after)?)
}
