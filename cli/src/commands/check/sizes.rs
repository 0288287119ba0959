//! The sizes of the dynamic axes for which a model is checked: given ones, those of the inputs, and assumed ones.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;

use convoke::{Code, Error};
use convoke_graph::dim::Bindings;
use convoke_graph::graph::{Function, ValueId};
use convoke_graph::ops;
use convoke_graph::program::Axes;
use convoke_graph::{Dim, Printable};
use serde::Serialize;

use crate::args::CheckArgs;
use crate::commands::model::Arrays;
use crate::text::failure::Failure;

/// The largest size that is assumed.
const MOST_ASSUMED: i64 = 1024;

#[derive(Serialize)]
pub struct Axis {
    pub axis: String,
    pub size: i64,
    /// Whether the size was not given.
    pub assumed: bool,
}

pub struct Sizes {
    pub axes: Vec<Axis>,
    /// Why the model does not run with these sizes.
    pub misfit: Option<String>,
}

impl Sizes {
    /// The size of each axis: as it was given, else that of the inputs, else the least power of two with which the
    /// model runs.
    ///
    /// # Errors
    /// An axis that the model has not, inputs that are none of the model's or disagree on a size, and sizes with which
    /// it does not run, if all are given.
    pub fn new(function: &Function, args: &CheckArgs, arrays: &Arrays) -> Result<Sizes, Failure> {
        let mut symbols = BTreeSet::new();
        for param in &function.params {
            let shape = &function.ty(*param).shape;
            shape.iter().for_each(|d| d.symbols(&mut symbols));
        }
        let given = given(function, args, arrays, &symbols)?;
        let with = |assumed: i64| {
            let axis = |symbol: &Arc<str>| {
                let size = given.get(symbol).copied();
                Axis {
                    axis: symbol.to_string(),
                    size: size.unwrap_or(assumed),
                    assumed: size.is_none(),
                }
            };
            symbols.iter().map(axis).collect::<Vec<Axis>>()
        };
        let mut axes = with(1);
        let Some(misfit) = misfit(function, &axes) else {
            return Ok(Sizes { axes, misfit: None });
        };
        if axes.iter().all(|a| !a.assumed) {
            let sizes = axes
                .iter()
                .map(|a| format!("{}={}", Printable(&a.axis), a.size));
            let msg = format!("the model does not run with {}: {misfit}", joined(sizes));
            return Err(Error::new(Code::InvalidArgument, msg).into());
        }
        let mut assumed = 2;
        while assumed <= MOST_ASSUMED {
            axes = with(assumed);
            if self::misfit(function, &axes).is_none() {
                return Ok(Sizes { axes, misfit: None });
            }
            assumed *= 2;
        }
        Ok(Sizes {
            axes: with(1),
            misfit: Some(misfit),
        })
    }
}

/// The axes as bounds of a plan.
pub fn bounds(axes: &[Axis]) -> Axes {
    let bounds = axes.iter().map(|a| (a.axis.as_str().into(), a.size));
    Axes {
        bounds: bounds.collect(),
    }
}

/// The sizes that `--dim` and the inputs give.
fn given(
    function: &Function,
    args: &CheckArgs,
    arrays: &Arrays,
    symbols: &BTreeSet<Arc<str>>,
) -> Result<Bindings, Failure> {
    if let Some(unknown) = args.dim.iter().find(|d| !symbols.contains(&*d.symbol)) {
        let known = match symbols.is_empty() {
            true => "it has none".to_owned(),
            false => format!("it has {}", joined(symbols)),
        };
        let msg = format!(
            "the model has no dynamic axis '{}'; {known}",
            unknown.symbol
        );
        return Err(Error::new(Code::InvalidArgument, msg).into());
    }
    let mut sizes = Bindings::new();
    for (name, array) in arrays.inputs() {
        let shape = &*array.shape;
        let of = |param: &&ValueId| *function.value(**param).name == *name;
        let Some(param) = function.params.iter().find(of) else {
            let params = function.params.iter();
            let names = params.map(|p| format!("'{}'", Printable(&function.value(*p).name)));
            let msg = format!("the model has no input '{}'", Printable(&name));
            let advice = match joined(names) {
                names if names.is_empty() => "it has no inputs".to_owned(),
                names => format!("its inputs are {names}"),
            };
            return Err(Error::new(Code::InvalidInput, msg).advise(advice).into());
        };
        let wanted = function.ty(*param);
        if array.dtype != wanted.dtype {
            let msg = format!("input '{}' is {array}, expected {wanted}", Printable(&name));
            return Err(Error::new(Code::InvalidInput, msg)
                .advise("give arrays of the dtype that the model declares")
                .into());
        }
        let declared = &wanted.shape;
        let before = sizes.clone();
        if !Axes::unify(declared, shape, &mut sizes) {
            let known = declared.iter().filter_map(|d| {
                let symbol = d.as_symbol()?;
                let size = before.get(symbol)?;
                Some(format!("{} = {size}", Printable(symbol)))
            });
            let known = joined(known);
            let with = if known.is_empty() { "" } else { " with " };
            let msg = format!(
                "input '{}' has the shape {}, expected {}{with}{known}",
                Printable(&name),
                shape_text(shape),
                shape_text(declared),
            );
            return Err(Error::new(Code::InvalidArgument, msg).into());
        }
    }
    for d in &args.dim {
        let (symbol, size) = (Printable(&d.symbol), sizes.get(&*d.symbol).copied());
        if let Some(size) = size.filter(|size| *size > d.most) {
            let most = d.most;
            let msg = format!("--dim {symbol}={most} is less than the {size} of the inputs");
            let advice = format!("write --dim {symbol}={size} or more, or leave it out");
            return Err(Error::new(Code::InvalidArgument, msg).advise(advice).into());
        }
        sizes.insert(d.symbol.as_str().into(), d.most);
    }
    Ok(sizes)
}

/// Why the model does not run with these sizes.
fn misfit(function: &Function, axes: &[Axis]) -> Option<String> {
    if axes.is_empty() {
        return None;
    }
    let sizes: Bindings = bounds(axes).at_bounds();
    let mut sized = function.clone();
    for param in &function.params {
        for dim in &mut sized.values[param.ix()].ty.shape {
            if let Some(size) = dim.eval(&sizes) {
                *dim = Dim::Const(size);
            }
        }
    }
    let errors = ops::infer_types(&mut sized).err()?;
    errors.first().map(|e| e.to_string())
}

fn joined(items: impl IntoIterator<Item = impl Display>) -> String {
    let all: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    all.join(", ")
}

fn shape_text(dims: &[impl Display]) -> String {
    format!("[{}]", joined(dims))
}
