//! What the inputs and outputs of a language model are for, by the names that exporters give them.

use std::collections::BTreeMap;
use std::sync::Arc;

use convoke_common::error::{Code, Error, Result};
use convoke_graph::dim::Bindings;
use convoke_graph::graph::{Function, TensorType};
use convoke_graph::program::Axes;
use convoke_graph::{DType, Dim, Printable, Tensor as HostTensor};

/// The role of an input that is no cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The ids of the new tokens: [1, new].
    Ids,
    /// Ones for all tokens: [1, all].
    Mask,
    /// The places of the new tokens: [1, new].
    Places,
    /// Whether the caches hold anything: [1]. A model that was merged of two, for a first step and for the others,
    /// chooses by it.
    Continues,
    /// The input says for how many of the last tokens the model computes logits: [] or [1].
    Wanted,
}

/// The names, the roles and the dtypes of the inputs that are no caches.
const ROLES: &[(&str, Role, &[DType])] = &[
    ("input_ids", Role::Ids, &[DType::I64, DType::I32]),
    (
        "attention_mask",
        Role::Mask,
        &[DType::I64, DType::I32, DType::Bool],
    ),
    ("position_ids", Role::Places, &[DType::I64, DType::I32]),
    ("use_cache_branch", Role::Continues, &[DType::Bool]),
    (
        "num_logits_to_keep",
        Role::Wanted,
        &[DType::I64, DType::I32],
    ),
    ("logits_to_keep", Role::Wanted, &[DType::I64, DType::I32]),
];

impl Role {
    /// The shape of the input, whose type is `ty`, in a call that follows `past` tokens with `new` ones.
    fn shape(self, ty: &TensorType, past: usize, new: usize) -> Vec<usize> {
        match self {
            Role::Ids | Role::Places => vec![1, new],
            Role::Mask => vec![1, past + new],
            Role::Continues => vec![1],
            Role::Wanted => vec![1; ty.shape.len().min(1)],
        }
    }

    /// The shape as messages write it.
    fn shape_text(self) -> &'static str {
        match self {
            Role::Ids | Role::Mask | Role::Places => "[1, tokens]",
            Role::Continues => "[1]",
            Role::Wanted => "[] or [1]",
        }
    }
}

/// An input and an output that hold the same state, before a call and after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cache {
    /// The index of the parameter.
    pub param: usize,
    /// The index of the result.
    pub result: usize,
}

/// Says what each parameter and each result of a language model is for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Layout {
    /// The parameters that each call feeds, by index, in the model's order.
    pub fed: Vec<(usize, Role)>,
    /// The caches, in the order of the parameters.
    pub caches: Vec<Cache>,
    /// The index of the result with the logits.
    pub logits: usize,
    /// The number of tokens that the model knows, where its logits tell it.
    pub vocabulary: Option<usize>,
    /// Whether a call takes one token only.
    pub single: bool,
}

/// The names that the result of a cache may have, by the name of its parameter.
fn present_names(past: &str) -> Vec<String> {
    match past.strip_prefix("past_key_values") {
        Some(rest) => vec![
            format!("present{rest}"),
            format!("present_key_values{rest}"),
        ],
        None => {
            let rest = past.strip_prefix("past").unwrap_or(past);
            vec![format!("present{rest}")]
        }
    }
}

/// Whether an axis may have the size of a batch of one.
fn is_one_or_open(ty: &TensorType, axis: usize) -> bool {
    let size = ty.shape[axis].as_const();
    size.is_none() || size == Some(1)
}

/// The size of an axis of a cache, where its input or its output says it. Exporters leave the size of heads open; the
/// tensor that a step adds to the cache decides it.
fn fixed(past: &TensorType, present: &TensorType, axis: usize) -> Option<i64> {
    let of = |ty: &TensorType| ty.shape.get(axis)?.as_const();
    of(past).or_else(|| of(present))
}

/// The symbol of the batch, where it is open.
fn batch_of(f: &Function) -> Option<&Arc<str>> {
    let mut params = f.params.iter().map(|p| f.value(*p));
    let ids = params.find(|v| &*v.name == "input_ids")?;
    ids.ty.shape.first()?.as_symbol()
}

