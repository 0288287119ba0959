//! Tracing: a closure that is called once with symbolic tensors, and what it issues as a graph.
//!
//! Invariants
//! 1. A traced op is checked by the same rule as one that is issued, at the same line.
//! 2. A node's name says the line that issued it, so that errors do.
//! 3. A tensor of a device that the closure uses is an operand like those it is called with. What a body of control flow
//!    takes from outside is a parameter of it, and an operand of the op that runs it.

mod splice;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::error::{Code, Error, Result};
use convoke_common::graph::{
    Attr, Attrs, Function, INLINE_LIMIT, Literal, Node, Part, TensorType, ValueId,
};
use convoke_common::ops::{HostValue, Inferred, OpDef};
use convoke_common::{DType, Dim, Tensor as HostTensor};
use convoke_models::Source;

use crate::device::{Device, DeviceSet};
use crate::tensor::{Operand, Tensor};

/// A function under construction. The tensors of a trace share it.
pub(crate) struct Trace {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    function: Function,
    /// How often each node name was given.
    names: BTreeMap<String, u32>,
    /// Handles that the function reads: those it is called with, then those that the closure uses.
    operands: Vec<Tensor>,
    /// How many it is called with.
    called_with: usize,
    /// The values that stand for them.
    values: Vec<ValueId>,
    pins: Vec<(String, String)>,
    donated: Vec<usize>,
    /// Symbols that were made.
    symbols: u64,
    /// What an op of control flow runs, rather than a function by itself.
    body: bool,
    /// Where constants go that are too large for the graph.
    home: Option<Device>,
    /// By parameter of a body beyond those it is called with, the tensor outside that it stands for.
    captured: Vec<Tensor>,
    files: splice::Files,
    done: bool,
}

/// A value of a trace.
#[derive(Clone)]
pub(crate) struct Symbolic {
    pub trace: Arc<Trace>,
    pub value: ValueId,
    pub ty: TensorType,
    /// The dimensions, where the operands' shapes decide them.
    pub shape: Option<Vec<usize>>,
    /// Its elements, where they follow from shapes.
    pub host: Option<HostValue>,
}

/// A closure, traced for operands of certain types on certain devices.
#[derive(Default)]
pub(crate) struct Traced {
    pub function: Function,
    /// Node names, and which devices may run the node, as specifications.
    pub pins: Vec<(String, String)>,
    /// The handles that the closure uses besides those it is called with.
    pub captured: Vec<Tensor>,
    /// Types of the results.
    pub results: Vec<TensorType>,
    /// Which of the operands are donated.
    pub donated: Vec<usize>,
    /// The files of its literals.
    pub sources: Vec<Source>,
}

/// A body of control flow.
pub(crate) struct Body {
    pub function: Function,
    /// What it takes from outside, by its last parameters.
    pub captured: Vec<Tensor>,
}

fn scalar(dtype: DType) -> TensorType {
    TensorType::new(dtype, vec![])
}

thread_local! {
    /// The trace whose closure this thread runs: what is issued belongs to it.
    static CURRENT: RefCell<Option<Arc<Trace>>> = const { RefCell::new(None) };
}

