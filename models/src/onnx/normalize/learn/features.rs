//! Ops that scale, replace and arrange features.

use convoke_graph::graph::{Attr, Attrs, ValueId};
use convoke_graph::{DType, Tensor};

use super::super::super::import::Importer;
use super::super::node::{Expansion, ImportedNode, Made, Outputs, axis_of, to_dtype, unsupported};
use super::rows::floats;

/// Imports ArrayFeatureExtractor: the elements of the last axis at the given places.
pub(super) fn extract(i: &mut Importer<'_>, c: ImportedNode) -> Outputs {
    let (x, at) = (c.need(0)?, c.need(1)?);
    let mut e = Expansion { b: &mut i.b, c: &c };
    let at = e.reshaped(at, &[-1])?;
    let x = match e.shape(x)?.len() {
        0 => return Err(unsupported("an operand of rank 0")),
        1 => e.unsqueezed(x, &[0])?,
        _ => x,
    };
    Ok(vec![e.last(0, "Gather", axis_of(-1), &[x, at])?])
}

/// Imports Binarizer: 1 where an element is above the threshold, and 0 elsewhere.
pub(super) fn binarizer(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let threshold = c.take_float("threshold")?.unwrap_or(0.);
    c.no_more_attributes()?;
    let mut e = Expansion { b: &mut i.b, c: &c };
    let given = e.ty(c.need(0)?)?.dtype;
    let (x, dtype) = e.real()?;
    let threshold = e.float("threshold", dtype, f64::from(threshold))?;
    let above = e.plain("Greater", &[x, threshold])?;
    Ok(vec![e.last(0, "Cast", to_dtype(given), &[above])?])
}

/// `x` with as many features as a list has `numbers`, or with any features where one number is for all. Where the features
/// are not known, each call checks them: the rule of broadcasting would stretch a single feature.
fn with_features(e: &mut Expansion<'_>, x: ValueId, numbers: usize) -> Made {
    let shape = e.shape(x)?;
    let Some(features) = shape.last() else {
        return Err(unsupported("an operand of rank 0"));
    };
    let numbers = numbers as i64;
    match features.as_const() {
        _ if numbers == 1 => Ok(x),
        Some(features) if features == numbers => Ok(x),
        Some(features) => {
            let msg = format!("has {numbers} numbers for {features} features");
            Err(e.c.error(msg).into())
        }
        None => {
            let mut wanted = vec![0; shape.len()];
            wanted[shape.len() - 1] = numbers;
            e.reshaped(x, &wanted)
        }
    }
}

/// Imports Scaler: `(X - offset) * scale`.
pub(super) fn scaler(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let given = [("offset", 0.), ("scale", 1.)];
    let mut tables = vec![];
    for (name, default) in given {
        let v = c
            .take_floats(name)?
            .filter(|v| !v.is_empty())
            .unwrap_or(vec![default]);
        tables.push((name, v.into_iter().map(f64::from).collect::<Vec<_>>()));
    }
    c.no_more_attributes()?;
    let (mut x, dtype) = Expansion { b: &mut i.b, c: &c }.real()?;
    for ((name, v), op) in tables.iter().zip(["Sub", "Mul"]) {
        let t = floats(&c, dtype, &[v.len()], v)?;
        let table = i.table(&c.sub(name), t)?;
        let mut e = Expansion { b: &mut i.b, c: &c };
        x = with_features(&mut e, x, v.len())?;
        x = e.plain(op, &[x, table])?;
    }
    let mut e = Expansion { b: &mut i.b, c: &c };
    Ok(vec![e.last(0, "Cast", to_dtype(DType::F32), &[x])?])
}

/// Imports Normalizer. A row whose norm is zero stays as it is.
pub(super) fn normalizer(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let norm = c.take_name("norm")?.unwrap_or("MAX".into());
    c.no_more_attributes()?;
    let reduction = match norm.as_str() {
        "MAX" => "ReduceMax",
        "L1" => "ReduceL1",
        "L2" => "ReduceL2",
        _ => return Err(c.wrong("norm", "MAX, L1 or L2").into()),
    };
    let mut e = Expansion { b: &mut i.b, c: &c };
    let (x, dtype) = e.real()?;
    let axis = match e.shape(x)?.len() {
        0 => return Err(unsupported("an operand of rank 0")),
        1 => 0,
        _ => 1,
    };
    let axes = e.ints("axes", &[axis])?;
    let norm = e.plain(reduction, &[x, axes])?;
    let (zero, one) = (e.float("zero", dtype, 0.)?, e.float("one", dtype, 1.)?);
    let none = e.plain("Equal", &[norm, zero])?;
    let norm = e.plain("Where", &[none, one, norm])?;
    let y = e.plain("Div", &[x, norm])?;
    Ok(vec![e.last(0, "Cast", to_dtype(DType::F32), &[y])?])
}