impl Layout {
    /// Recognises the inputs and outputs of a model. An error names everything that does not fit.
    pub fn of(f: &Function) -> Result<Layout> {
        let mut problems = Vec::new();
        let (mut fed, mut caches) = (Vec::new(), Vec::new());
        for (index, param) in f.params.iter().enumerate() {
            let value = f.value(*param);
            let (name, ty) = (&*value.name, &value.ty);
            let shown = Printable(name);
            if let Some((_, role, dtypes)) = ROLES.iter().find(|(known, _, _)| *known == name) {
                let rank = role.shape(ty, 0, 1).len();
                let fits = ty.shape.len() == rank && (rank == 0 || is_one_or_open(ty, 0));
                if !fits || !dtypes.contains(&ty.dtype) {
                    let wanted: Vec<_> = dtypes.iter().map(DType::to_string).collect();
                    let (wanted, shape) = (wanted.join(" or "), role.shape_text());
                    let text = format!("input '{shown}' is {ty}, expected {wanted} {shape}");
                    problems.push(text);
                }
                fed.push((index, *role));
            } else if name.starts_with("past") {
                match Layout::present(f, name, ty) {
                    Ok(result) => caches.push(Cache {
                        param: index,
                        result,
                    }),
                    Err(problem) => problems.push(problem),
                }
            } else {
                problems.push(format!("input '{shown}' ({ty}) is unknown"));
            }
        }
        let of = |role| {
            fed.iter()
                .find(|(_, r)| *r == role)
                .map(|(i, _)| f.params[*i])
        };
        let ids = of(Role::Ids).map(|p| f.ty(p));
        if ids.is_none() {
            problems.push("there is no input 'input_ids'".into());
        }
        let size = |ty: Option<&TensorType>| ty?.shape.get(1)?.as_const();
        let single = size(ids) == Some(1) && !caches.is_empty();
        if let Some(fixed) = size(ids).filter(|_| !single) {
            problems.push(format!("input 'input_ids' always has {fixed} tokens"));
        }
        if let Some(fixed) = size(of(Role::Mask).map(|p| f.ty(p))) {
            let text = format!("input 'attention_mask' always has {fixed} tokens");
            problems.push(text);
        }
        let (logits, vocabulary) = Layout::logits(f, &caches, &mut problems);
        if problems.is_empty() {
            return Ok(Layout {
                fed,
                caches,
                logits,
                vocabulary,
                single,
            });
        }
        let name = Printable(&f.name);
        let msg = format!("model '{name}' is no decoder: {}", problems.join("; "));
        Err(Error::new(Code::InvalidModel, msg).advise(
            "a decoder takes input_ids and perhaps attention_mask, position_ids and caches, each past_key_values.N.key \
             with its output present.N.key, and gives logits; export it for text generation with open axes, or call \
             the model by `Model::call` or `convoke run`",
        ))
    }

    /// The index of the result that continues a cache.
    fn present(f: &Function, name: &str, ty: &TensorType) -> Result<usize, String> {
        let shown = Printable(name);
        let names = present_names(name);
        let known = |n: &str| names.iter().any(|name| name == n);
        let Some(result) = f.results.iter().position(|(n, _)| known(n)) else {
            let wanted = names.join("' or '");
            return Err(format!("input '{shown}' ({ty}) has no output '{wanted}'"));
        };
        let after = f.ty(f.results[result].1);
        let batch = batch_of(f);
        let open = ty.shape.iter().enumerate().skip(1);
        let open = open
            .filter(|(axis, dim)| fixed(ty, after, *axis).is_none() && dim.as_symbol() != batch);
        if after.dtype != ty.dtype || after.shape.len() != ty.shape.len() {
            let out = Printable(&f.results[result].0);
            return Err(format!("cache '{shown}' is {ty}, but '{out}' is {after}"));
        }
        match ty.shape.is_empty() || open.count() > 1 {
            true => Err(format!(
                "cache '{shown}' is {ty}, whose sizes are not known"
            )),
            false => Ok(result),
        }
    }

    /// The index of the result with the logits, and the number of tokens that the model knows.
    fn logits(
        f: &Function,
        caches: &[Cache],
        problems: &mut Vec<String>,
    ) -> (usize, Option<usize>) {
        let named = f.results.iter().position(|(n, _)| n == "logits");
        let mut others = (0..f.results.len()).filter(|i| caches.iter().all(|c| c.result != *i));
        // Where the model has one other output, that is it, whatever its name.
        let found = named.or_else(|| others.next().filter(|_| others.next().is_none()));
        let Some(logits) = found else {
            problems.push("there is no output 'logits'".into());
            return (0, None);
        };
        let (name, value) = &f.results[logits];
        let ty = f.ty(*value);
        let floats = [DType::F32, DType::F16, DType::BF16, DType::F64];
        if ty.shape.len() != 3 || !floats.contains(&ty.dtype) {
            let name = Printable(name);
            problems.push(format!(
                "output '{name}' is {ty}, expected floats [1, tokens, vocabulary]"
            ));
            return (logits, None);
        }
        let vocabulary = ty.shape[2].as_const();
        (logits, vocabulary.and_then(|v| usize::try_from(v).ok()))
    }

