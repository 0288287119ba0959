//! The types of the graph's inputs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use convoke_graph::graph::TensorType;
use convoke_graph::tensor::{MAX_RANK, byte_size};
use convoke_graph::{DType, Dim, Printable};

use super::proto::{
    GraphProto, ModelProto, TypeProto, ValueInfoProto, tensor_shape_proto, type_proto,
};
use super::scope::Initializer;
use super::{lengths, tensor};
use crate::error::ModelError;

/// An input's description, as far as it is known when a model is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GivenInput {
    /// Calls give the input a tensor of this rank. It decides for an input whose rank the model does not declare, and
    /// for one that has a constant of the model as its default, which otherwise is that constant; it has no effect on
    /// others.
    Tensor(usize),
    /// Calls give the input a tensor of this shape. As for [`GivenInput::Tensor`]. Besides, all calls must give that
    /// many elements where the input is a list whose elements are a shape or axes that decide the rank of a tensor; and
    /// those sizes of axes that decide the rank of a tensor in another way.
    Shape(Vec<usize>),
    /// The optional input is left out.
    Nothing,
    /// The sequence has a tensor of each of these ranks. In calls they are the inputs `NAME[0]`, `NAME[1]` and so on.
    Sequence(Vec<usize>),
}

impl GivenInput {
    /// The rank of the tensor that calls give.
    fn rank(&self) -> Option<usize> {
        match self {
            GivenInput::Tensor(rank) => Some(*rank),
            GivenInput::Shape(shape) => Some(shape.len()),
            GivenInput::Nothing | GivenInput::Sequence(_) => None,
        }
    }
}

/// An input of the graph.
pub(super) enum GraphInput {
    Tensor(TensorType),
    Nothing,
    Sequence(Vec<TensorType>),
    /// A map: the types of the list of its keys, and of that of its values.
    Map(Box<[TensorType; 2]>),
}

/// The most tensors of a sequence. Each is a value of the function, and often a node.
pub(super) const MOST_TENSORS: usize = 1 << 10;

/// The name of the tensor number `at` of the sequence `name`, which is an input or an output of the graph.
pub(super) fn sequence_name(name: &str, at: usize) -> String {
    format!("{name}[{at}]")
}

/// The names of the lists of keys and of values of the map `name`, which is an input of the graph.
pub(super) fn map_names(name: &str) -> [String; 2] {
    [format!("{name}.keys"), format!("{name}.values")]
}

/// Sizes of dimensions of inputs that the model leaves open, by symbol.
pub(super) type FixedSizes = BTreeMap<Arc<str>, usize>;

