//! Support vector machines. Everything is computed in f64, because distances are differences of large numbers.

use convoke_graph::graph::Attrs;
use convoke_graph::{DType, Tensor};

use super::super::super::import::Importer;
use super::super::expansion::{Expansion, Made, to_dtype};
use super::super::{ImportedNode, Outputs};
use super::Transform;

/// How alike a row and a support vector are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Likeness {
    Linear,
    Poly,
    Rbf,
    Sigmoid,
}

/// Imports SVMRegressor: the sum of the likenesses of a row and each support vector, times its coefficient, plus `rho`.
pub(super) fn regressor(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let coefficients = c.take_floats("coefficients")?.unwrap_or_default();
    let vectors = c.take_floats("support_vectors")?.unwrap_or_default();
    let params = c.take_floats("kernel_params")?.unwrap_or_default();
    let rho = c.take_floats("rho")?.unwrap_or_default();
    let likeness = c.take_name("kernel_type")?.unwrap_or("LINEAR".into());
    let count = c.take_int("n_supports")?.unwrap_or(0);
    let one_class = c.take_flag("one_class", false)?;
    let transform = Transform::take(&mut c)?;
    c.no_more_attributes()?;
    let likeness = match likeness.as_str() {
        "LINEAR" => Likeness::Linear,
        "POLY" => Likeness::Poly,
        "RBF" => Likeness::Rbf,
        "SIGMOID" => Likeness::Sigmoid,
        _ => {
            return Err(c
                .wrong("kernel_type", "LINEAR, POLY, RBF or SIGMOID")
                .into());
        }
    };
    let count = usize::try_from(count).map_err(|_| c.wrong("n_supports", "0 or more"))?;
    let [rho] = rho[..] else {
        return Err(c.wrong("rho", "one number").into());
    };
    let params = match params[..] {
        [] if likeness == Likeness::Linear => [0.; 3],
        [gamma, coefficient, degree] => [gamma, coefficient, degree].map(f64::from),
        _ => return Err(c.wrong("kernel_params", "three numbers").into()),
    };
    // Without support vectors, the coefficients are those of the features.
    let (vectors, coefficients, likeness, count) = match count {
        0 => (coefficients, vec![1.], Likeness::Linear, 1),
        _ => (vectors, coefficients, likeness, count),
    };
    let features = vectors.len() / count;
    let (x, _, columns) = Expansion { b: &mut i.b, c: &c }.rows()?;
    let fits = features > 0 && features * count == vectors.len() && coefficients.len() == count;
    if !fits || columns.is_some_and(|columns| columns != features) {
        let msg = format!(
            "has {} coefficients and {} elements of {count} vectors for an operand of {columns:?} features",
            coefficients.len(),
            vectors.len()
        );
        return Err(c.error(msg).into());
    }
    let table = |shape: &[usize], v: Vec<f64>| {
        Tensor::from_slice(shape, &v).map_err(|e| c.error(e.to_string()))
    };
    let turned = (0..vectors.len()).map(|k| vectors[k % count * features + k / count]);
    let matrix = table(&[features, count], turned.map(f64::from).collect())?;
    let square = |v: &[f32]| v.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let squares = table(&[count], vectors.chunks(features).map(square).collect())?;
    let weights = table(
        &[count, 1],
        coefficients.iter().map(|x| f64::from(*x)).collect(),
    )?;
    let matrix = i.table(&c.sub("support_vectors"), matrix)?;
    let weights = i.table(&c.sub("coefficients"), weights)?;
    let squares = match likeness {
        Likeness::Rbf => Some(i.table(&c.sub("squares"), squares)?),
        _ => None,
    };
    let mut e = Expansion { b: &mut i.b, c: &c };
    let x = e.cast(x, DType::F64)?;
    let products = e.plain("MatMul", &[x, matrix])?;
    let scaled = |e: &mut Expansion<'_>, x| -> Made {
        let gamma = e.float("gamma", DType::F64, params[0])?;
        e.plain("Mul", &[x, gamma])
    };
    let moved = |e: &mut Expansion<'_>, x| -> Made {
        let x = scaled(e, x)?;
        let coefficient = e.float("coef0", DType::F64, params[1])?;
        e.plain("Add", &[x, coefficient])
    };
    let alike = match (likeness, squares) {
        (Likeness::Poly, _) => {
            let base = moved(&mut e, products)?;
            let degree = e.float("degree", DType::F64, params[2])?;
            e.plain("Pow", &[base, degree])?
        }
        (Likeness::Sigmoid, _) => {
            let base = moved(&mut e, products)?;
            e.plain("Tanh", &[base])?
        }
        (Likeness::Rbf, Some(squares)) => {
            let axes = e.ints("axes", &[1])?;
            let own = e.plain("ReduceSumSquare", &[x, axes])?;
            let sum = e.plain("Add", &[own, squares])?;
            let minus_two = e.float("minus_two", DType::F64, -2.)?;
            let products = e.plain("Mul", &[products, minus_two])?;
            let distance = e.plain("Add", &[sum, products])?;
            let distance = scaled(&mut e, distance)?;
            let power = e.plain("Neg", &[distance])?;
            e.plain("Exp", &[power])?
        }
        _ => products,
    };
    let y = e.plain("MatMul", &[alike, weights])?;
    let rho = e.float("rho", DType::F64, f64::from(rho))?;
    let mut y = e.plain("Add", &[y, rho])?;
    if one_class {
        let zero = e.float("zero", DType::F64, 0.)?;
        let (one, other) = (
            e.float("one", DType::F64, 1.)?,
            e.float("other", DType::F64, -1.)?,
        );
        let inside = e.plain("Greater", &[y, zero])?;
        y = e.op("Where", Attrs::default(), &[inside, one, other])?;
    } else if transform == Transform::Probit {
        y = e.transformed(y, DType::F64, transform)?;
    }
    Ok(vec![e.last(0, "Cast", to_dtype(DType::F32), &[y])?])
}