    /// The shape of a cache that holds `past` tokens. Sizes that the model fixes are as they are.
    pub fn cache_shape(&self, f: &Function, cache: Cache, past: usize) -> Vec<usize> {
        let batch = batch_of(f);
        let (ty, after) = (f.ty(f.params[cache.param]), f.ty(f.results[cache.result].1));
        let dims = ty.shape.iter().enumerate();
        let size = |(axis, dim): (usize, &Dim)| match fixed(ty, after, axis) {
            Some(known) => usize::try_from(known).unwrap_or(0),
            None if axis == 0 || dim.as_symbol() == batch => 1,
            None => past,
        };
        dims.map(size).collect()
    }

    /// The sizes of the model's axes in a call that follows `past` tokens with `new` ones. `caches` are the shapes of
    /// the caches, in their order.
    pub fn sizes(
        &self,
        f: &Function,
        past: usize,
        new: usize,
        caches: impl IntoIterator<Item = Vec<usize>>,
    ) -> Result<Bindings> {
        let mut sizes = Bindings::new();
        let fed = self.fed.iter();
        let fed = fed.map(|(param, role)| {
            let ty = f.ty(f.params[*param]);
            (*param, role.shape(ty, past, new))
        });
        let caches = self.caches.iter().map(|c| c.param).zip(caches);
        for (param, shape) in fed.chain(caches) {
            let value = f.value(f.params[param]);
            if !Axes::unify(&value.ty.shape, &shape, &mut sizes) {
                let (name, ty) = (Printable(&value.name), &value.ty);
                let msg = format!(
                    "input '{name}' is {ty}, and cannot be {shape:?} with {new} new tokens after {past}"
                );
                return Err(Error::new(Code::InvalidModel, msg)
                    .advise("export the model with axes of their own for new and for all tokens"));
            }
        }
        Ok(sizes)
    }

    /// The sizes of the model's axes in a call that follows `past` tokens with `new` ones, where all caches hold the
    /// past tokens.
    pub fn usual_sizes(&self, f: &Function, past: usize, new: usize) -> Result<Bindings> {
        let shapes = self.caches.iter().map(|c| self.cache_shape(f, *c, past));
        self.sizes(f, past, new, shapes)
    }

    /// The sizes of the axes of caches that have such sizes after a call: a cache may be longer than the tokens that it
    /// holds.
    pub fn sizes_after(&self, f: &Function, sizes: &Bindings) -> Bindings {
        let mut after = Bindings::new();
        for cache in &self.caches {
            let past = &f.ty(f.params[cache.param]).shape;
            let present = &f.ty(f.results[cache.result].1).shape;
            for (past, present) in past.iter().zip(present) {
                if let (Some(symbol), Some(size)) = (past.as_symbol(), present.eval(sizes)) {
                    after.insert(symbol.clone(), size);
                }
            }
        }
        after
    }

    /// The most tokens that one call may take, and that may be fed for one sequence, where the model or these bounds of
    /// its axes say it.
    pub fn limits(
        &self,
        f: &Function,
        bounds: &BTreeMap<String, i64>,
    ) -> (Option<usize>, Option<usize>) {
        let bound_of = |dim: &Dim| {
            let bound = *bounds.get(&**dim.as_symbol()?)?;
            usize::try_from(bound).ok()
        };
        let (mut chunk, mut longest) = (self.single.then_some(1), None);
        let narrow = |most: &mut Option<usize>, bound: Option<usize>| {
            *most = (*most).into_iter().chain(bound).min();
        };
        for (param, role) in &self.fed {
            let tokens = f.ty(f.params[*param]).shape.get(1);
            let bound = tokens.and_then(bound_of);
            match role {
                Role::Mask => narrow(&mut longest, bound),
                Role::Ids | Role::Places if self.caches.is_empty() => narrow(&mut longest, bound),
                Role::Ids | Role::Places => narrow(&mut chunk, bound),
                Role::Continues | Role::Wanted => {}
            }
        }
        let batch = batch_of(f);
        for cache in &self.caches {
            let dims = f.ty(f.params[cache.param]).shape.iter().skip(1);
            for dim in dims.filter(|d| d.as_symbol() != batch) {
                // The last token that is fed is not in the past.
                narrow(&mut longest, bound_of(dim).map(|b| b.saturating_add(1)));
            }
        }
        // At least one token is fed at a time, whatever the bounds say.
        (chunk.map(|c| c.max(1)), longest)
    }

