//! Tracing: a closure is called once with symbolic tensors, and the ops that it issues become a graph.
//!
//! Invariants
//! 1. A traced op is checked by the same rule, at the same line of the program, as an op that is issued eagerly.
//! 2. A node's name contains the line that issued it, so that errors name that line.
//! 3. A device's tensor that the closure uses is an operand of the function, like those that the function is called
//!    with. A tensor that a body of control flow uses from outside is a parameter of the body, and an operand of the op
//!    that runs the body.

pub(crate) mod control;
pub(crate) mod import;
pub(crate) mod nesting;
pub(crate) mod traced;

mod splice;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::error::{Code, Error, Result};
use convoke_graph::Tensor as HostTensor;
use convoke_graph::graph::{
    Attr, Attrs, Function, INLINE_LIMIT, Literal, Node, RunsAt, TensorType, ValueId,
};
use convoke_graph::ops::{HandleOp, HostValue, InferredOutput, OpDef};
use convoke_graph::{DType, Dim};
use convoke_models::Source;

use crate::device::scope::scope;
use crate::device::{Device, DeviceSet};
use crate::tensor::{Operand, Tensor};

/// A function under construction. The tensors of a trace share it.
pub(crate) struct Trace {
    state: Mutex<TraceState>,
}

#[derive(Default)]
struct TraceState {
    function: Function,
    /// How often each node name was given.
    names: BTreeMap<String, u32>,
    /// The handles that the function reads: first those that it is called with, then those that the closure uses.
    operands: Vec<Tensor>,
    /// How many operands the function is called with.
    called_with: usize,
    /// By operand, the value that stands for it in the graph.
    values: Vec<ValueId>,
    pins: Vec<(String, String)>,
    donated: Vec<usize>,
    /// How many symbols were made.
    symbols: u64,
    /// Whether this is the body of a control-flow op, and not a function by itself.
    body: bool,
    /// The device for constants that are too large for the graph.
    home: Option<Device>,
    /// The tensors from outside that the last parameters of a body stand for, in the parameters' order.
    captured: Vec<Tensor>,
    files: SourceRanges,
    done: bool,
}

/// The files that a trace's literals are ranges of.
#[derive(Default)]
struct SourceRanges {
    sources: Vec<Source>,
    /// The value of each range, by artifact, offset and type: a model that is applied twice has its weights once.
    ranges: BTreeMap<(u32, u64, String), ValueId>,
}

/// A value of a trace.
#[derive(Clone)]
pub(crate) struct SymbolicTensor {
    pub trace: Arc<Trace>,
    pub value: ValueId,
    pub ty: TensorType,
    /// The dimensions, where the operands' shapes decide them.
    pub shape: Option<Vec<usize>>,
    /// The elements of the value, where they follow from shapes.
    pub host: Option<HostValue>,
}

/// A closure, traced for operands of certain types on certain devices.
#[derive(Default)]
pub(crate) struct TracedFunction {
    pub function: Function,
    /// Pins: a node's name, and the specification of the devices that may run the node.
    pub pins: Vec<(String, String)>,
    /// The handles that the closure uses besides the operands that the function is called with.
    pub captured: Vec<Tensor>,
    /// Types of the results.
    pub results: Vec<TensorType>,
    /// Which of the operands are donated.
    pub donated: Vec<usize>,
    /// The files that the function's literals are ranges of.
    pub sources: Vec<Source>,
}

/// The traced body of a control-flow op.
pub(crate) struct ControlFlowBody {
    pub function: Function,
    /// The tensors from outside that the body's last parameters stand for.
    pub captured: Vec<Tensor>,
}

fn scalar(dtype: DType) -> TensorType {
    TensorType::new(dtype, vec![])
}

thread_local! {
    /// The trace whose closure this thread runs; ops that the thread issues belong to it.
    static CURRENT: RefCell<Option<Arc<Trace>>> = const { RefCell::new(None) };
}