/// The trace whose closure this thread runs.
pub(crate) fn current() -> Option<Arc<Trace>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Runs a trace's closure.
fn within<T>(trace: &Arc<Trace>, f: impl FnOnce() -> T) -> T {
    /// Back to the trace around it, also where the closure panics.
    struct Back(Option<Arc<Trace>>);
    impl Drop for Back {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _back = Back(CURRENT.replace(Some(trace.clone())));
    f()
}

impl Trace {
    fn new(state: State) -> Arc<Trace> {
        Arc::new(Trace {
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Traces `f` for these operands, which it is to know as of these types, and of which some are donated.
    pub fn run(
        name: &str,
        operands: &[Tensor],
        types: &[TensorType],
        donated: &[usize],
        f: &(dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync),
    ) -> Result<Traced> {
        let trace = Trace::new(State {
            function: Function {
                name: name.to_owned(),
                ..Function::default()
            },
            called_with: operands.len(),
            donated: donated.to_vec(),
            ..State::default()
        });
        let given = operands.iter().zip(types);
        let symbolic: Result<Vec<Tensor>> = given
            .map(|(t, ty)| trace.operand_of(t, ty.clone()))
            .collect();
        let symbolic = symbolic?;
        let results = within(&trace, || f(&symbolic))?;
        trace.finish(&results)
    }

    /// Traces a body with parameters of these types. `home` is where its large constants go.
    pub fn body(
        name: &str,
        params: &[TensorType],
        home: Option<Device>,
        f: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
    ) -> Result<Body> {
        let trace = Trace::new(State {
            function: Function {
                name: name.to_owned(),
                ..Function::default()
            },
            body: true,
            home,
            ..State::default()
        });
        let param = |ty: &TensorType| trace.param(ty);
        let symbolic: Vec<Tensor> = params.iter().map(param).collect();
        let results = within(&trace, || f(&symbolic))?;
        let values: Result<Vec<ValueId>> = results.iter().map(|t| trace.value_of(t)).collect();
        let values = values?;
        let mut state = trace.state();
        state.done = true;
        let mut function = std::mem::take(&mut state.function);
        let results = values.into_iter().enumerate();
        function.results = results.map(|(i, v)| (format!("result{i}"), v)).collect();
        Ok(Body {
            function,
            captured: std::mem::take(&mut state.captured),
        })
    }

    /// A new parameter of a body.
    fn param(self: &Arc<Trace>, ty: &TensorType) -> Tensor {
        let mut state = self.state();
        let name = format!("operand{}", state.function.params.len());
        let value = state.function.add_value(name, ty.clone());
        state.function.params.push(value);
        drop(state);
        self.tensor(value, ty.clone(), None)
    }

    /// The value that stands for a tensor outside of a body.
    fn capture(self: &Arc<Trace>, t: &Tensor) -> Result<ValueId> {
        let mut state = self.state();
        state.open()?;
        if let Some(known) = state.captured.iter().position(|c| c.same(t)) {
            let first = state.function.params.len() - state.captured.len();
            return Ok(state.function.params[first + known]);
        }
        state.captured.push(t.clone());
        drop(state);
        let param = self.param(&t.ty());
        param
            .traced()
            .map(|s| s.value)
            .ok_or_else(|| Error::internal("a parameter without its value"))
    }

    /// A symbol for a dimension that only data decides.
    pub fn symbol(&self, op: &str) -> Dim {
        let mut state = self.state();
        state.symbols += 1;
        Dim::sym(&format!("{op}.{}", state.symbols))
    }

    /// Where constants go that are too large for the graph.
    pub fn home(&self) -> Option<Device> {
        let state = self.state();
        let first = state.operands.first().and_then(Tensor::device);
        first.or_else(|| state.home.clone())
    }

    /// The value that stands for a handle.
    fn operand(self: &Arc<Trace>, t: &Tensor) -> Result<Tensor> {
        self.operand_of(t, t.ty())
    }

    /// The value of this type that stands for a handle.
    fn operand_of(self: &Arc<Trace>, t: &Tensor, ty: TensorType) -> Result<Tensor> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.open()?;
        let device = t.device().ok_or_else(elsewhere)?;
        if let Some(known) = state.operands.iter().position(|o| o.same(t))
            && known >= state.called_with
        {
            let value = state.values[known];
            let ty = state.function.ty(value).clone();
            return Ok(self.tensor(value, ty, None));
        }
        let index = state.operands.len();
        if t.shape().is_none() {
            let msg = format!("the shape of operand {index}, {ty}, is not known yet");
            return Err(Error::new(Code::InvalidArgument, msg)
                .advise("await `ready()` on it before the function is called"));
        }
        let number = state
            .function
            .add_value(format!("operand{index}.handle"), scalar(DType::U64));
        state.function.params.push(number);
        let value = state
            .function
            .add_value(format!("operand{index}"), ty.clone());
        let name = format!("operand {index}");
        state.pins.push((name.clone(), device.name()));
        let dims = ty.shape.iter().map(|d| d.to_string().into()).collect();
        let mut attrs = Attrs::default()
            .with("dtype", Attr::DType(ty.dtype))
            .with("dims", Attr::Strs(dims));
        if state.donated.contains(&index) {
            attrs = attrs.with("donate", Attr::Int(1));
        }
        state.function.nodes.push(Node {
            name: name.into(),
            op: "HandleIn".into(),
            attrs,
            inputs: vec![Some(number)],
            outputs: vec![value],
            part: Part::Step,
        });
        state.operands.push(t.clone());
        state.values.push(value);
        Ok(self.tensor(value, ty, None))
    }

    fn tensor(
        self: &Arc<Trace>,
        value: ValueId,
        ty: TensorType,
        host: Option<HostValue>,
    ) -> Tensor {
        Tensor::symbolic(Symbolic {
            trace: self.clone(),
            value,
            shape: ty.fixed_shape(),
            ty,
            host,
        })
    }

    /// Adds a node for an op whose results were inferred.
    pub fn node(
        self: &Arc<Trace>,
        def: &OpDef,
        attrs: Attrs,
        operands: &[Operand<'_>],
        inferred: Vec<Inferred>,
        at: &Location<'_>,
    ) -> Result<Vec<Tensor>> {
        let mut inputs = Vec::new();
        for operand in operands {
            inputs.push(match operand {
                Operand::Tensor(t) => Some(self.value_of(t)?),
                Operand::Value(t) => Some(self.literal(t)?),
                Operand::None => None,
            });
        }
        let scope = crate::device::scope();
        let mut guard = self.state();
        let state = &mut *guard;
        state.open()?;
        // A body runs where its op does.
        let scope = scope.filter(|_| !state.body);
        let name = state.name(&format!("{} at {}:{}", def.name, at.file(), at.line()));
        if let Some(devices) = scope {
            state.pins.push((name.clone(), devices.spec()));
        }
        let outputs: Vec<ValueId> = inferred
            .iter()
            .enumerate()
            .map(|(i, out)| {
                let value = format!("{name}.{i}");
                state.function.add_value(value, out.ty.clone())
            })
            .collect();
        state.function.nodes.push(Node {
            name: name.into(),
            op: def.name.into(),
            attrs,
            inputs,
            outputs: outputs.clone(),
            part: Part::Step,
        });
        drop(guard);
        let made = outputs.into_iter().zip(inferred);
        Ok(made
            .map(|(value, out)| self.tensor(value, out.ty, out.value))
            .collect())
    }

    fn value_of(self: &Arc<Trace>, t: &Tensor) -> Result<ValueId> {
        let t = match t.traced() {
            Some(symbolic) if Arc::ptr_eq(&symbolic.trace, self) => return Ok(symbolic.value),
            _ if self.state().body => return self.capture(t),
            Some(_) => {
                let msg = "a tensor of one function's trace is used in another's";
                return Err(Error::new(Code::InvalidArgument, msg)
                    .advise("return it as a result, and pass that on"));
            }
            None => self.operand(t)?,
        };
        let value = t.traced().map(|s| s.value);
        value.ok_or_else(|| Error::internal("an operand without its value"))
    }

    /// A constant: inside the graph where it is small, else a handle on the first operand's device.
    fn literal(self: &Arc<Trace>, t: &HostTensor) -> Result<ValueId> {
        if t.byte_len() > INLINE_LIMIT {
            let device = self.home();
            let none = || {
                let msg = format!("a constant of {} bytes has no device", t.byte_len());
                Error::new(Code::InvalidArgument, msg).advise("put it on a device before")
            };
            return self.value_of(&device.ok_or_else(none)?.put(t)?);
        }
        let mut guard = self.state();
        let state = &mut *guard;
        state.open()?;
        let name = state.name("constant");
        let ty = TensorType::fixed(t.dtype(), t.shape());
        let value = state.function.add_value(name, ty);
        let literal = Literal::Inline(t.clone());
        state.function.literals.push((value, literal));
        Ok(value)
    }

    /// The node that makes a value runs on one of these devices.
    pub fn pin(&self, value: ValueId, devices: &DeviceSet) -> Result<()> {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.body {
            let msg = "what control flow runs is placed with it, as one";
            return Err(Error::new(Code::InvalidArgument, msg)
                .advise("call `on` on the results of the whole"));
        }
        let made = state.function.nodes.iter();
        let mut made = made.filter(|n| n.outputs.contains(&value));
        if let Some(node) = made.next() {
            if &*node.op == "HandleIn" {
                let msg = "an operand of a function is where it was put";
                return Err(Error::new(Code::InvalidArgument, msg).advise(
                    "call `on` on what is computed of it, or move it with `to` before the call",
                ));
            }
            let pin = (node.name.to_string(), devices.spec());
            // The innermost word counts, which is the last.
            state.pins.retain(|(name, _)| *name != pin.0);
            state.pins.push(pin);
        }
        Ok(())
    }

    fn finish(self: &Arc<Trace>, results: &[Tensor]) -> Result<Traced> {
        let values: Result<Vec<ValueId>> = results.iter().map(|t| self.value_of(t)).collect();
        let values = values?;
        let mut guard = self.state();
        let state = &mut *guard;
        let mut types = Vec::new();
        let pins: HashMap<&str, &str> = state.pins.iter().map(|(n, d)| (&**n, &**d)).collect();
        // A result is where its node was said to run, also where that is a constant and runs nowhere.
        let mut homes = HashMap::new();
        for node in &state.function.nodes {
            if let Some(devices) = pins.get(&*node.name) {
                homes.extend(node.outputs.iter().map(|v| (*v, devices.to_string())));
            }
        }
        for (i, value) in values.into_iter().enumerate() {
            types.push(state.function.ty(value).clone());
            let name = format!("result {i} of {}", state.function.name);
            if let Some(devices) = homes.get(&value) {
                state.pins.push((name.clone(), devices.clone()));
            }
            let number = state
                .function
                .add_value(format!("result{i}.handle"), scalar(DType::U64));
            state.function.params.push(number);
            let kept = TensorType::new(DType::U8, vec![Dim::Const(0)]);
            let kept = state.function.add_value(format!("result{i}"), kept);
            state.function.nodes.push(Node {
                name: name.into(),
                op: "HandleOut".into(),
                attrs: Attrs::default(),
                inputs: vec![Some(value), Some(number)],
                outputs: vec![kept],
                part: Part::Step,
            });
            state.function.results.push((format!("result{i}"), kept));
        }
        state.done = true;
        Ok(Traced {
            function: std::mem::take(&mut state.function),
            pins: std::mem::take(&mut state.pins),
            captured: state.operands.split_off(state.called_with),
            results: types,
            donated: std::mem::take(&mut state.donated),
            sources: std::mem::take(&mut state.files.sources),
        })
    }
}

impl State {
    fn open(&self) -> Result<()> {
        if !self.done {
            return Ok(());
        }
        let msg = "a tensor of a function's trace is used after the trace ended";
        Err(Error::new(Code::InvalidArgument, msg).advise("return it as a result"))
    }

    /// A name of its own. `*` and `+` have a meaning in names of nodes.
    fn name(&mut self, base: &str) -> String {
        let base = base.replace(['*', '+'], "_");
        let count = self.names.entry(base.clone()).or_insert(0);
        *count += 1;
        match *count {
            1 => base,
            n => format!("{base} #{n}"),
        }
    }
}

fn elsewhere() -> Error {
    Error::new(
        Code::InvalidArgument,
        "an operand of a function is a tensor of a device",
    )
}
