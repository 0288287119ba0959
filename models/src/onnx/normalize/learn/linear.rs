//! Linear models.

use convoke_graph::DType;
use convoke_graph::graph::{Attrs, ValueId};

use super::super::super::import::Importer;
use super::super::node::{Expansion, ImportFailure, ImportedNode, Outputs, to_dtype, unsupported};
use super::rows::floats;
use super::transform::Transform;

/// The products of the rows of operand 0 with coefficients [targets, F], plus intercepts.
fn products(
    i: &mut Importer<'_>,
    c: &ImportedNode,
    coefficients: &[f32],
    intercepts: Option<&[f32]>,
    targets: usize,
) -> Result<(ValueId, DType), ImportFailure> {
    let (x, dtype, columns) = Expansion { b: &mut i.b, c }.rows()?;
    let features = coefficients.len() / targets.max(1);
    let fits = targets > 0 && features > 0 && features * targets == coefficients.len();
    if !fits || columns.is_some_and(|columns| columns != features) {
        let msg = format!(
            "has {} coefficients for {targets} targets and an operand of {columns:?} features",
            coefficients.len()
        );
        return Err(c.error(msg).into());
    }
    // The matrix of a product has a column for each target.
    let turned =
        (0..features * targets).map(|k| coefficients[k % targets * features + k / targets]);
    let turned: Vec<f64> = turned.map(f64::from).collect();
    let matrix = floats(c, dtype, &[features, targets], &turned)?;
    let matrix = i.table(&c.sub("coefficients"), matrix)?;
    let mut y = Expansion { b: &mut i.b, c }.plain("MatMul", &[x, matrix])?;
    if let Some(v) = intercepts {
        if v.len() != targets {
            return Err(c
                .error(format!("has {} intercepts for {targets} targets", v.len()))
                .into());
        }
        let v: Vec<f64> = v.iter().map(|x| f64::from(*x)).collect();
        let intercepts = floats(c, dtype, &[targets], &v)?;
        let intercepts = i.table(&c.sub("intercepts"), intercepts)?;
        y = Expansion { b: &mut i.b, c }.plain("Add", &[y, intercepts])?;
    }
    Ok((y, dtype))
}

/// Imports LinearRegressor.
pub(super) fn regressor(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let coefficients = c.take_floats("coefficients")?.unwrap_or_default();
    let intercepts = c.take_floats("intercepts")?;
    let targets = c.take_int("targets")?.unwrap_or(1);
    let targets = usize::try_from(targets).map_err(|_| c.wrong("targets", "a positive integer"))?;
    let transform = Transform::take(&mut c)?;
    c.no_more_attributes()?;
    let (y, dtype) = products(i, &c, &coefficients, intercepts.as_deref(), targets)?;
    let mut e = Expansion { b: &mut i.b, c: &c };
    let y = e.transformed(y, dtype, transform.of_targets(targets))?;
    Ok(vec![e.last(0, "Cast", to_dtype(DType::F32), &[y])?])
}

/// Imports LinearClassifier.
pub(super) fn classifier(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let coefficients = c.take_floats("coefficients")?.unwrap_or_default();
    let intercepts = c.take_floats("intercepts")?;
    let labels = c.take_labels("classlabels_ints", "classlabels_strings")?;
    let labels = labels.ok_or_else(|| c.error("has no class labels"))?;
    // This says how the coefficients were found.
    c.take_int("multi_class")?;
    let transform = Transform::take(&mut c)?;
    c.no_more_attributes()?;
    let classes = labels.elements();
    let targets = intercepts.as_ref().map_or(classes, Vec::len);
    if targets != classes && (targets, classes) != (1, 2) {
        let msg = format!("has {targets} scores for {classes} classes");
        return Err(c.error(msg).into());
    }
    let (scores, dtype) = products(i, &c, &coefficients, intercepts.as_deref(), targets)?;
    let labels = i.table(&c.sub("labels"), labels)?;
    let mut e = Expansion { b: &mut i.b, c: &c };
    let (places, scores) = if (targets, classes) == (1, 2) {
        let places = e.above(scores, dtype, 0.)?;
        let second = match transform {
            Transform::None => scores,
            Transform::Logistic => e.transformed(scores, dtype, transform)?,
            _ => return Err(unsupported("this transform of a single score")),
        };
        let one = e.float("one", dtype, 1.)?;
        let first = e.plain("Sub", &[one, second])?;
        (places, e.joined(1, &[first, second])?)
    } else {
        let places = e.greatest(scores)?;
        (places, e.transformed(scores, dtype, transform)?)
    };
    let mut out = vec![e.labelled(places, labels)?];
    if e.is_read(1) {
        let cast: Attrs = to_dtype(DType::F32);
        out.push(e.last(1, "Cast", cast, &[scores])?);
    }
    Ok(out)
}
