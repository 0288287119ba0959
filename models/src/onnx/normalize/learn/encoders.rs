//! Ops that look up elements in a table.

use std::cmp::Ordering;

use convoke_graph::graph::{Attr, Attrs};
use convoke_graph::{DType, Tensor};

use super::super::super::import::Importer;
use super::super::node::{Expansion, ImportFailure, ImportedNode, Outputs, unsupported};
use crate::error::ModelError;

/// Imports LabelEncoder.
pub(super) fn label_encoder(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    if c.opset < 2 {
        return by_index(i, c, "classes_strings");
    }
    let keys = lists(&mut c, "keys")?.ok_or_else(|| c.error("has no keys"))?;
    let values = lists(&mut c, "values")?.ok_or_else(|| c.error("has no values"))?;
    let strings = c.take_name("default_string")?;
    let (int, float) = (c.take_int("default_int64")?, c.take_float("default_float")?);
    let default = match (c.take_tensor("default_tensor")?, values.dtype()) {
        (Some(t), dtype) if t.dtype() == dtype && t.elements() == 1 => t.reshape(&[]),
        (Some(_), _) => {
            return Err(c
                .wrong("default_tensor", "one value of the values' type")
                .into());
        }
        (None, DType::Str) => {
            Tensor::from_strings(&[], &[strings.as_deref().unwrap_or("_Unused")]).ok()
        }
        (None, DType::I64) => Some(Tensor::scalar(int.unwrap_or(-1))),
        (None, DType::F32) => Some(Tensor::scalar(float.unwrap_or(-0.0))),
        (None, DType::F64) => Some(Tensor::scalar(-0.0f64)),
        (None, DType::I32) => Some(Tensor::scalar(-1i32)),
        (None, DType::I16) => Some(Tensor::scalar(-1i16)),
        (None, _) => None,
    };
    let default = default.ok_or_else(|| unsupported("values of this type"))?;
    encoded(i, c, Equal::First, &keys, &values, default)
}

/// The keys or values of a LabelEncoder: of one of several attributes.
fn lists(c: &mut ImportedNode, what: &str) -> Result<Option<Tensor>, ImportFailure> {
    let error = |c: &ImportedNode, e: convoke_graph::tensor::TensorError| c.error(e.to_string());
    if let Some(t) = c.take_tensor(&format!("{what}_tensor"))? {
        let flat = t.reshape(&[t.elements()]);
        return Ok(flat);
    }
    let floats = c.take_floats(&format!("{what}_floats"))?;
    if let Some(v) = floats {
        let t = Tensor::from_slice(&[v.len()], &v).map_err(|e| error(c, e))?;
        return Ok(Some(t));
    }
    let (ints, strings) = (format!("{what}_int64s"), format!("{what}_strings"));
    Ok(c.take_labels(&ints, &strings)?)
}

/// Imports the first LabelEncoder, and CategoryMapper with the numbers of its categories: strings become numbers, and numbers
/// strings.
fn by_index(i: &mut Importer<'_>, mut c: ImportedNode, strings: &str) -> Outputs {
    let words = c.take_strings(strings)?.unwrap_or_default();
    let numbers = c.take_ints("cats_int64s")?;
    let numbers = numbers.unwrap_or_else(|| (0..words.len() as i64).collect());
    let error = |e: convoke_graph::tensor::TensorError| c.error(e.to_string());
    let words = Tensor::from_strings(&[words.len()], &words).map_err(error)?;
    let numbers = Tensor::from_slice(&[numbers.len()], &numbers).map_err(error)?;
    let string = c.take_name("default_string")?.unwrap_or("_Unused".into());
    let int = c.take_int("default_int64")?.unwrap_or(-1);
    let from = Expansion { b: &mut i.b, c: &c }.ty(c.need(0)?)?.dtype;
    if from == DType::Str {
        return encoded(i, c, Equal::Last, &words, &numbers, Tensor::scalar(int));
    }
    let default = Tensor::from_strings(&[], &[string]).map_err(|e| c.error(e.to_string()))?;
    encoded(i, c, Equal::Last, &numbers, &words, default)
}

/// Imports CategoryMapper.
pub(super) fn category_mapper(i: &mut Importer<'_>, c: ImportedNode) -> Outputs {
    by_index(i, c, "cats_strings")
}

/// The one that counts of keys that are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Equal {
    First,
    Last,
}

