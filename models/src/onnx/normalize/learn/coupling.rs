//! Votes and probabilities of classes, made from the scores of pairs of classes as libsvm couples them.

use convoke_graph::graph::{Attr, Attrs, TensorType, ValueId};
use convoke_graph::{DType, Tensor};

use super::super::super::builder::Builder;
use super::super::super::import::Importer;
use super::super::node::{Expansion, ImportFailure, ImportedNode, Made, axis_of, perm_of};

/// The most rounds in which probabilities approach those of the pairs.
const ROUNDS: i64 = 100;
/// How close a pair's probability may come to 0 and 1.
const LEAST: f64 = 1e-7;

/// The pairs of classes, in the order of their scores.
pub(super) fn pairs(classes: usize) -> Vec<(usize, usize)> {
    let of = |one: usize| (one + 1..classes).map(move |other| (one, other));
    (0..classes).flat_map(of).collect()
}

/// How many pairs vote for each class: f64 [N, classes], of scores [N, pairs]. A score above zero is a vote for the first one.
pub(super) fn votes(
    e: &mut Expansion<'_>,
    scores: ValueId,
    pairs: &[(usize, usize)],
    classes: usize,
) -> Made {
    let mut places = [
        vec![0f64; pairs.len() * classes],
        vec![0f64; pairs.len() * classes],
    ];
    for (p, (one, other)) in pairs.iter().enumerate() {
        places[0][p * classes + one] = 1.;
        places[1][p * classes + other] = 1.;
    }
    let zero = e.float("zero", DType::F64, 0.)?;
    let above = e.plain("Greater", &[scores, zero])?;
    let below = e.plain("Not", &[above])?;
    let mut counts = Vec::new();
    for (votes, places) in [above, below].into_iter().zip(places) {
        let places = Tensor::from_slice(&[pairs.len(), classes], &places);
        let places = places.map_err(|t| e.c.error(t.to_string()))?;
        let places = e.b.literal(&e.c.sub("votes"), places);
        let votes = e.cast(votes, DType::F64)?;
        counts.push(e.plain("MatMul", &[votes, places])?);
    }
    e.plain("Add", &counts)
}

/// The probabilities of the classes: f64 [N, classes]. `fit` has the slopes and the offsets by which scores [N, pairs] become
/// probabilities of the pairs.
pub(super) fn probabilities(
    i: &mut Importer<'_>,
    c: &ImportedNode,
    scores: ValueId,
    fit: [ValueId; 2],
    classes: usize,
) -> Made {
    let mut e = Expansion { b: &mut i.b, c };
    let each = matrix(&mut e, scores, fit, classes)?;
    let turned = e.op("Transpose", perm_of(&[0, 2, 1]), &[each])?;
    let squares = e.plain("Mul", &[turned, turned])?;
    let axes = e.ints("axes", &[2])?;
    let diagonal = e.plain("ReduceSum", &[squares, axes])?;
    let products = e.plain("Mul", &[each, turned])?;
    let products = e.plain("Neg", &[products])?;
    let mut unit = vec![0f64; classes * classes];
    (0..classes).for_each(|k| unit[k * classes + k] = 1.);
    let unit = Tensor::from_slice(&[classes, classes], &unit);
    let unit = unit.map_err(|t| c.error(t.to_string()))?;
    let unit = e.b.literal(&c.sub("unit"), unit);
    let on_diagonal = e.plain("Mul", &[diagonal, unit])?;
    let q = e.plain("Add", &[products, on_diagonal])?;
    let rows = e.length(scores, 0)?;
    let width = e.ints("classes", &[classes as i64])?;
    let shape = e.joined(0, &[rows, width])?;
    let equal = e.float("equal", DType::F64, 1. / classes as f64)?;
    let start = e.plain("Expand", &[equal, shape])?;
    rounds(i, c, start, q, unit, classes)
}

/// The probability of each class against each other one: f64 [N, classes, classes], with zeros on the diagonal.
fn matrix(e: &mut Expansion<'_>, scores: ValueId, fit: [ValueId; 2], classes: usize) -> Made {
    let y = e.plain("Mul", &[scores, fit[0]])?;
    let y = e.plain("Add", &[y, fit[1]])?;
    let y = e.plain("Neg", &[y])?;
    let y = e.plain("Sigmoid", &[y])?;
    let least = e.float("least", DType::F64, LEAST)?;
    let most = e.float("most", DType::F64, 1. - LEAST)?;
    let y = e.plain("Clip", &[y, least, most])?;
    let one = e.float("one", DType::F64, 1.)?;
    let other = e.plain("Sub", &[one, y])?;
    let none = e.plain("Sub", &[y, y])?;
    let all = e.joined(1, &[y, other, none])?;
    let pairs = pairs(classes);
    let place = |k: usize| {
        let (row, column) = (k / classes, k % classes);
        let pair = (row.min(column), row.max(column));
        let known = pairs.iter().position(|p| *p == pair);
        match known {
            Some(p) if row < column => p as i64,
            Some(p) => (pairs.len() + p) as i64,
            None => 2 * pairs.len() as i64,
        }
    };
    let places: Vec<i64> = (0..classes * classes).map(place).collect();
    let places = e.ints("places", &places)?;
    let flat = e.op("Gather", axis_of(1), &[all, places])?;
    e.reshaped(flat, &[-1, classes as i64, classes as i64])
}

