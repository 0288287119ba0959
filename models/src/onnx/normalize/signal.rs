//! Windows, the weights of mel bins, and the short-time Fourier transform.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::builder::Builder;
use super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, axis_of, to_dtype, unsupported,
};

/// The weights of the cosines of a window, of no, one and two periods.
const HANN: [f64; 3] = [0.5, -0.5, 0.0];
const HAMMING: [f64; 3] = [25.0 / 46.0, -21.0 / 46.0, 0.0];
const BLACKMAN: [f64; 3] = [0.42, -0.5, 0.08];

/// Imports HannWindow, HammingWindow and BlackmanWindow, which are computed in f64.
pub(super) fn window(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let weights = match c.op.as_str() {
        "HannWindow" => HANN,
        "HammingWindow" => HAMMING,
        _ => BLACKMAN,
    };
    let periodic = c.take_flag("periodic", true)?;
    let to = c.take_dtype("output_datatype")?.unwrap_or(DType::F32);
    c.no_more_attributes()?;
    let size = c.need(0)?;
    let mut e = Expansion { b, c: &c };
    let size = whole(&mut e, size)?;
    let places = e.counted(size)?;
    let places = e.cast(places, DType::F64)?;
    let period = match periodic {
        true => size,
        false => {
            let one = e.int("one", 1)?;
            e.plain("Sub", &[size, one])?
        }
    };
    let period = e.cast(period, DType::F64)?;
    let turn = e.float("turn", DType::F64, std::f64::consts::TAU)?;
    let turned = e.plain("Mul", &[places, turn])?;
    let angle = e.plain("Div", &[turned, period])?;
    let mut sum = e.float("weight", DType::F64, weights[0])?;
    for (k, weight) in weights.into_iter().enumerate().skip(1) {
        if weight == 0.0 {
            continue;
        }
        let times = e.float("times", DType::F64, k as f64)?;
        let angle = e.plain("Mul", &[angle, times])?;
        let cosine = e.plain("Cos", &[angle])?;
        let weight = e.float("weight", DType::F64, weight)?;
        let part = e.plain("Mul", &[cosine, weight])?;
        sum = e.plain("Add", &[sum, part])?;
    }
    // In f64 the middle of a window may lie just below 1. In f32 it is 1, before an integer loses its fraction.
    let sum = match to.is_float() {
        true => sum,
        false => e.cast(sum, DType::F32)?,
    };
    Ok(vec![e.last(0, "Cast", to_dtype(to), &[sum])?])
}

/// An integer operand of one element as an i64 scalar.
fn whole(e: &mut Expansion<'_>, x: ValueId) -> Made {
    let x = match e.b.ty(x) {
        Some(ty) if ty.shape.is_empty() => x,
        _ => {
            let none = e.ints("scalar", &[])?;
            e.plain("Reshape", &[x, none])?
        }
    };
    e.cast(x, DType::I64)
}

/// An operand of one element as an f64 scalar.
fn number(e: &mut Expansion<'_>, i: usize) -> Made {
    let none = e.ints("scalar", &[])?;
    let x = e.c.need(i)?;
    let x = e.plain("Reshape", &[x, none])?;
    e.cast(x, DType::F64)
}

/// Imports MelWeightMatrix: triangles over the bins of a spectrum, with equal distances of their centres in mel. The
/// bins of the corners are whole numbers, so these are computed in f64.
pub(super) fn mel_weight_matrix(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let to = c.take_dtype("output_datatype")?.unwrap_or(DType::F32);
    c.no_more_attributes()?;
    let (bins, length) = (c.need(0)?, c.need(1)?);
    let mut e = Expansion { b, c: &c };
    let e = &mut e;
    let bins = whole(e, bins)?;
    let length = whole(e, length)?;
    let (one, two) = (e.int("one", 1)?, e.int("two", 2)?);
    let (rate, low, high) = (number(e, 2)?, number(e, 3)?, number(e, 4)?);
    let (low, high) = (mel(e, low)?, mel(e, high)?);
    let corners = e.plain("Add", &[bins, two])?;
    let intervals = e.cast(corners, DType::F64)?;
    let span = e.plain("Sub", &[high, low])?;
    let step = e.plain("Div", &[span, intervals])?;
    let corners = e.counted(corners)?;
    let corners = e.cast(corners, DType::F64)?;
    let corners = e.plain("Mul", &[corners, step])?;
    let corners = e.plain("Add", &[corners, low])?;
    let corners = hertz(e, corners)?;
    let longer = e.plain("Add", &[length, one])?;
    let longer = e.cast(longer, DType::F64)?;
    let corners = e.plain("Mul", &[corners, longer])?;
    let corners = e.plain("Div", &[corners, rate])?;
    let corners = e.plain("Floor", &[corners])?;
    let left = e.slice(corners, 0, 0, -2, 1)?;
    let centre = e.slice(corners, 0, 1, -1, 1)?;
    let right = e.slice(corners, 0, 2, i64::MAX, 1)?;
    let half = e.plain("Div", &[length, two])?;
    let rows = e.plain("Add", &[half, one])?;
    let row = e.counted(rows)?;
    let row = e.cast(row, DType::F64)?;
    let row = e.unsqueezed(row, &[1])?;
    let (zero, unit) = (
        e.float("zero", DType::F64, 0.0)?,
        e.float("unit", DType::F64, 1.0)?,
    );
    let share = |e: &mut Expansion<'_>, part: [ValueId; 2], whole: [ValueId; 2]| -> Made {
        let part = e.plain("Sub", &part)?;
        let whole = e.plain("Sub", &whole)?;
        // A side of no width has its one bin at the centre.
        let whole = e.plain("Max", &[whole, unit])?;
        e.plain("Div", &[part, whole])
    };
    let rising = share(e, [row, left], [centre, left])?;
    let flat = e.plain("Equal", &[centre, left])?;
    let rising = e.plain("Where", &[flat, unit, rising])?;
    let falling = share(e, [right, row], [right, centre])?;
    let between =
        |e: &mut Expansion<'_>, low: [ValueId; 2], op: &str, high: [ValueId; 2]| -> Made {
            let low = e.plain("LessOrEqual", &low)?;
            let high = e.plain(op, &high)?;
            e.plain("And", &[low, high])
        };
    let on_left = between(e, [left, row], "LessOrEqual", [row, centre])?;
    let on_right = between(e, [centre, row], "Less", [row, right])?;
    let weights = e.plain("Where", &[on_left, rising, zero])?;
    let weights = e.plain("Where", &[on_right, falling, weights])?;
    Ok(vec![e.last(0, "Cast", to_dtype(to), &[weights])?])
}

