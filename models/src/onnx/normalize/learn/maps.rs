//! Ops on maps, each of which is a list of keys and one of values, and ZipMap, whose maps stay a matrix.
//!
//! ```text
//! CastMap, dense    keys ──TopK──> places in the order of keys;  values ──Gather──> [1, n]
//! CastMap, sparse   [max_map + 1] of padding ──ScatterElements at keys──> Slice ──> [1, max_map]
//! DictVectorizer    [words + 1] of zeros ──ScatterElements at the keys' places──> Gather ──> [1, vocabulary]
//! ```
//!
//! The last element of the target of the scatter takes the values of all keys that have no column.

use convoke_graph::graph::{Attr, Attrs, ValueId};
use convoke_graph::printable::Listed;
use convoke_graph::{DType, Printable, Tensor};

use super::super::super::import::Importer;
use super::super::node::{Expansion, ImportFailure, ImportedNode, Made, Outputs, axis_of};

/// The most columns of a sparse CastMap.
const MOST_COLUMNS: i64 = 1 << 24;
/// The most labels of a ZipMap that a remark lists.
const MOST_LISTED: usize = 16;

/// Imports a node that reads a map, whose operands are the keys and the values of the map.
pub(in super::super::super) fn of_map(i: &mut Importer<'_>, c: ImportedNode) -> Outputs {
    if c.follows_a_refusal(&i.b) {
        return Ok(i.b.stand_ins(&c.outputs));
    }
    match c.op.as_str() {
        "CastMap" => cast_map(i, c),
        _ => dict_vectorizer(i, c),
    }
}

/// Imports CastMap.
fn cast_map(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let to = match c.take_name("cast_to")?.as_deref() {
        None | Some("TO_FLOAT") => DType::F32,
        Some("TO_INT64") => DType::I64,
        Some("TO_STRING") => DType::Str,
        Some(_) => {
            let want = "TO_FLOAT, TO_INT64 or TO_STRING";
            return Err(c.wrong("cast_to", want).into());
        }
    };
    let columns = c.take_int("max_map")?.unwrap_or(1);
    let columns = match c.take_name("map_form")?.as_deref() {
        None | Some("DENSE") => None,
        Some("SPARSE") if (1..=MOST_COLUMNS).contains(&columns) => Some(columns),
        Some("SPARSE") => {
            let want = format!("between 1 and {MOST_COLUMNS}");
            return Err(c.wrong("max_map", &want).into());
        }
        Some(_) => return Err(c.wrong("map_form", "DENSE or SPARSE").into()),
    };
    c.no_more_attributes()?;
    let (keys, values) = (c.need(0)?, c.need(1)?);
    let mut e = Expansion { b: &mut i.b, c: &c };
    let of = e.ty(keys)?.dtype;
    if of != DType::I64 {
        return Err(c.error(format!("has keys of {of} instead of i64")).into());
    }
    let values = e.cast(values, to)?;
    let y = match columns {
        None => in_order(&mut e, keys, values)?,
        Some(columns) => in_columns(&mut e, keys, values, columns)?,
    };
    row(&mut e, y)
}

/// The values in the ascending order of their keys.
fn in_order(e: &mut Expansion<'_>, keys: ValueId, values: ValueId) -> Made {
    let count = e.length(keys, 0)?;
    let name = e.c.sub("TopK");
    let names = [format!("{name}.0"), format!("{name}.1")];
    let attrs = axis_of(0).with("largest", Attr::Int(0));
    let operands = vec![Some(keys), Some(count)];
    let made = e.b.emit("TopK", &name, attrs, operands, &names)?;
    let [_, places] = made[..] else {
        return Err(e.c.error("has no keys").into());
    };
    e.op("Gather", axis_of(0), &[values, places])
}

/// The values at the places that their keys are, with padding between them. The step fails where a key is negative.
fn in_columns(e: &mut Expansion<'_>, keys: ValueId, values: ValueId, columns: i64) -> Made {
    // ONNX Runtime pads strings with this one.
    let pad = match e.ty(values)?.dtype {
        DType::Str => Tensor::from_strings(&[], &["0.f"]),
        dtype => Tensor::zeros(dtype, &[]),
    };
    let (last, zero) = (e.int("last", columns)?, e.int("zero", 0)?);
    let places = e.plain("Min", &[keys, last])?;
    // A negative place counts from the end for ScatterElements, which refuses one behind the last.
    let refused = e.int("refused", columns + 1)?;
    let is_negative = e.plain("Less", &[keys, zero])?;
    let places = e.plain("Where", &[is_negative, refused, places])?;
    let all = scattered(e, places, values, columns, pad)?;
    e.slice(all, 0, 0, columns, 1)
}