    /// What a call feeds an input with.
    pub fn feed(
        f: &Function,
        (param, role): (usize, Role),
        past: usize,
        new: &[u32],
    ) -> Result<HostTensor> {
        let all = past + new.len();
        let values: Vec<i64> = match role {
            Role::Ids => new.iter().map(|id| i64::from(*id)).collect(),
            Role::Places => (past..all).map(|p| p as i64).collect(),
            Role::Mask => vec![1; all],
            Role::Continues => vec![i64::from(past > 0)],
            Role::Wanted => vec![1],
        };
        let ty = f.ty(f.params[param]);
        let shape = role.shape(ty, past, new.len());
        Ok(match ty.dtype {
            // Ids are within the vocabulary, and places within bounds of memory.
            DType::I32 => {
                let values: Vec<i32> = values.iter().map(|v| *v as i32).collect();
                HostTensor::from_slice(&shape, &values)?
            }
            DType::Bool => {
                let values: Vec<bool> = values.iter().map(|v| *v != 0).collect();
                HostTensor::from_bools(&shape, &values)?
            }
            _ => HostTensor::from_slice(&shape, &values)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function of inputs with these names and dimensions, whose results have the types of the inputs named second.
    fn function(inputs: &[(&str, DType, &[&str])], outputs: &[(&str, &str)]) -> Function {
        let mut f = Function::default();
        for (name, dtype, dims) in inputs {
            let dim = |d: &&str| d.parse::<i64>().map_or_else(|_| Dim::sym(d), Dim::from);
            let ty = TensorType::new(*dtype, dims.iter().map(dim).collect());
            let value = f.add_value(*name, ty);
            f.params.push(value);
        }
        for (name, like) in outputs {
            let value = f.params.iter().find(|p| &*f.value(**p).name == *like);
            f.results.push(((*name).to_owned(), *value.unwrap()));
        }
        f
    }

    const IDS: (&str, DType, &[&str]) = ("input_ids", DType::I64, &["batch", "new"]);
    const MASK: (&str, DType, &[&str]) = ("attention_mask", DType::I32, &["batch", "all"]);
    /// A state that fits logits, so that results may have its type.
    const ROWS: (&str, DType, &[&str]) = ("past_rows", DType::F32, &["batch", "4", "9"]);

    /// Checks that a cache is recognised, and its shapes before the first token and after five.
    #[track_caller]
    fn check(past: &str, present: &str, dims: &[&str], shapes: [&[usize]; 2]) {
        let inputs = [IDS, MASK, ROWS, (past, DType::F16, dims)];
        let outputs = [
            ("present_rows", ROWS.0),
            (present, past),
            ("scores", ROWS.0),
        ];
        let f = function(&inputs, &outputs);
        let layout = Layout::of(&f).unwrap();
        assert_eq!(layout.fed, [(0, Role::Ids), (1, Role::Mask)]);
        let pairs: Vec<_> = layout.caches.iter().map(|c| (c.param, c.result)).collect();
        assert_eq!(pairs, [(2, 0), (3, 1)]);
        assert_eq!((layout.logits, layout.vocabulary), (2, Some(9)));
        let made = [0, 5].map(|tokens| layout.cache_shape(&f, layout.caches[1], tokens));
        assert_eq!(made, shapes);
        let sizes = layout.usual_sizes(&f, 5, 2).unwrap();
        let size = |symbol: &str| sizes.get(symbol).copied();
        assert_eq!(
            (size("new"), size("all"), size("batch")),
            (Some(2), Some(7), Some(1))
        );
    }

    #[test]
    fn caches_are_known_by_the_names_of_exporters() {
        let four = ["batch", "2", "past", "8"];
        let shapes: [&[usize]; 2] = [&[1, 2, 0, 8], &[1, 2, 5, 8]];
        check("past_key_values.0.key", "present.0.key", &four, shapes);
        check(
            "past_key_values.0.key",
            "present_key_values.0.key",
            &four,
            shapes,
        );
        check("past_key_values_3_value", "present_3_value", &four, shapes);
        check("past_key_0", "present_key_0", &four, shapes);
        check(
            "past.0.key",
            "present.0.key",
            &["b", "2", "past", "8"],
            shapes,
        );
        let both = ["2", "batch", "2", "past", "8"];
        check(
            "past_0",
            "present_0",
            &both,
            [&[2, 1, 2, 0, 8], &[2, 1, 2, 5, 8]],
        );
        // The length of a state that the model fixes does not depend on the tokens.
        check(
            "past_conv.0",
            "present_conv.0",
            &["batch", "6", "3"],
            [&[1, 6, 3]; 2],
        );
    }

    #[test]
    fn outputs_say_what_inputs_of_caches_leave_open() {
        let open = ("past.0", DType::F32, &["batch", "2", "past", "size"][..]);
        let known = ("known", DType::F32, &["batch", "2", "9", "8"][..]);
        let outputs = [
            ("present_rows", ROWS.0),
            ("present.0", known.0),
            ("logits", ROWS.0),
        ];
        let mut f = function(&[IDS, MASK, ROWS, open, known], &outputs);
        f.params.truncate(4);
        let layout = Layout::of(&f).unwrap();
        assert_eq!(layout.cache_shape(&f, layout.caches[1], 5), [1, 2, 9, 8]);
        let after = layout.sizes_after(&f, &layout.usual_sizes(&f, 5, 1).unwrap());
        let size = |symbol: &str| after.get(symbol).copied();
        assert_eq!(
            (size("past"), size("size"), size("new")),
            (Some(9), Some(8), None)
        );
    }

    #[test]
    fn logits_of_one_token_are_wanted() {
        let layout = |wanted| {
            let outputs = [("present_rows", ROWS.0), ("logits", ROWS.0)];
            let f = function(&[IDS, ROWS, wanted], &outputs);
            let layout = Layout::of(&f);
            (f, layout)
        };
        for (name, dims, shape) in [
            ("num_logits_to_keep", &[][..], &[][..]),
            ("logits_to_keep", &["1"], &[1]),
            ("logits_to_keep", &["some"], &[1]),
        ] {
            let (f, layout) = layout((name, DType::I64, dims));
            let layout = layout.unwrap();
            assert_eq!(layout.fed[1], (2, Role::Wanted));
            let fed = Layout::feed(&f, layout.fed[1], 5, &[1, 2]).unwrap();
            assert_eq!(fed, HostTensor::from_slice(shape, &[1i64]).unwrap());
            layout.usual_sizes(&f, 5, 2).unwrap();
        }
        let (_, refused) = layout(("logits_to_keep", DType::I64, &["1", "1"]));
        let message = refused.unwrap_err().message;
        let expected = "input 'logits_to_keep' is i64[1, 1], expected i64 or i32 [] or [1]";
        assert!(message.contains(expected), "{message}");
    }

    #[test]
    fn one_symbol_cannot_be_two_sizes() {
        let mask = ("attention_mask", DType::I64, &["batch", "new"][..]);
        let f = function(
            &[IDS, mask, ROWS],
            &[("present_rows", ROWS.0), ("logits", ROWS.0)],
        );
        let layout = Layout::of(&f).unwrap();
        let e = layout.usual_sizes(&f, 5, 2).unwrap_err();
        assert_eq!(e.code, Code::InvalidModel);
        assert_eq!(
            e.message,
            "input 'attention_mask' is i64[batch, new], and cannot be [1, 7] with 2 new tokens after 5"
        );
        layout.usual_sizes(&f, 0, 2).unwrap();
    }

    #[test]
    fn bounds_of_axes_limit_calls_and_sequences() {
        let past = ("past.0", DType::F32, &["batch", "2", "past", "8"][..]);
        let outputs = [
            ("present_rows", ROWS.0),
            ("present.0", "past.0"),
            ("logits", ROWS.0),
        ];
        let f = function(&[IDS, MASK, ROWS, past], &outputs);
        let layout = Layout::of(&f).unwrap();
        for (bounds, limits) in [
            (&[][..], (None, None)),
            (&[("new", 4)], (Some(4), None)),
            (&[("past", 10)], (None, Some(11))),
            (
                &[("all", 10), ("past", 10), ("new", 0)],
                (Some(1), Some(10)),
            ),
            (&[("batch", 1)], (None, None)),
        ] {
            let named = bounds.iter().map(|(s, b)| ((*s).to_owned(), *b));
            assert_eq!(layout.limits(&f, &named.collect()), limits, "{bounds:?}");
        }
    }
}
