//! Einsum by transposes, sums and products of matrices.
//!
//! Operands are taken from left to right. Each operand is first reduced by itself: to the diagonal of a repeated label,
//! and by the sum over a label that nothing else has. Two operands whose common labels are summed are one stack of
//! matrix products:
//!
//! ```text
//! a [both kept.., only a.., summed..] · b [both kept.., summed.., only b..] = [both kept.., only a.., only b..]
//! ```

mod equation;

use std::collections::{BTreeMap, BTreeSet};

use convoke_graph::graph::{Attr, Attrs, ValueId};
use convoke_graph::{DType, Dim};

use super::super::builder::Builder;
use super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, exact, perm_of, without_axes,
};
use equation::{Equation, Label};

/// A value whose axes have labels, none of them twice.
struct Labelled {
    x: ValueId,
    labels: Vec<Label>,
}

/// Imports Einsum.
pub(super) fn einsum(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let equation = c.take_name("equation")?;
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let equation = equation.ok_or_else(|| c.error("attribute 'equation' is missing"))?;
    let given: Vec<ValueId> = (0..c.inputs.len())
        .map(|i| c.need(i))
        .collect::<Result<_, _>>()?;
    if given.is_empty() {
        return Err(c.error("has no operands").into());
    }
    let mut e = Expansion { b, c: &c };
    let mut ranks = Vec::with_capacity(given.len());
    for x in &given {
        ranks.push(e.shape(*x)?.len());
    }
    let equation = Equation::parse(&equation, &ranks)
        .map_err(|reason| c.error(format!("equation '{equation}' {reason}")))?;
    check_lengths(&e, &given, &equation)?;
    let mut all = Vec::with_capacity(given.len());
    for (x, labels) in given.into_iter().zip(&equation.operands) {
        all.push(diagonal(&mut e, x, labels)?);
    }
    stretch(&mut e, &mut all)?;
    // By label, how many of the results that are still to come have it: the operands that follow, and the result.
    let mut uses: BTreeMap<Label, usize> = BTreeMap::new();
    for label in all.iter().flat_map(|o| &o.labels).chain(&equation.result) {
        *uses.entry(*label).or_default() += 1;
    }
    let taken = |uses: &mut BTreeMap<Label, usize>, operand: &Labelled| {
        for label in &operand.labels {
            if let Some(uses) = uses.get_mut(label) {
                *uses -= 1;
            }
        }
    };
    let is_needed = |uses: &BTreeMap<Label, usize>, l: &Label| uses.get(l).is_some_and(|n| *n > 0);
    let mut rest = all.into_iter();
    let mut left = rest.next().ok_or_else(|| c.error("has no operands"))?;
    taken(&mut uses, &left);
    loop {
        left = summed(&mut e, left, |l| is_needed(&uses, l))?;
        let Some(right) = rest.next() else { break };
        taken(&mut uses, &right);
        let needed = |l: &Label| is_needed(&uses, l);
        let own = left.labels.clone();
        let right = summed(&mut e, right, |l| needed(l) || own.contains(l))?;
        left = multiplied(&mut e, left, right, needed)?;
    }
    let perm = places(&left.labels, &equation.result);
    let perm = perm.ok_or_else(|| c.error("an axis of the result is in no operand"))?;
    let y = match perm.is_sorted() {
        true => e.last(0, "Identity", Attrs::default(), &[left.x])?,
        false => e.last(0, "Transpose", perm_of(&perm), &[left.x])?,
    };
    Ok(vec![y])
}

/// The places of `wanted` in `labels`.
fn places(labels: &[Label], wanted: &[Label]) -> Option<Vec<usize>> {
    let place = |w: &Label| labels.iter().position(|l| l == w);
    wanted.iter().map(place).collect()
}

/// Checks that axes of one label have one length, where an axis of length 1 fits any of another operand.
fn check_lengths(
    e: &Expansion<'_>,
    given: &[ValueId],
    equation: &Equation,
) -> Result<(), ImportFailure> {
    let mut known: Vec<(Label, i64)> = Vec::new();
    for (x, labels) in given.iter().zip(&equation.operands) {
        let shape = e.shape(*x)?;
        for (i, (d, label)) in shape.iter().zip(labels).enumerate() {
            let same = labels[..i].iter().position(|l| l == label);
            let pair = same.and_then(|same| shape[same].as_const().zip(d.as_const()));
            if let Some((a, b)) = pair.filter(|(a, b)| a != b) {
                let reason = format!("axes of one label in one operand have lengths {a} and {b}");
                return Err(e.c.error(reason).into());
            }
            let Some(d) = d.as_const().filter(|d| *d != 1) else {
                continue;
            };
            match known.iter().find(|(l, _)| l == label) {
                Some((_, other)) if *other != d => {
                    let reason = format!("axes of one label have lengths {other} and {d}");
                    return Err(e.c.error(reason).into());
                }
                Some(_) => {}
                None => known.push((*label, d)),
            }
        }
    }
    Ok(())
}