/// Imports DictVectorizer.
fn dict_vectorizer(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let words = c.take_labels("int64_vocabulary", "string_vocabulary")?;
    let words = words.ok_or_else(|| c.error("has no vocabulary"))?;
    c.no_more_attributes()?;
    let (keys, values) = (c.need(0)?, c.need(1)?);
    let e = Expansion { b: &mut i.b, c: &c };
    let (of, dtype) = (e.ty(keys)?.dtype, e.ty(values)?.dtype);
    if of != words.dtype() {
        let msg = format!("has a vocabulary of {} for keys of {of}", words.dtype());
        return Err(c.error(msg).into());
    }
    let error = |e: convoke_graph::tensor::TensorError| c.error(e.to_string());
    let (distinct, ranks) = match words.as_slice::<i64>() {
        Ok(all) => {
            let (distinct, ranks) = ranked(all);
            (Tensor::from_slice(&[distinct.len()], &distinct), ranks)
        }
        Err(_) => {
            let (distinct, ranks) = ranked(&words.to_strings().map_err(error)?);
            (Tensor::from_strings(&[distinct.len()], &distinct), ranks)
        }
    };
    let distinct = distinct.map_err(error)?;
    let count = distinct.elements() as i64;
    let places: Vec<i64> = (0..count).collect();
    let places = Tensor::from_slice(&[places.len()], &places).map_err(error)?;
    let ranks = Tensor::from_slice(&[ranks.len()], &ranks).map_err(error)?;
    let distinct = i.table(&c.sub("keys"), distinct)?;
    let places = i.table(&c.sub("places"), places)?;
    let ranks = i.table(&c.sub("ranks"), ranks)?;
    let mut e = Expansion { b: &mut i.b, c: &c };
    let other = e.int("other", count)?;
    let places = e.plain("LabelEncoder", &[keys, distinct, places, other])?;
    let missing = match dtype {
        DType::Str => Tensor::from_strings(&[], &[""]),
        dtype => Tensor::zeros(dtype, &[]),
    };
    let all = scattered(&mut e, places, values, count, missing)?;
    let y = e.op("Gather", axis_of(0), &[all, ranks])?;
    row(&mut e, y)
}

/// The distinct elements in ascending order, and for each element its place among them.
fn ranked<K: Ord + Clone>(all: &[K]) -> (Vec<K>, Vec<i64>) {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by(|a, b| all[*a].cmp(&all[*b]));
    let mut distinct: Vec<K> = Vec::new();
    let mut ranks = vec![0; all.len()];
    for at in order {
        if distinct.last() != Some(&all[at]) {
            distinct.push(all[at].clone());
        }
        ranks[at] = distinct.len() as i64 - 1;
    }
    (distinct, ranks)
}

/// A list of `columns` elements and one more with the values at their places, and `missing` elsewhere.
fn scattered(
    e: &mut Expansion<'_>,
    places: ValueId,
    values: ValueId,
    columns: i64,
    missing: Result<Tensor, convoke_graph::tensor::TensorError>,
) -> Made {
    let missing = missing.map_err(|why| e.c.error(why.to_string()))?;
    let missing = e.b.literal(&e.c.sub("missing"), missing);
    let shape = e.ints("shape", &[columns + 1])?;
    let empty = e.plain("Expand", &[missing, shape])?;
    e.op("ScatterElements", axis_of(0), &[empty, places, values])
}

/// Output 0: a list as the only row of a matrix.
fn row(e: &mut Expansion<'_>, y: ValueId) -> Outputs {
    let axes = e.ints("axes", &[0])?;
    Ok(vec![e.last(
        0,
        "Unsqueeze",
        Attrs::default(),
        &[y, axes],
    )?])
}

/// Imports ZipMap as the identity: the result is the tensor of scores, a column for each class in the order of the class
/// labels, and not a list of maps. A remark says so.
pub(super) fn zip_map(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let x = c.need(0)?;
    let labels = c.take_labels("classlabels_int64s", "classlabels_strings")?;
    let labels = labels.ok_or_else(|| c.error("has no class labels"))?;
    c.no_more_attributes()?;
    let columns = Expansion { b: &mut i.b, c: &c }.shape(x)?;
    let columns = columns.last().and_then(|d| d.as_const());
    if columns.is_some_and(|n| n != labels.elements() as i64) {
        let msg = format!("has {} class labels for other columns", labels.elements());
        return Err(c.error(msg).into());
    }
    if let Some(output) = c.outputs.first() {
        let remark = format!(
            "output '{}' is a matrix instead of a list of maps; its columns are: {}",
            Printable(output),
            listed(&c, &labels)?
        );
        let further = "further outputs are matrices instead of lists of maps, with a column for each class label";
        i.remark("is a matrix instead", remark, further);
    }
    c.finish(&mut i.b, "Identity", Attrs::default(), vec![Some(x)])
}

/// The first of some labels, and how many more there are.
fn listed(c: &ImportedNode, labels: &Tensor) -> Result<String, ImportFailure> {
    let mut all: Vec<String> = match labels.as_slice::<i64>() {
        Ok(all) => all.iter().take(MOST_LISTED).map(i64::to_string).collect(),
        Err(_) => {
            let all = labels.strings().map_err(|e| c.error(e.to_string()))?;
            let first = all.iter().take(MOST_LISTED);
            first.map(|s| format!("'{}'", Listed(s))).collect()
        }
    };
    if labels.elements() > MOST_LISTED {
        all.push(format!("and {} more", labels.elements() - MOST_LISTED));
    }
    Ok(all.join(", "))
}