/// A frequency in mel: 2595 log10(1 + f / 700).
fn mel(e: &mut Expansion<'_>, hertz: ValueId) -> Made {
    let base = e.float("base", DType::F64, 700.0)?;
    let one = e.float("unit", DType::F64, 1.0)?;
    let factor = e.float("factor", DType::F64, 2595.0 / std::f64::consts::LN_10)?;
    let x = e.plain("Div", &[hertz, base])?;
    let x = e.plain("Add", &[x, one])?;
    let x = e.plain("Log", &[x])?;
    e.plain("Mul", &[x, factor])
}

/// A frequency in hertz, of one in mel.
fn hertz(e: &mut Expansion<'_>, mel: ValueId) -> Made {
    let base = e.float("base", DType::F64, 700.0)?;
    let one = e.float("unit", DType::F64, 1.0)?;
    let factor = e.float("factor", DType::F64, std::f64::consts::LN_10 / 2595.0)?;
    let x = e.plain("Mul", &[mel, factor])?;
    let x = e.plain("Exp", &[x])?;
    let x = e.plain("Sub", &[x, one])?;
    e.plain("Mul", &[x, base])
}

/// Imports STFT: the transforms of frames, each multiplied by the window.
pub(super) fn stft(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let one_sided = c.take_flag("onesided", true)?;
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (mut signal, step) = (c.need(0)?, c.need(1)?);
    let mut e = Expansion { b, c: &c };
    let parts = match e.shape(signal)?.as_slice() {
        [_, _, parts] => parts.as_const(),
        // PyTorch's exporter leaves the axis of the parts of a real signal out, and ONNX Runtime runs that.
        [_, _] => {
            signal = e.unsqueezed(signal, &[2])?;
            Some(1)
        }
        _ => return Err(c.error("signal must have rank 2 or 3").into()),
    };
    match parts {
        None => return Err(unsupported("a signal that may be real or complex")),
        Some(2) if one_sided => {
            return Err(c.error("a complex signal has no onesided result").into());
        }
        Some(1 | 2) => {}
        Some(_) => return Err(c.error("signal must have one or two parts").into()),
    }
    let step = whole(&mut e, step)?;
    if e.b.elements(step).is_some_and(|s| s.iter().any(|s| *s < 1)) {
        return Err(c.error("frame_step must be above zero").into());
    }
    let length = e.length(signal, 1)?;
    let length = e.scalar(length)?;
    let window = c.input(2);
    if let Some(window) = window
        && e.shape(window)?.len() != 1
    {
        return Err(c.error("window must have rank 1").into());
    }
    let frame = match (c.input(3), window) {
        (Some(frame), _) => whole(&mut e, frame)?,
        (None, Some(window)) => {
            let frame = e.length(window, 0)?;
            e.scalar(frame)?
        }
        (None, None) => length,
    };
    check_frame(&e, frame, length, window)?;
    // The last frame begins where it still lies within the signal.
    let one = e.int("one", 1)?;
    let last = e.plain("Sub", &[length, frame])?;
    let end = e.plain("Add", &[last, one])?;
    let first = e.int("first", 0)?;
    let starts = e.plain("Range", &[first, end, step])?;
    let starts = e.unsqueezed(starts, &[1])?;
    let within = e.counted(frame)?;
    let places = e.plain("Add", &[starts, within])?;
    let mut frames = e.op("Gather", axis_of(1), &[signal, places])?;
    if let Some(window) = window {
        let window = e.unsqueezed(window, &[1])?;
        frames = e.plain("Mul", &[frames, window])?;
    }
    let axis = e.int("axis", 2)?;
    let attrs = Attrs::default().with("onesided", Attr::Int(one_sided.into()));
    let operands = vec![Some(frames), None, Some(axis)];
    c.finish(b, "DFT", attrs, operands)
}

/// Checks the length of a frame, as far as it is known.
fn check_frame(
    e: &Expansion<'_>,
    frame: ValueId,
    length: ValueId,
    window: Option<ValueId>,
) -> Result<(), ImportFailure> {
    let known = |x: ValueId| e.b.elements(x).and_then(|v| v.first().copied());
    let Some(frame) = known(frame) else {
        return Ok(());
    };
    if frame < 1 || known(length).is_some_and(|length| frame > length) {
        return Err(e
            .c
            .error(format!(
                "a frame of {frame} samples does not lie in the signal"
            ))
            .into());
    }
    let own = match window {
        Some(window) => e.shape(window)?[0].as_const(),
        None => None,
    };
    match own {
        Some(own) if own != frame => {
            let reason = format!("a window of {own} for a frame of {frame} samples");
            Err(e.c.error(reason).into())
        }
        _ => Ok(()),
    }
}