/// `x` with one axis for each label: of axes with the same label, only the elements with equal indices are kept.
fn diagonal(
    e: &mut Expansion<'_>,
    x: ValueId,
    labels: &[Label],
) -> Result<Labelled, ImportFailure> {
    let (mut x, mut labels) = (x, labels.to_vec());
    let twice = |labels: &[Label]| {
        let pair = |j: usize| Some((labels[..j].iter().position(|l| *l == labels[j])?, j));
        (0..labels.len()).find_map(pair)
    };
    while let Some((i, j)) = twice(&labels) {
        let mut perm: Vec<usize> = (0..labels.len()).filter(|k| *k != i && *k != j).collect();
        perm.extend([i, j]);
        x = e.transposed(x, &perm)?;
        labels = perm.iter().map(|k| labels[*k]).collect();
        labels.pop();
        // Everything beside the diagonal becomes zero, and the sum of a row is its element of the diagonal.
        let shape = e.shape(x)?;
        let last = shape.len() - 1;
        let length = e.length(x, last as i64)?;
        if shape[last - 1] != shape[last] {
            // This fails where the axes turn out to differ in length.
            let mut square: Vec<ValueId> = some_lengths(e, x, 0, last - 1)?.into_iter().collect();
            square.extend([length, length]);
            let square = e.joined(0, &square)?;
            x = e.op("Reshape", exact(), &[x, square])?;
        }
        let length = e.scalar(length)?;
        let column = e.counted(length)?;
        let row = e.unsqueezed(column, &[1])?;
        let equal = e.plain("Equal", &[row, column])?;
        let zero = zero(e, x)?;
        x = e.plain("Where", &[equal, x, zero])?;
        let axes = e.ints("axes", &[-1])?;
        x = e.op("ReduceSum", without_axes(), &[x, axes])?;
    }
    Ok(Labelled { x, labels })
}

/// A zero of a value's dtype.
fn zero(e: &mut Expansion<'_>, x: ValueId) -> Made {
    let dtype: DType = e.ty(x)?.dtype;
    let zero = e.int("zero", 0)?;
    e.cast(zero, dtype)
}

/// Removes axes of length 1 where another operand's axis of that label has another length.
fn stretch(e: &mut Expansion<'_>, all: &mut [Labelled]) -> Result<(), ImportFailure> {
    let mut long: BTreeSet<Label> = BTreeSet::new();
    for operand in all.iter() {
        let shape = e.shape(operand.x)?;
        let lengths = operand.labels.iter().zip(&shape);
        long.extend(
            lengths
                .filter(|(_, d)| !d.is_one_or_none())
                .map(|(l, _)| *l),
        );
    }
    for operand in all {
        let shape = e.shape(operand.x)?;
        let short = |k: &usize| shape[*k].is_one_or_none() && long.contains(&operand.labels[*k]);
        let gone: Vec<usize> = (0..shape.len()).filter(short).collect();
        if !gone.is_empty() {
            let axes: Vec<i64> = gone.iter().map(|k| *k as i64).collect();
            let axes = e.ints("axes", &axes)?;
            operand.x = e.plain("Squeeze", &[operand.x, axes])?;
            let kept = (0..operand.labels.len()).filter(|k| !gone.contains(k));
            operand.labels = kept.map(|k| operand.labels[k]).collect();
        }
    }
    Ok(())
}

/// The sum over all axes whose labels nothing needs.
fn summed(
    e: &mut Expansion<'_>,
    operand: Labelled,
    needed: impl Fn(&Label) -> bool,
) -> Result<Labelled, ImportFailure> {
    let gone: Vec<i64> = (0..operand.labels.len())
        .filter(|k| !needed(&operand.labels[*k]))
        .map(|k| k as i64)
        .collect();
    if gone.is_empty() {
        return Ok(operand);
    }
    let axes = e.ints("axes", &gone)?;
    let x = e.op("ReduceSum", without_axes(), &[operand.x, axes])?;
    let labels = operand.labels.into_iter().filter(|l| needed(l)).collect();
    Ok(Labelled { x, labels })
}