/// Imports Imputer: elements that are a given number, or NaN, are replaced by those of their feature.
pub(super) fn imputer(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let x = c.need(0)?;
    let dtype = Expansion { b: &mut i.b, c: &c }.ty(x)?.dtype;
    let (imputed_floats, replaced) = (
        c.take_floats("imputed_value_floats")?
            .filter(|v| !v.is_empty()),
        c.take_float("replaced_value_float")?.unwrap_or(0.),
    );
    let (imputed_ints, replaced_int) = (
        c.take_ints("imputed_value_int64s")?
            .filter(|v| !v.is_empty()),
        c.take_int("replaced_value_int64")?.unwrap_or(0),
    );
    c.no_more_attributes()?;
    let error = |e: convoke_graph::tensor::TensorError| c.error(e.to_string());
    let missing = || c.error(format!("has no values for operands of {dtype}"));
    let (imputed, replaced) = match dtype {
        DType::F32 | DType::F64 => {
            let v = imputed_floats.ok_or_else(missing)?;
            let v: Vec<f64> = v.into_iter().map(f64::from).collect();
            let replaced = [f64::from(replaced)];
            (
                floats(&c, dtype, &[v.len()], &v)?,
                floats(&c, dtype, &[], &replaced)?,
            )
        }
        DType::I64 => {
            let v = imputed_ints.ok_or_else(missing)?;
            (
                Tensor::from_slice(&[v.len()], &v).map_err(error)?,
                Tensor::scalar(replaced_int),
            )
        }
        DType::I32 => {
            let narrow = |v: i64| i32::try_from(v).map_err(|_| c.error("has a value beyond i32"));
            let v = imputed_ints.ok_or_else(missing)?.into_iter().map(narrow);
            let v: Vec<i32> = v.collect::<Result<_, _>>()?;
            let imputed = Tensor::from_slice(&[v.len()], &v).map_err(error)?;
            (imputed, Tensor::scalar(narrow(replaced_int)?))
        }
        other => return Err(unsupported(format!("operands of {other}"))),
    };
    let numbers = imputed.elements();
    let imputed = i.table(&c.sub("imputed"), imputed)?;
    let mut e = Expansion { b: &mut i.b, c: &c };
    let x = with_features(&mut e, x, numbers)?;
    let is_replaced = match dtype.is_float() && f64_of(&replaced).is_nan() {
        true => e.plain("IsNaN", &[x])?,
        false => {
            let replaced = e.b.literal(&c.sub("replaced"), replaced);
            e.plain("Equal", &[x, replaced])?
        }
    };
    let operands = [is_replaced, imputed, x];
    Ok(vec![e.last(0, "Where", Attrs::default(), &operands)?])
}

/// The only element of a tensor of floats.
fn f64_of(t: &Tensor) -> f64 {
    let single = t.as_slice::<f32>().ok().and_then(|v| v.first().copied());
    let double = t.as_slice::<f64>().ok().and_then(|v| v.first().copied());
    double.or(single.map(f64::from)).unwrap_or(0.)
}

/// Imports FeatureVectorizer: the features of all operands, one after the other, each brought to its number of columns.
pub(super) fn vectorizer(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let wanted = c.take_ints("inputdimensions")?.unwrap_or_default();
    c.no_more_attributes()?;
    if wanted.len() != c.inputs.len() || wanted.iter().any(|w| *w < 0) {
        return Err(c
            .error("'inputdimensions' has other lengths than operands")
            .into());
    }
    let mut parts = vec![];
    for (k, wanted) in wanted.iter().enumerate() {
        let x = c.need(k)?;
        let mut e = Expansion { b: &mut i.b, c: &c };
        let x = e.cast(x, DType::F32)?;
        let shape = e.shape(x)?;
        let x = match shape.len() {
            0 => return Err(unsupported("an operand of rank 0")),
            1 => e.unsqueezed(x, &[0])?,
            2 => x,
            _ => e.op("Flatten", axis_of(1), &[x])?,
        };
        let columns = e.shape(x)?.last().and_then(|d| d.as_const());
        // Where the number of columns is not known, there are enough of them after the wanted number was added.
        let added = wanted - columns.unwrap_or(0).min(*wanted);
        let x = match added {
            0 => x,
            _ => {
                let pads = e.ints("pads", &[0, 0, 0, added])?;
                e.plain("Pad", &[x, pads])?
            }
        };
        parts.push(match columns {
            Some(columns) if columns <= *wanted => x,
            _ => e.slice(x, 1, 0, *wanted, 1)?,
        });
    }
    let e = &mut Expansion { b: &mut i.b, c: &c };
    let attrs = Attrs::default().with("axis", Attr::Int(1));
    Ok(vec![e.last(0, "Concat", attrs, &parts)?])
}
