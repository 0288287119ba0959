//! `QuantizeLinear`, `DequantizeLinear` and `DynamicQuantizeLinear`.

use convoke_graph::DType;
use convoke_graph::ops::attrs::{ParameterShape, QuantiseAttrs};
use convoke_kernels::quantised::{
    Format, Layout, Numbers, Parameters, Precision, Quantisation, Take, dequantise, dequantise_i32,
    quantise, span,
};

use super::numbers::{as_f32, format_of, layout_of, optional_f32};
use crate::cpu::kernel::{
    FamilyAnswer, KernelFailure, OpLaunch, Spec, body, one, write, write_bits,
};

fn layout(call: &OpLaunch<'_, '_>, attrs: &QuantiseAttrs) -> Result<Layout, KernelFailure> {
    let (x, scales) = (call.shape(0)?, call.shape(1)?);
    let granularity = attrs.granularity(x.len(), ParameterShape::of(scales))?;
    Ok(layout_of(x, granularity))
}

pub(super) fn quantise_linear(spec: &Spec<'_>) -> FamilyAnswer {
    let attrs = QuantiseAttrs::new(spec.attrs)?;
    let from = format_of(spec.dtype(0)?)?;
    let precision = match attrs.precision.unwrap_or(spec.dtype(1)?) {
        DType::F16 => Precision::F16,
        DType::BF16 => Precision::BF16,
        _ => Precision::F32,
    };
    body(move |call| {
        let (scales, zeros) = (as_f32(&call, call.input(1)?)?, optional_f32(&call, 2)?);
        let mut y = call.output(0)?;
        let how = Quantisation {
            to: format_of(y.dtype())?,
            precision,
            saturate: attrs.saturate,
        };
        let parameters = Parameters {
            layout: layout(&call, &attrs)?,
            scales: Some(scales.as_slice()?),
            zeros: zeros.as_ref().map(|z| z.as_slice()).transpose()?,
        };
        let x = call.input(0)?;
        let numbers = Numbers::new(from, x.bytes());
        let exec = &call.launch.exec;
        quantise(
            exec,
            &numbers,
            x.elements(),
            &parameters,
            how,
            write_bits(&mut y)?,
        )?;
        one(y)
    })
}

pub(super) fn dequantise_linear(spec: &Spec<'_>) -> FamilyAnswer {
    let attrs = QuantiseAttrs::new(spec.attrs)?;
    let from = format_of(spec.dtype(0)?)?;
    body(move |call| {
        let scales = as_f32(&call, call.input(1)?)?;
        let mut y = call.output(0)?;
        let to = format_of(y.dtype())?;
        let layout = layout(&call, &attrs)?;
        let x = call.input(0)?;
        if from == Format::I32
            && let Some(zeros) = call.optional_slice::<i32>(2)?
        {
            let scales = (layout, scales.as_slice()?);
            let y_bytes = (to, write_bits(&mut y)?);
            dequantise_i32(&call.launch.exec, x.as_slice()?, zeros, scales, y_bytes)?;
            return one(y);
        }
        let zeros = optional_f32(&call, 2)?;
        let parameters = Parameters {
            layout,
            scales: Some(scales.as_slice()?),
            zeros: zeros.as_ref().map(|z| z.as_slice()).transpose()?,
        };
        let numbers = Numbers::new(from, x.bytes());
        let (exec, len) = (&call.launch.exec, x.elements());
        dequantise(
            exec,
            &numbers,
            Take::ALL,
            len,
            &parameters,
            (to, write_bits(&mut y)?),
        )?;
        one(y)
    })
}

/// Quantises to u8, with the scale and the zero point by which the codes span the numbers and zero, as ONNX Runtime
/// computes them.
pub(super) fn dynamic() -> FamilyAnswer {
    body(|call| {
        let x = call.slice::<f32>(0)?;
        let (low, high) = span(&call.launch.exec, x)?;
        let scale = if high == low {
            1.0
        } else {
            (high - low) / 255.0
        };
        let zero = (0.0 - low / scale).clamp(0.0, 255.0).round_ties_even();
        let mut y = call.output(0)?;
        let parameters = Parameters {
            layout: Layout::Tensor,
            scales: Some(&[scale]),
            zeros: Some(&[zero]),
        };
        let how = Quantisation {
            to: Format::U8,
            precision: Precision::F32,
            saturate: true,
        };
        let numbers = Numbers::new(Format::F32, call.input(0)?.bytes());
        quantise(
            &call.launch.exec,
            &numbers,
            x.len(),
            &parameters,
            how,
            write_bits(&mut y)?,
        )?;
        let (mut scales, mut zeros) = (call.output(1)?, call.output(2)?);
        write::<f32>(&mut scales)?.fill(scale);
        write::<u8>(&mut zeros)?.fill(zero as u8);
        Ok([y, scales, zeros].into_iter().collect())
    })
}