/// Adds the loop that moves the probabilities of all rows towards those of the pairs. A row that is close stays as it is.
fn rounds(
    i: &mut Importer<'_>,
    c: &ImportedNode,
    start: ValueId,
    q: ValueId,
    unit: ValueId,
    classes: usize,
) -> Made {
    let ty = i.b.ty(start).cloned();
    let body = i.settled(vec![ty], 1, |i, types| {
        i.body(&c.name, |i| {
            i.b.param(&c.sub("round"), TensorType::new(DType::I64, vec![]));
            i.b.param(&c.sub("goes_on"), TensorType::new(DType::Bool, vec![]));
            let p = types.first().cloned().flatten();
            let p = i.b.param_of(&c.sub("probabilities"), p);
            let outer = i.enclosing.last();
            let outer = outer.ok_or_else(|| c.error("is in no function"))?;
            let (q, unit) = (i.b.capture(outer, q), i.b.capture(outer, unit));
            match round(&mut i.b, c, p, [q, unit], classes) {
                Ok(results) => Ok(results),
                Err(ImportFailure::Error(e)) => Err(e),
                Err(_) => Err(c.error("has scores of a type that is not known")),
            }
        })
    })?;
    let mut e = Expansion { b: &mut i.b, c };
    let most = e.int("rounds", ROUNDS)?;
    // A condition makes the loop ask for the first result of its body.
    let goes_on = Tensor::from_bools(&[], &[true]).map_err(|e| c.error(e.to_string()))?;
    let goes_on = e.b.literal(&c.sub("goes_on"), goes_on);
    let operands = [Some(most), Some(goes_on), Some(start)].into_iter();
    let names = [c.sub("probabilities")];
    let made = body.emit(
        &mut i.b,
        "Loop",
        &c.sub("Loop"),
        Attrs::default(),
        operands,
        &names,
    )?;
    let made = made.first().copied();
    Ok(made.ok_or_else(|| c.error("has no scores"))?)
}

/// One round: whether a row is not close yet, and the probabilities after it.
fn round(
    b: &mut Builder,
    c: &ImportedNode,
    p: ValueId,
    [q, unit]: [ValueId; 2],
    classes: usize,
) -> Result<Vec<ValueId>, ImportFailure> {
    let mut e = Expansion { b, c };
    let axes = e.ints("axes", &[1])?;
    let last = e.ints("axes", &[2])?;
    let two = e.float("two", DType::F64, 2.)?;
    let one = e.float("one", DType::F64, 1.)?;
    let column = e.unsqueezed(p, &[2])?;
    let products = e.plain("MatMul", &[q, column])?;
    let mut qp = e.plain("Squeeze", &[products, last])?;
    let weighted = e.plain("Mul", &[p, qp])?;
    let mut pqp = e.plain("ReduceSum", &[weighted, axes])?;
    let apart = e.plain("Sub", &[qp, pqp])?;
    let apart = e.plain("Abs", &[apart])?;
    let apart = e.plain("ReduceMax", &[apart, axes])?;
    let limit = e.float("limit", DType::F64, 0.005 / classes as f64)?;
    let close = e.plain("Less", &[apart, limit])?;
    let mut moved = p;
    for class in 0..classes as i64 {
        let own = e.slice(qp, 1, class, class + 1, 1)?;
        let row = e.slice(q, 1, class, class + 1, 1)?;
        let row = e.plain("Squeeze", &[row, axes])?;
        let diagonal = e.slice(row, 1, class, class + 1, 1)?;
        let place = e.slice(unit, 0, class, class + 1, 1)?;
        let step = e.plain("Sub", &[pqp, own])?;
        let step = e.plain("Div", &[step, diagonal])?;
        let scale = e.plain("Add", &[step, one])?;
        let added = e.plain("Mul", &[step, place])?;
        moved = e.plain("Add", &[moved, added])?;
        moved = e.plain("Div", &[moved, scale])?;
        let first = e.plain("Mul", &[step, diagonal])?;
        let second = e.plain("Mul", &[own, two])?;
        let both = e.plain("Add", &[first, second])?;
        let both = e.plain("Mul", &[step, both])?;
        pqp = e.plain("Add", &[pqp, both])?;
        pqp = e.plain("Div", &[pqp, scale])?;
        pqp = e.plain("Div", &[pqp, scale])?;
        let added = e.plain("Mul", &[step, row])?;
        qp = e.plain("Add", &[qp, added])?;
        qp = e.plain("Div", &[qp, scale])?;
    }
    let moved = e.plain("Where", &[close, p, moved])?;
    let farthest = e.op(
        "ReduceMax",
        Attrs::default().with("keepdims", Attr::Int(0)),
        &[apart],
    )?;
    let close = e.plain("Less", &[farthest, limit])?;
    let goes_on = e.plain("Not", &[close])?;
    Ok(vec![goes_on, moved])
}