/// The product of two operands, summed over the common labels that nothing needs.
fn multiplied(
    e: &mut Expansion<'_>,
    a: Labelled,
    b: Labelled,
    needed: impl Fn(&Label) -> bool,
) -> Result<Labelled, ImportFailure> {
    let (mut both, mut gone) = (Vec::new(), Vec::new());
    for label in &a.labels {
        if b.labels.contains(label) {
            if needed(label) { &mut both } else { &mut gone }.push(*label);
        }
    }
    let only = |own: &[Label], other: &[Label]| -> Vec<Label> {
        own.iter().filter(|l| !other.contains(l)).copied().collect()
    };
    let (only_a, only_b) = (only(&a.labels, &b.labels), only(&b.labels, &a.labels));
    let labels: Vec<Label> = [&both, &only_a, &only_b]
        .into_iter()
        .flatten()
        .copied()
        .collect();
    let ordered = |e: &mut Expansion<'_>, o: &Labelled, parts: [&[Label]; 3]| -> Made {
        let perm = places(&o.labels, &parts.concat()).unwrap_or_default();
        e.transposed(o.x, &perm)
    };
    if gone.is_empty() {
        let x = ordered(e, &a, [&both, &only_a, &[]])?;
        let y = ordered(e, &b, [&both, &only_b, &[]])?;
        let (first, end) = (both.len(), both.len() + only_a.len());
        let behind: Vec<i64> = (end..end + only_b.len()).map(|k| k as i64).collect();
        let between: Vec<i64> = (first..end).map(|k| k as i64).collect();
        let x = e.unsqueezed(x, &behind)?;
        let y = e.unsqueezed(y, &between)?;
        let x = e.plain("Mul", &[x, y])?;
        return Ok(Labelled { x, labels });
    }
    let x = ordered(e, &a, [&both, &only_a, &gone])?;
    let y = ordered(e, &b, [&both, &gone, &only_b])?;
    let stack = both.len();
    let left = as_matrices(e, x, stack, only_a.len())?;
    let right = as_matrices(e, y, stack, gone.len())?;
    let product = e.plain("MatMul", &[left, right])?;
    if only_a.len() == 1 && only_b.len() == 1 {
        return Ok(Labelled { x: product, labels });
    }
    // The axes of the rows and the columns get their own lengths again.
    let mut lengths = Vec::new();
    for (from, first, count) in [
        (product, 0, stack),
        (x, stack, only_a.len()),
        (y, stack + gone.len(), only_b.len()),
    ] {
        lengths.extend(some_lengths(e, from, first, count)?);
    }
    let x = match lengths.is_empty() {
        true => {
            let none = e.ints("shape", &[])?;
            e.plain("Reshape", &[product, none])?
        }
        false => {
            let shape = e.joined(0, &lengths)?;
            e.op("Reshape", exact(), &[product, shape])?
        }
    };
    Ok(Labelled { x, labels })
}

/// The lengths of `count` axes of `x` from `first` on, as a list; `None` where there are no such axes.
fn some_lengths(
    e: &mut Expansion<'_>,
    x: ValueId,
    first: usize,
    count: usize,
) -> Result<Option<ValueId>, ImportFailure> {
    if count == 0 {
        return Ok(None);
    }
    let shape = e.shape(x)?;
    let range = shape.get(first..first + count).unwrap_or_default();
    if let Some(known) = range
        .iter()
        .map(Dim::as_const)
        .collect::<Option<Vec<i64>>>()
    {
        return Ok(Some(e.ints("lengths", &known)?));
    }
    let attrs = Attrs::default()
        .with("start", Attr::Int(first as i64))
        .with("end", Attr::Int((first + count) as i64));
    Ok(Some(e.op("Shape", attrs, &[x])?))
}

/// `x` as a stack of matrices: the first `stack` axes stay, the next `rows` axes are the rows, and all others are the
/// columns.
fn as_matrices(e: &mut Expansion<'_>, x: ValueId, stack: usize, rows: usize) -> Made {
    let rank = e.shape(x)?.len();
    let columns = rank - stack - rows;
    if rows == 1 && columns == 1 {
        return Ok(x);
    }
    let mut lengths = Vec::new();
    lengths.extend(some_lengths(e, x, 0, stack)?);
    for (first, count) in [(stack, rows), (stack + rows, columns)] {
        lengths.push(match some_lengths(e, x, first, count)? {
            Some(all) if count == 1 => all,
            Some(all) => e.plain("ReduceProd", &[all])?,
            None => e.ints("one", &[1])?,
        });
    }
    let shape = e.joined(0, &lengths)?;
    e.op("Reshape", exact(), &[x, shape])
}
