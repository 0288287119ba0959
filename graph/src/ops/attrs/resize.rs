//! Attributes of `Resize`, and the axes that it resizes.

use super::{bad, flag, normalize_axes};
use crate::graph::Attrs;
use crate::ops::error::OpError;

/// The `nearest_mode` that is [`Nearest::ByScale`], which ONNX has no name for.
pub const BY_SCALE: &str = "by_scale";

/// How an element of the result is made of elements of the operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interpolation {
    Nearest,
    Linear,
    Cubic,
}

/// How a position along an axis of the result becomes one along the operand's axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coordinates {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    TfHalfPixel,
    CropAndResize,
}

/// The rule that says which neighbour is the nearest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nearest {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
    /// Up where the axis shrinks, else down, as the standard had it before it had the attribute.
    ByScale,
}

/// How `Resize` treats given sizes that would change the ratio of the axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AspectRatio {
    Stretch,
    NotLarger,
    NotSmaller,
}

/// Attributes of `Resize`.
#[derive(Debug, Clone, PartialEq)]
pub struct ResizeAttrs {
    pub interpolation: Interpolation,
    pub coordinates: Coordinates,
    pub nearest: Nearest,
    pub aspect_ratio: AspectRatio,
    /// The parameter of cubic interpolation.
    pub cubic: f32,
    /// Whether weights of elements outside the operand are dropped, and the others scaled to sum to 1.
    pub exclude_outside: bool,
    /// The value of elements outside the cropped operand.
    pub extrapolation: f32,
    /// Whether weights spread where an axis shrinks.
    pub antialias: bool,
    axes: Option<Vec<i64>>,
}

impl ResizeAttrs {
    /// Reads and checks the attributes of a node.
    pub fn new(attrs: &Attrs) -> Result<ResizeAttrs, OpError> {
        let resize = ResizeAttrs {
            interpolation: choose(
                attrs,
                "mode",
                "nearest",
                &[
                    ("nearest", Interpolation::Nearest),
                    ("linear", Interpolation::Linear),
                    ("cubic", Interpolation::Cubic),
                ],
            )?,
            coordinates: choose(
                attrs,
                "coordinate_transformation_mode",
                "half_pixel",
                &[
                    ("half_pixel", Coordinates::HalfPixel),
                    ("half_pixel_symmetric", Coordinates::HalfPixelSymmetric),
                    ("pytorch_half_pixel", Coordinates::PytorchHalfPixel),
                    ("align_corners", Coordinates::AlignCorners),
                    ("asymmetric", Coordinates::Asymmetric),
                    ("tf_half_pixel_for_nn", Coordinates::TfHalfPixel),
                    ("tf_crop_and_resize", Coordinates::CropAndResize),
                ],
            )?,
            nearest: choose(
                attrs,
                "nearest_mode",
                "round_prefer_floor",
                &[
                    ("round_prefer_floor", Nearest::RoundPreferFloor),
                    ("round_prefer_ceil", Nearest::RoundPreferCeil),
                    ("floor", Nearest::Floor),
                    ("ceil", Nearest::Ceil),
                    (BY_SCALE, Nearest::ByScale),
                ],
            )?,
            aspect_ratio: choose(
                attrs,
                "keep_aspect_ratio_policy",
                "stretch",
                &[
                    ("stretch", AspectRatio::Stretch),
                    ("not_larger", AspectRatio::NotLarger),
                    ("not_smaller", AspectRatio::NotSmaller),
                ],
            )?,
            cubic: attrs.float("cubic_coeff_a", -0.75),
            exclude_outside: flag(attrs, "exclude_outside", false),
            extrapolation: attrs.float("extrapolation_value", 0.),
            antialias: flag(attrs, "antialias", false),
            axes: attrs.ints("axes").map(<[i64]>::to_vec),
        };
        if resize.antialias && resize.interpolation == Interpolation::Nearest {
            return Err(bad("antialias", "needs the mode linear or cubic"));
        }
        Ok(resize)
    }

    /// The axes to which the elements of `scales`, `sizes` and `roi` belong, in their order.
    pub fn axes(&self, rank: usize) -> Result<Vec<usize>, OpError> {
        match &self.axes {
            Some(axes) => normalize_axes(axes, rank),
            None => Ok((0..rank).collect()),
        }
    }

    /// Length and scale of each of the axes, whose lengths are `lengths`, for these scales.
    pub fn scaled(lengths: &[usize], scales: &[f32]) -> Result<Vec<(usize, f32)>, OpError> {
        check_count("scales", scales.len(), lengths.len())?;
        let scaled = |(length, scale): (&usize, &f32)| {
            if !(scale.is_finite() && *scale > 0.) {
                let reason = format!("a scale must be above zero, not {scale}");
                return Err(OpError::shape(reason));
            }
            Ok(((scale * *length as f32) as usize, *scale))
        };
        lengths.iter().zip(scales).map(scaled).collect()
    }

    /// Length and scale of each of the axes, whose lengths are `lengths`, for these sizes.
    pub fn sized(&self, lengths: &[usize], sizes: &[i64]) -> Result<Vec<(usize, f32)>, OpError> {
        check_count("sizes", sizes.len(), lengths.len())?;
        let size = |size: &i64| {
            let reason = || OpError::shape(format!("a size must not be negative, as {size} is"));
            usize::try_from(*size).map_err(|_| reason())
        };
        let sizes: Vec<usize> = sizes.iter().map(size).collect::<Result<_, _>>()?;
        let pairs = || lengths.iter().copied().zip(sizes.iter().copied());
        let scale = |(length, size): (usize, usize)| match length {
            0 => 1.,
            length => size as f32 / length as f32,
        };
        let scales = pairs().map(scale);
        let common = match self.aspect_ratio {
            AspectRatio::Stretch => return Ok(pairs().map(|p| (p.1, scale(p))).collect()),
            AspectRatio::NotLarger => scales.reduce(f32::min),
            AspectRatio::NotSmaller => scales.reduce(f32::max),
        };
        let common = common.unwrap_or(1.);
        let round = |length: &usize| ((common * *length as f32 + 0.5) as usize, common);
        Ok(lengths.iter().map(round).collect())
    }
}

fn check_count(what: &str, got: usize, want: usize) -> Result<(), OpError> {
    match got == want {
        true => Ok(()),
        false => Err(OpError::shape(format!(
            "'{what}' has {got} elements for {want} axes"
        ))),
    }
}

/// The value that the attribute `name` chooses.
fn choose<T: Copy>(
    attrs: &Attrs,
    name: &str,
    default: &str,
    from: &[(&str, T)],
) -> Result<T, OpError> {
    let given = attrs.str(name, default);
    let found = from.iter().find(|(text, _)| *text == given);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let texts: Vec<&str> = from.iter().map(|(text, _)| *text).collect();
        let texts = texts.join(", ");
        bad(name, format!("must be one of {texts}, not '{given}'"))
    })
}