/// Returns the trace whose closure this thread runs.
pub(crate) fn current() -> Option<Arc<Trace>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Runs a trace's closure.
fn within<T>(trace: &Arc<Trace>, f: impl FnOnce() -> T) -> T {
    /// Restores the trace around this one, even where the closure panics.
    struct TraceGuard(Option<Arc<Trace>>);
    impl Drop for TraceGuard {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _back = TraceGuard(CURRENT.replace(Some(trace.clone())));
    f()
}

impl Trace {
    fn new(state: TraceState) -> Arc<Trace> {
        Arc::new(Trace {
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, TraceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Traces `f` for these operands. `types` are the operands' types in the trace, with symbols for dynamic axes, and
    /// `donated` the indices of those that are donated.
    pub fn run(
        name: &str,
        operands: &[Tensor],
        types: &[TensorType],
        donated: &[usize],
        f: &(dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync),
    ) -> Result<TracedFunction> {
        let trace = Trace::new(TraceState {
            function: Function {
                name: name.to_owned(),
                ..Function::default()
            },
            called_with: operands.len(),
            donated: donated.to_vec(),
            ..TraceState::default()
        });
        let given = operands.iter().zip(types);
        let symbolic: Result<Vec<Tensor>> = given
            .map(|(t, ty)| trace.operand_of(t, ty.clone()))
            .collect();
        let symbolic = symbolic?;
        let results = within(&trace, || f(&symbolic))?;
        trace.finish(&results)
    }

    /// Traces a body with parameters of these types. `home` is the device for its large constants.
    pub fn body(
        name: &str,
        params: &[TensorType],
        home: Option<Device>,
        f: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
    ) -> Result<ControlFlowBody> {
        let trace = Trace::new(TraceState {
            function: Function {
                name: name.to_owned(),
                ..Function::default()
            },
            body: true,
            home,
            ..TraceState::default()
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
        Ok(ControlFlowBody {
            function,
            captured: std::mem::take(&mut state.captured),
        })
    }

    /// Adds a parameter to a body.
    fn param(self: &Arc<Trace>, ty: &TensorType) -> Tensor {
        let mut state = self.state();
        let name = format!("operand{}", state.function.params.len());
        let value = state.function.add_value(name, ty.clone());
        state.function.params.push(value);
        drop(state);
        self.tensor(value, ty.clone(), None)
    }

    /// Returns the parameter that stands for a tensor outside of a body, after adding it where it is new.
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

    /// Makes a symbol for a dimension that only data decides.
    pub fn symbol(&self, op: &str) -> Dim {
        let mut state = self.state();
        state.symbols += 1;
        Dim::sym(&format!("{op}.{}", state.symbols))
    }

    /// The device for constants that are too large for the graph.
    pub fn home(&self) -> Option<Device> {
        let state = self.state();
        let first = state.operands.first().and_then(Tensor::device);
        first.or_else(|| state.home.clone())
    }

    /// Returns the symbolic tensor that stands for a handle.
    fn operand(self: &Arc<Trace>, t: &Tensor) -> Result<Tensor> {
        self.operand_of(t, t.ty())
    }

    /// Returns the symbolic tensor of type `ty` that stands for a handle, after adding an operand where the handle is
    /// new.
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
            op: HandleOp::HandleIn.name().into(),
            attrs,
            inputs: vec![Some(number)],
            outputs: vec![value],
            runs_at: RunsAt::Step,
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
        Tensor::symbolic(SymbolicTensor {
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
        inferred: Vec<InferredOutput>,
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
        let scope = scope();
        let mut guard = self.state();
        let state = &mut *guard;
        state.open()?;
        // A body runs where its op runs, so its nodes are not pinned.
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
            runs_at: RunsAt::Step,
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

    /// Adds a constant: inside the graph where it is small, else as a handle on the device that [`Trace::home`] names.
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

    /// Pins the node that makes a value: it runs on one of these devices.
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
            if node.is(HandleOp::HandleIn) {
                let msg = "an operand of a function is where it was put";
                return Err(Error::new(Code::InvalidArgument, msg).advise(
                    "call `on` on what is computed of it, or move it with `to` before the call",
                ));
            }
            let pin = (node.name.to_string(), devices.spec());
            // The innermost pin counts, which is the last one.
            state.pins.retain(|(name, _)| *name != pin.0);
            state.pins.push(pin);
        }
        Ok(())
    }

    fn finish(self: &Arc<Trace>, results: &[Tensor]) -> Result<TracedFunction> {
        let values: Result<Vec<ValueId>> = results.iter().map(|t| self.value_of(t)).collect();
        let values = values?;
        let mut guard = self.state();
        let state = &mut *guard;
        let mut types = Vec::new();
        let pins: HashMap<&str, &str> = state.pins.iter().map(|(n, d)| (&**n, &**d)).collect();
        // A result lives where its node is pinned, even where the node is a constant and never runs.
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
                op: HandleOp::HandleOut.name().into(),
                attrs: Attrs::default(),
                inputs: vec![Some(value), Some(number)],
                outputs: vec![kept],
                runs_at: RunsAt::Step,
            });
            state.function.results.push((format!("result{i}"), kept));
        }
        state.done = true;
        Ok(TracedFunction {
            function: std::mem::take(&mut state.function),
            pins: std::mem::take(&mut state.pins),
            captured: state.operands.split_off(state.called_with),
            results: types,
            donated: std::mem::take(&mut state.donated),
            sources: std::mem::take(&mut state.files.sources),
        })
    }
}

impl TraceState {
    fn open(&self) -> Result<()> {
        if !self.done {
            return Ok(());
        }
        let msg = "a tensor of a function's trace is used after the trace ended";
        Err(Error::new(Code::InvalidArgument, msg).advise("return it as a result"))
    }

    /// Makes a unique name from `base`, without `*` and `+`, which have a meaning in names of nodes.
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
