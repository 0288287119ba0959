//! Support vector machines. Everything is computed in f64, because distances are differences of large numbers.

use convoke_graph::graph::Attrs;
use convoke_graph::{DType, Tensor};

use super::super::super::import::Importer;
use super::super::node::{Expansion, ImportedNode, Made, Outputs, to_dtype, unsupported};
use super::coupling;
use super::transform::Transform;
use crate::error::ModelError;

/// The most classes of a classifier, and the most coefficients of its pairs of classes.
const MOST_CLASSES: usize = 100;
const MOST_WEIGHTS: usize = 1 << 24;

/// How alike a row and a support vector are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Likeness {
    Linear,
    Poly,
    Rbf,
    Sigmoid,
}

/// A measure of likeness with gamma, coefficient and degree.
#[derive(Debug, Clone, Copy)]
struct Measure {
    likeness: Likeness,
    params: [f64; 3],
}

impl Measure {
    fn take(c: &mut ImportedNode) -> Result<Measure, ModelError> {
        let params = c.take_floats("kernel_params")?.unwrap_or_default();
        let likeness = match c.take_name("kernel_type")?.as_deref() {
            None | Some("LINEAR") => Likeness::Linear,
            Some("POLY") => Likeness::Poly,
            Some("RBF") => Likeness::Rbf,
            Some("SIGMOID") => Likeness::Sigmoid,
            Some(_) => return Err(c.wrong("kernel_type", "LINEAR, POLY, RBF or SIGMOID")),
        };
        let params = match params[..] {
            [] if likeness == Likeness::Linear => [0.; 3],
            [gamma, coefficient, degree] => [gamma, coefficient, degree].map(f64::from),
            _ => return Err(c.wrong("kernel_params", "three numbers")),
        };
        Ok(Measure { likeness, params })
    }

    /// How alike each row of operand 0 is to each of `count` vectors: f64 [N, count]. The node has `coefficients` of these.
    fn of_rows(
        self,
        i: &mut Importer<'_>,
        c: &ImportedNode,
        vectors: &[f32],
        count: usize,
        coefficients: usize,
    ) -> Made {
        let Measure { likeness, params } = self;
        let features = vectors.len() / count.max(1);
        let (x, _, columns) = Expansion { b: &mut i.b, c }.rows()?;
        let fits = features > 0 && features * count == vectors.len() && coefficients > 0;
        if !fits || columns.is_some_and(|columns| columns != features) {
            let msg = format!(
                "has {coefficients} coefficients and {count} vectors of {} numbers together, which do not fit an operand of {} features",
                vectors.len(),
                columns.map_or("unknown".to_owned(), |n| format!("{n}")),
            );
            return Err(c.error(msg).into());
        }
        let turned = (0..vectors.len()).map(|k| vectors[k % count * features + k / count]);
        let matrix = table(c, &[features, count], turned.map(f64::from).collect())?;
        let square = |v: &[f32]| v.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let squares = table(c, &[count], vectors.chunks(features).map(square).collect())?;
        let matrix = i.table(&c.sub("support_vectors"), matrix)?;
        let squares = match likeness {
            Likeness::Rbf => Some(i.table(&c.sub("squares"), squares)?),
            _ => None,
        };
        let mut e = Expansion { b: &mut i.b, c };
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
        match (likeness, squares) {
            (Likeness::Poly, _) => {
                let base = moved(&mut e, products)?;
                let degree = e.float("degree", DType::F64, params[2])?;
                e.plain("Pow", &[base, degree])
            }
            (Likeness::Sigmoid, _) => {
                let base = moved(&mut e, products)?;
                e.plain("Tanh", &[base])
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
                e.plain("Exp", &[power])
            }
            _ => Ok(products),
        }
    }
}

/// A table of numbers.
fn table(c: &ImportedNode, shape: &[usize], v: Vec<f64>) -> Result<Tensor, ModelError> {
    Tensor::from_slice(shape, &v).map_err(|e| c.error(e.to_string()))
}