/// Adds a LabelEncoder whose keys are in order.
fn encoded(
    i: &mut Importer<'_>,
    c: ImportedNode,
    equal: Equal,
    keys: &Tensor,
    values: &Tensor,
    default: Tensor,
) -> Outputs {
    c.no_more_attributes()?;
    let x = c.need(0)?;
    let dtype = Expansion { b: &mut i.b, c: &c }.ty(x)?.dtype;
    if dtype != keys.dtype() {
        let msg = format!("has keys of {} for an operand of {dtype}", keys.dtype());
        return Err(c.error(msg).into());
    }
    if keys.elements() != values.elements() {
        let (keys, values) = (keys.elements(), values.elements());
        return Err(c
            .error(format!("has {keys} keys and {values} values"))
            .into());
    }
    let order = order(keys, equal).ok_or_else(|| unsupported(format!("keys of {dtype}")))?;
    let keys = taken(&c, keys, &order)?;
    let values = taken(&c, values, &order)?;
    let keys = i.table(&c.sub("keys"), keys)?;
    let values = i.table(&c.sub("values"), values)?;
    let default = i.table(&c.sub("default"), default)?;
    let operands = [x, keys, values, default].map(Some).to_vec();
    c.finish(&mut i.b, "LabelEncoder", Attrs::default(), operands)
}

/// The places of keys in ascending order, NaN last, of which each occurs once.
fn order(keys: &Tensor, equal: Equal) -> Option<Vec<usize>> {
    // Among equal keys, the one that stands first in this order stays.
    let places = || -> Vec<usize> {
        match equal {
            Equal::First => (0..keys.elements()).collect(),
            Equal::Last => (0..keys.elements()).rev().collect(),
        }
    };
    fn by<K>(
        mut all: Vec<usize>,
        keys: Vec<K>,
        compare: impl Fn(&K, &K) -> Ordering,
    ) -> Vec<usize> {
        all.sort_by(|a, b| compare(&keys[*a], &keys[*b]));
        all.dedup_by(|b, a| compare(&keys[*a], &keys[*b]).is_eq());
        all
    }
    fn real(a: &f64, b: &f64) -> Ordering {
        let nans = a.is_nan().cmp(&b.is_nan());
        a.partial_cmp(b).unwrap_or(nans)
    }
    Some(match keys.dtype() {
        DType::Str => by(places(), keys.to_strings().ok()?, String::cmp),
        DType::F64 => by(places(), keys.as_slice::<f64>().ok()?.to_vec(), real),
        DType::F32 => {
            let wide = keys.as_slice::<f32>().ok()?.iter().map(|x| f64::from(*x));
            by(places(), wide.collect(), real)
        }
        DType::I64 | DType::I32 | DType::I16 => by(places(), keys.to_i64s()?, i64::cmp),
        _ => return None,
    })
}

/// The elements of a list at these places.
fn taken(c: &ImportedNode, t: &Tensor, at: &[usize]) -> Result<Tensor, ModelError> {
    let shape = [at.len()];
    let made = match t.strings() {
        Ok(all) => Tensor::of_strings(&shape, at.iter().map(|i| all.get(*i))),
        Err(_) => {
            let size = t.dtype().width();
            let bytes: Vec<u8> = at
                .iter()
                .flat_map(|i| t.bytes()[i * size..(i + 1) * size].to_vec())
                .collect();
            Tensor::from_bytes(t.dtype(), &shape, &bytes)
        }
    };
    made.map_err(|e| c.error(e.to_string()))
}

/// Imports OneHotEncoder.
pub(super) fn one_hot(i: &mut Importer<'_>, mut c: ImportedNode) -> Outputs {
    let categories = c.take_labels("cats_int64s", "cats_strings")?;
    let categories = categories.ok_or_else(|| c.error("has no categories"))?;
    let zeros = c.take_flag("zeros", true)?;
    c.no_more_attributes()?;
    let mut e = Expansion { b: &mut i.b, c: &c };
    let x = c.need(0)?;
    let dtype = e.ty(x)?.dtype;
    let x = match (dtype, categories.dtype()) {
        (DType::Str, DType::Str) => x,
        // A fraction is cut off before the comparison.
        (from, DType::I64) if from != DType::Str => e.cast(x, DType::I64)?,
        (from, of) => return Err(c.error(format!("has categories of {of} for {from}")).into()),
    };
    let categories = i.table(&c.sub("categories"), categories)?;
    let attrs = Attrs::default().with("zeros", Attr::Int(i64::from(zeros)));
    let operands = [x, categories].map(Some).to_vec();
    c.finish(&mut i.b, "OneHotEncoder", attrs, operands)
}