/// The names and types of the graph's inputs, without those that have an initializer as their default which is not
/// replaced.
pub(super) fn types<'a>(
    graph: &'a GraphProto,
    initializers: &HashMap<&'a str, Initializer<'a>>,
    given: &BTreeMap<String, GivenInput>,
    fixed: &FixedSizes,
) -> Result<Vec<(&'a str, GraphInput)>, ModelError> {
    let is_fed = |name| given.get(name).is_some_and(|g| g.rank().is_some());
    let declared = graph.input.iter();
    let fed = declared.filter(|i| is_fed(i.name()) || !initializers.contains_key(i.name()));
    let inputs: Vec<_> = fed.collect();
    check_given(&inputs, given)?;
    // The symbols that the model names. Symbols for unknown dimensions must differ from them.
    let mut symbols = HashSet::new();
    for i in &inputs {
        if let Some(shape) = tensor_type(i.r#type.as_ref()).and_then(|t| t.shape.as_ref()) {
            symbols.extend(shape.dim.iter().filter_map(symbol));
        }
    }
    inputs
        .into_iter()
        .map(|i| {
            let what = || format!("input '{}'", Printable(i.name()));
            let unsupported = |reason| ModelError::UnsupportedType {
                what: what(),
                reason,
            };
            let wrong = |reason| ModelError::Input {
                input: i.name().into(),
                reason,
            };
            let given = given.get(i.name());
            if let (true, Some(GivenInput::Nothing)) = (is_optional(i.r#type.as_ref()), given) {
                return Ok((i.name(), GraphInput::Nothing));
            }
            let ty = held(i.r#type.as_ref());
            if let Some(map) = map_type(ty) {
                let types = map_types(i.name(), map, &symbols).map_err(unsupported)?;
                return Ok((i.name(), GraphInput::Map(Box::new(types))));
            }
            let sequence = sequence_type(ty);
            let t = tensor_type(if sequence.is_some() { sequence } else { ty });
            let t = t.ok_or_else(|| unsupported("is not a tensor".into()))?;
            let dtype = tensor::dtype(t.elem_type()).map_err(unsupported)?;
            let input = match (sequence, given) {
                (None, _) => {
                    let rank = given.and_then(GivenInput::rank);
                    let mut shape = shape(i.name(), dtype, t, rank, &symbols).map_err(wrong)?;
                    if let (Some(GivenInput::Shape(all)), [dim]) = (given, &mut *shape)
                        && let ([length], None) = (&**all, dim.as_const())
                        && lengths::decides(graph, i.name())
                    {
                        *dim = Dim::from(*length);
                    }
                    for dim in &mut shape {
                        if let Some(size) = dim.as_symbol().and_then(|s| fixed.get(s)) {
                            *dim = Dim::from(*size);
                        }
                    }
                    GraphInput::Tensor(TensorType::new(dtype, shape))
                }
                (Some(_), Some(GivenInput::Sequence(ranks))) => {
                    let each = ranks.iter().enumerate();
                    let each = each.map(|(at, rank)| {
                        let name = sequence_name(i.name(), at);
                        let shape = element_shape(&name, dtype, t, *rank)?;
                        Ok(TensorType::new(dtype, shape))
                    });
                    let each: Result<Vec<_>, String> = each.collect();
                    GraphInput::Sequence(each.map_err(wrong)?)
                }
                (Some(_), _) => {
                    let reason = "is a sequence, of which the number of tensors must be given when the model is loaded";
                    return Err(unsupported(reason.into()));
                }
            };
            Ok((i.name(), input))
        })
        .collect()
}

/// The sizes that shapes which are given say of the symbols of these inputs, where they agree.
pub(super) fn given_sizes(
    inputs: &[(&str, GraphInput)],
    given: &BTreeMap<String, GivenInput>,
) -> FixedSizes {
    let mut sizes: BTreeMap<Arc<str>, Option<usize>> = BTreeMap::new();
    for (name, input) in inputs {
        let (GraphInput::Tensor(ty), Some(GivenInput::Shape(all))) = (input, given.get(*name))
        else {
            continue;
        };
        if ty.shape.len() != all.len() {
            continue;
        }
        for (dim, size) in ty.shape.iter().zip(all) {
            if let Some(symbol) = dim.as_symbol() {
                let known = sizes.entry(symbol.clone()).or_insert(Some(*size));
                *known = known.filter(|k| k == size);
            }
        }
    }
    let agreed = sizes.into_iter();
    agreed.filter_map(|(s, size)| Some((s, size?))).collect()
}

/// Fails where something is given for an input that cannot hold it, and where the tensor of a sequence, or a list of a
/// map, has the name of another input. A sequence whose tensors are inputs of the model by themselves is no mistake:
/// callers tell sequences by the names of the tensors.
fn check_given(
    inputs: &[&ValueInfoProto],
    given: &BTreeMap<String, GivenInput>,
) -> Result<(), ModelError> {
    let types: HashMap<&str, Option<&TypeProto>> = inputs
        .iter()
        .map(|i| (i.name(), i.r#type.as_ref()))
        .collect();
    let is_map = |i: &&&ValueInfoProto| map_type(held(i.r#type.as_ref())).is_some();
    for map in inputs.iter().filter(is_map) {
        let mut names = map_names(map.name()).into_iter();
        if let Some(value) = names.find(|n| types.contains_key(n.as_str())) {
            return Err(ModelError::Duplicate { value });
        }
    }
    for (name, given) in given {
        let wrong = |reason: String| {
            let input = name.clone();
            Err(ModelError::Given { input, reason })
        };
        let ty = types.get(name.as_str()).copied();
        match (given, ty) {
            (GivenInput::Sequence(_), None) if types.contains_key(&*sequence_name(name, 0)) => {}
            // The lists of a map have a rank that nothing changes. Where no input has the name, a call that gives it fails, and says
            // which inputs there are.
            (GivenInput::Tensor(_) | GivenInput::Shape(_), None) => {}
            (_, None) => return wrong("the model has no such input".into()),
            (GivenInput::Tensor(_) | GivenInput::Shape(_), Some(ty))
                if sequence_type(held(ty)).is_some() =>
            {
                let first = sequence_name(name, 0);
                return wrong(format!(
                    "is a sequence, whose tensors are '{first}' and so on"
                ));
            }
            (GivenInput::Tensor(_) | GivenInput::Shape(_), Some(ty))
                if map_type(held(ty)).is_some() =>
            {
                let [keys, values] = map_names(name);
                return wrong(format!(
                    "is a map, which is given as '{keys}' and '{values}'"
                ));
            }
            (GivenInput::Tensor(_) | GivenInput::Shape(_), Some(_)) => {}
            (GivenInput::Nothing, Some(ty)) => {
                // A sequence has an error of its own elsewhere, which says what must be given for it.
                if !is_optional(ty) && sequence_type(ty).is_none() {
                    return wrong("is not optional, so that it cannot be left out".into());
                }
            }
            (GivenInput::Sequence(_), Some(ty)) if sequence_type(held(ty)).is_none() => {
                let reason = "is no sequence, so that it cannot hold several tensors";
                return wrong(reason.into());
            }
            (GivenInput::Sequence(ranks), Some(_)) => {
                if ranks.len() > MOST_TENSORS {
                    return wrong(format!("a sequence of more than {MOST_TENSORS} tensors"));
                }
                let mut names = (0..ranks.len()).map(|at| sequence_name(name, at));
                if let Some(value) = names.find(|n| types.contains_key(n.as_str())) {
                    return Err(ModelError::Duplicate { value });
                }
            }
        }
    }
    Ok(())
}

fn tensor_type(t: Option<&TypeProto>) -> Option<&type_proto::Tensor> {
    match t?.value.as_ref()? {
        type_proto::Value::TensorType(t) => Some(t),
        _ => None,
    }
}

/// The type of a sequence's tensors.
fn sequence_type(t: Option<&TypeProto>) -> Option<&TypeProto> {
    match t?.value.as_ref()? {
        type_proto::Value::SequenceType(s) => s.elem_type.as_deref(),
        _ => None,
    }
}

fn map_type(t: Option<&TypeProto>) -> Option<&type_proto::Map> {
    match t?.value.as_ref()? {
        type_proto::Value::MapType(m) => Some(m),
        _ => None,
    }
}

/// The types of the keys and of the values of a map.
fn map_types(
    name: &str,
    map: &type_proto::Map,
    symbols: &HashSet<&str>,
) -> Result<[TensorType; 2], String> {
    let keys = tensor::dtype(map.key_type())?;
    if !matches!(keys, DType::I64 | DType::Str) {
        return Err(format!("has keys of {keys}"));
    }
    let value = tensor_type(map.value_type.as_deref());
    let is_one = |d: &tensor_shape_proto::Dimension| {
        matches!(
            d.value,
            Some(tensor_shape_proto::dimension::Value::DimValue(1))
        )
    };
    let is_scalar =
        |t: &&type_proto::Tensor| t.shape.as_ref().is_none_or(|s| s.dim.iter().all(is_one));
    let value = value.filter(is_scalar);
    let value = value.ok_or("is a map whose values are not single elements")?;
    let values = tensor::dtype(value.elem_type())?;
    let length = made_up(format!("{name}.entries"), symbols);
    Ok([keys, values].map(|dtype| TensorType::new(dtype, vec![length.clone()])))
}

/// A symbol for an unknown dimension, which differs from those of the model.
fn made_up(mut symbol: String, symbols: &HashSet<&str>) -> Dim {
    while symbols.contains(symbol.as_str()) {
        symbol.push('_');
    }
    Dim::sym(&symbol)
}

/// The dtype of the tensors of a declared sequence, or of an optional one.
pub(super) fn dtype_of_sequence(declared: &ValueInfoProto) -> Option<DType> {
    let t = tensor_type(sequence_type(held(declared.r#type.as_ref())))?;
    tensor::dtype(t.elem_type()).ok()
}

/// The dtype of a declared tensor.
pub(super) fn dtype_of_tensor(declared: &ValueInfoProto) -> Option<DType> {
    let t = tensor_type(declared.r#type.as_ref())?;
    tensor::dtype(t.elem_type()).ok()
}

/// The names of the optional inputs of a model.
pub(super) fn optional(model: &ModelProto) -> impl Iterator<Item = &str> {
    let inputs = model.graph.iter().flat_map(|g| &g.input);
    let optional = inputs.filter(|i| is_optional(i.r#type.as_ref()));
    optional.map(|i| i.name())
}

fn is_optional(t: Option<&TypeProto>) -> bool {
    let value = t.and_then(|t| t.value.as_ref());
    matches!(value, Some(type_proto::Value::OptionalType(_)))
}

/// The type that an optional value holds; any other type as it is.
fn held(t: Option<&TypeProto>) -> Option<&TypeProto> {
    match t?.value.as_ref()? {
        type_proto::Value::OptionalType(o) => o.elem_type.as_deref(),
        _ => t,
    }
}

/// The shape of a tensor of a sequence. The dimensions that are not declared as numbers may differ between its tensors.
fn element_shape(
    name: &str,
    dtype: DType,
    t: &type_proto::Tensor,
    rank: usize,
) -> Result<Vec<Dim>, String> {
    use tensor_shape_proto::dimension::Value::DimValue;
    let declared = t.shape.as_ref().map(|s| &s.dim);
    if rank > MAX_RANK || declared.is_some_and(|dims| dims.len() != rank) {
        return Err(format!("cannot hold '{}' of rank {rank}", Printable(name)));
    }
    let size = |axis: usize| match declared?.get(axis)?.value {
        Some(DimValue(v)) if v > 0 => Some(Dim::from(v)),
        _ => None,
    };
    let dims =
        (0..rank).map(|axis| size(axis).unwrap_or_else(|| Dim::sym(&format!("{name}.{axis}"))));
    let dims: Vec<Dim> = dims.collect();
    check_size(dtype, &dims)?;
    Ok(dims)
}

fn symbol(d: &tensor_shape_proto::Dimension) -> Option<&str> {
    match d.value.as_ref()? {
        tensor_shape_proto::dimension::Value::DimParam(s) => {
            // Some exporters write an unknown dimension as a question mark.
            Some(s.trim()).filter(|s| !s.is_empty() && *s != "?")
        }
        _ => None,
    }
}

fn shape(
    name: &str,
    dtype: DType,
    t: &type_proto::Tensor,
    given: Option<usize>,
    symbols: &HashSet<&str>,
) -> Result<Vec<Dim>, String> {
    use tensor_shape_proto::dimension::Value::DimValue;
    let declared = t.shape.as_ref().map(|shape| &*shape.dim);
    let rank = declared.map(<[_]>::len).or(given);
    let rank = rank.ok_or("has no declared shape")?;
    if rank > MAX_RANK {
        return Err(format!("rank {rank} is above the limit of {MAX_RANK}"));
    }
    let unknown = tensor_shape_proto::Dimension::default();
    let mut dims = Vec::with_capacity(rank);
    for axis in 0..rank {
        let d = declared.map_or(&unknown, |dims| &dims[axis]);
        dims.push(match (symbol(d), &d.value) {
            (Some(s), _) => Dim::sym(s),
            (None, Some(DimValue(v))) if *v > 0 => Dim::from(*v),
            // A list may be empty.
            (None, Some(DimValue(0))) if rank == 1 => Dim::from(0i64),
            // Some exporters write an unknown dimension as -1 or 0.
            (None, _) => made_up(format!("{name}.{axis}"), symbols),
        });
    }
    check_size(dtype, &dims)?;
    Ok(dims)
}

/// Fails where the known dimensions alone exceed the address space.
fn check_size(dtype: DType, dims: &[Dim]) -> Result<(), String> {
    let known: Vec<usize> = dims
        .iter()
        .filter_map(Dim::as_const)
        .filter_map(|d| usize::try_from(d).ok())
        .collect();
    byte_size(dtype, &known)
        .map(|_| ())
        .ok_or_else(|| format!("dimensions {known:?} are too large"))
}