/// Imports SVMRegressor: the sum of the likenesses of a row and each support vector, times its coefficient, plus `rho`.
pub(super) fn regressor(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let coefficients = c.take_floats("coefficients")?.unwrap_or_default();
    let vectors = c.take_floats("support_vectors")?.unwrap_or_default();
    let rho = c.take_floats("rho")?.unwrap_or_default();
    let measure = Measure::take(&mut c)?;
    let count = c.take_int("n_supports")?.unwrap_or(0);
    let one_class = c.take_flag("one_class", false)?;
    let transform = Transform::take(&mut c)?;
    c.no_more_attributes()?;
    let count = usize::try_from(count).map_err(|_| c.wrong("n_supports", "0 or more"))?;
    let [rho] = rho[..] else {
        return Err(c.wrong("rho", "one number").into());
    };
    // Without support vectors, the coefficients are those of the features.
    let (vectors, coefficients, measure, count) = match count {
        0 => {
            let likeness = Likeness::Linear;
            let measure = Measure {
                likeness,
                ..measure
            };
            (coefficients, vec![1.], measure, 1)
        }
        _ => (vectors, coefficients, measure, count),
    };
    let alike = measure.of_rows(i, &c, &vectors, count, coefficients.len())?;
    if coefficients.len() != count {
        let msg = format!("has {} coefficients of {count} vectors", coefficients.len());
        return Err(c.error(msg).into());
    }
    let weights = coefficients.iter().map(|x| f64::from(*x)).collect();
    let weights = table(&c, &[count, 1], weights)?;
    let weights = i.table(&c.sub("coefficients"), weights)?;
    let mut e = Expansion { b: &mut i.b, c: &c };
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

/// Imports SVMClassifier: each pair of classes has a score, and a vote for one of them. The label is that of the class
/// with most votes. The scores become probabilities if the node has the parameters for that.
pub(super) fn classifier(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let coefficients = c.take_floats("coefficients")?.unwrap_or_default();
    let vectors = c.take_floats("support_vectors")?.unwrap_or_default();
    let rho = c.take_floats("rho")?.unwrap_or_default();
    let slopes = c.take_floats("prob_a")?.unwrap_or_default();
    let offsets = c.take_floats("prob_b")?.unwrap_or_default();
    let by_class = c.take_ints("vectors_per_class")?.unwrap_or_default();
    let labels = c.take_labels("classlabels_ints", "classlabels_strings")?;
    let labels = labels.ok_or_else(|| c.error("has no class labels"))?;
    let measure = Measure::take(&mut c)?;
    let transform = Transform::take(&mut c)?;
    c.no_more_attributes()?;
    let classes = labels.elements();
    let likely = !slopes.is_empty() || !offsets.is_empty();
    if by_class.iter().all(|n| *n == 0) {
        return linear(i, &c, &coefficients, &rho, labels, transform, likely);
    }
    if classes > MOST_CLASSES {
        return Err(unsupported(format!("more than {MOST_CLASSES} classes")));
    }
    let by_class: Option<Vec<usize>> = by_class.iter().map(|n| (*n).try_into().ok()).collect();
    let by_class = by_class.filter(|v| v.len() == classes && classes > 1);
    let by_class = by_class
        .ok_or_else(|| c.wrong("vectors_per_class", "a number for each of several classes"))?;
    let count = by_class.iter().fold(0usize, |n, v| n.saturating_add(*v));
    let pairs = coupling::pairs(classes);
    let fits = coefficients.len() == (classes - 1).saturating_mul(count)
        && rho.len() == pairs.len()
        && (!likely || (slopes.len() == pairs.len() && offsets.len() == pairs.len()));
    if !fits {
        let msg = format!(
            "has {} coefficients and {} offsets for {count} vectors of {classes} classes",
            coefficients.len(),
            rho.len()
        );
        return Err(c.error(msg).into());
    }
    if pairs.len() == 1 && !likely && coefficients.iter().all(|x| *x >= 0.) {
        return Err(unsupported("a single score of positive coefficients"));
    }
    if pairs.len() == 1 && !likely && transform != Transform::None {
        return Err(unsupported("a transform of a single score"));
    }
    if count.saturating_mul(pairs.len()) > MOST_WEIGHTS {
        return Err(unsupported("so many vectors of so many classes"));
    }
    let alike = measure.of_rows(i, &c, &vectors, count, coefficients.len())?;
    let weights = pair_weights(&coefficients, &by_class, &pairs, count);
    let weights = table(&c, &[count, pairs.len()], weights)?;
    let weights = i.table(&c.sub("coefficients"), weights)?;
    let wide = |v: &[f32]| table(&c, &[v.len()], v.iter().map(|x| f64::from(*x)).collect());
    let rho = i.table(&c.sub("rho"), wide(&rho)?)?;
    let labels = i.table(&c.sub("labels"), labels)?;
    let mut e = Expansion { b: &mut i.b, c: &c };
    let sums = e.plain("MatMul", &[alike, weights])?;
    let scores = e.plain("Add", &[sums, rho])?;
    let votes = coupling::votes(&mut e, scores, &pairs, classes)?;
    let places = e.greatest(votes)?;
    let mut out = vec![e.labelled(places, labels)?];
    if e.is_read(1) {
        let scores = if likely {
            let (slopes, offsets) = (wide(&slopes)?, wide(&offsets)?);
            let slopes = i.table(&c.sub("prob_a"), slopes)?;
            let offsets = i.table(&c.sub("prob_b"), offsets)?;
            coupling::probabilities(i, &c, scores, [slopes, offsets], classes)?
        } else if pairs.len() == 1 {
            let other = e.plain("Neg", &[scores])?;
            e.joined(1, &[other, scores])?
        } else {
            scores
        };
        let mut e = Expansion { b: &mut i.b, c: &c };
        let scores = e.transformed(scores, DType::F64, transform)?;
        out.push(e.last(1, "Cast", to_dtype(DType::F32), &[scores])?);
    }
    Ok(out)
}

/// Imports SVMClassifier without support vectors: the coefficients are those of the features for each class, and each class
/// has a score. `likely` says whether the node has parameters of probabilities, which count for the label only.
fn linear(
    i: &mut Importer<'_>,
    c: &ImportedNode,
    coefficients: &[f32],
    rho: &[f32],
    labels: Tensor,
    transform: Transform,
    likely: bool,
) -> Outputs {
    let classes = labels.elements();
    let Some(rho) = rho.first() else {
        return Err(c.wrong("rho", "one number or more").into());
    };
    let measure = Measure {
        likeness: Likeness::Linear,
        params: [0.; 3],
    };
    let products = measure.of_rows(i, c, coefficients, classes, coefficients.len())?;
    let labels = i.table(&c.sub("labels"), labels)?;
    let mut e = Expansion { b: &mut i.b, c };
    let rho = e.float("rho", DType::F64, f64::from(*rho))?;
    let scores = e.plain("Add", &[products, rho])?;
    let mut places = e.greatest(scores)?;
    if classes == 2 && !likely {
        // As in ONNX Runtime, the label is the second one also where the first score is above zero, or at least a half
        // where no coefficient is negative.
        let positive = coefficients.iter().all(|x| *x >= 0.);
        let below = if positive { 0.5f64.next_down() } else { 0. };
        let axes = e.ints("axes", &[1])?;
        let most = e.plain("ReduceMax", &[scores, axes])?;
        let above = e.above(most, DType::F64, below)?;
        places = e.plain("Max", &[places, above])?;
    }
    let mut out = vec![e.labelled(places, labels)?];
    if e.is_read(1) {
        let scores = e.transformed(scores, DType::F64, transform.of_targets(classes))?;
        out.push(e.last(1, "Cast", to_dtype(DType::F32), &[scores])?);
    }
    Ok(out)
}

/// The coefficients of the vectors for each pair of classes: [count, pairs]. A row of the node's coefficients holds, for the
/// vectors of each class, those against one of the others, in the order of the classes.
fn pair_weights(
    coefficients: &[f32],
    by_class: &[usize],
    pairs: &[(usize, usize)],
    count: usize,
) -> Vec<f64> {
    let mut weights = vec![0.; count * pairs.len()];
    let first = |class: usize| by_class[..class].iter().sum::<usize>();
    for (p, (one, other)) in pairs.iter().enumerate() {
        for (class, row) in [(*one, other - 1), (*other, *one)] {
            for vector in first(class)..first(class) + by_class[class] {
                weights[vector * pairs.len() + p] = coefficients[row * count + vector].into();
            }
        }
    }
    weights
}
