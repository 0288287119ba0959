//! A function that an op runs, lowered as the step part of a program is: kernels in one order, values in registers,
//! chains of elementwise nodes fused.
//!
//! Invariants
//! 1. The code that relies on the function's types runs only for parameters of these types. For others, as a hand-made
//!    function may get them, there is code that relies on none.
//! 2. No value depends on which of the two runs.

use std::sync::{Arc, OnceLock};

use convoke_common::memory::Pool;
use convoke_common::{Error, Site};
use convoke_graph::Tensor;
use convoke_graph::dim::Bindings;
use convoke_graph::graph::{Function, Literal, Node, TensorType, ValueId};
use convoke_graph::ids::FunctionId;
use convoke_graph::ops::{self, OpError};
use convoke_graph::program::{Axes, NO_OPERAND, Program, ProgramNode, RecvSlot, SendEdge};
use convoke_kernels::Exec;
use smallvec::SmallVec;

use super::runs::Values;
use crate::cpu::kernel::{Kernel, KernelFailure, Launch, OperandPlace, Operands, Register};
use crate::cpu::resolution::resolve;
use crate::program::code::{InputAssumption, LoweredProgram, NONE};

/// A function that is ready to run.
pub(super) struct Body {
    function: Arc<Function>,
    kernels: Vec<Arc<dyn Kernel>>,
    /// The function as a program that gets its parameters and sends its results.
    program: Program,
    /// By value, the tensor of a literal.
    constants: Vec<Option<Tensor>>,
    /// The shapes of the parameters, where they never change.
    shapes: Option<Vec<Vec<usize>>>,
    /// The code for parameters of the types that the program declares; `None` where these do not follow from each other.
    typed: Option<LoweredProgram>,
    /// The code for other parameters.
    untyped: OnceLock<LoweredProgram>,
}

impl Body {
    /// Resolves the kernels of a function that was checked, and lowers it.
    pub fn new(function: &Arc<Function>) -> Result<Body, OpError> {
        let mut kernels = Vec::with_capacity(function.nodes.len());
        for node in &function.nodes {
            let dtype = |id: &Option<ValueId>| id.map(|id| function.ty(id).dtype);
            let dtypes: Vec<_> = node.inputs.iter().map(dtype).collect();
            kernels.push(resolve(&node.op, &node.attrs, &dtypes, node.outputs.len())?);
        }
        let mut constants = vec![None; function.values.len()];
        for (id, literal) in &function.literals {
            if let Literal::Inline(t) = literal {
                constants[id.ix()] = Some(t.clone());
            }
        }
        let types = inferred(function);
        let program = as_program(types.as_ref().unwrap_or(function));
        let params = function.params.iter();
        let shapes = params.map(|id| program.values[id.ix()].ty.fixed_shape());
        let mut body = Body {
            shapes: shapes.collect(),
            function: function.clone(),
            kernels,
            constants,
            program,
            typed: None,
            untyped: OnceLock::new(),
        };
        body.typed = types.map(|_| body.lowered(InputAssumption::Together));
        Ok(body)
    }

    fn lowered(&self, given: InputAssumption) -> LoweredProgram {
        LoweredProgram::of_function(&self.program, &self.constants, &self.kernels, given)
    }

    /// The function.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Whether the function reads its parameter number `param`.
    pub fn reads(&self, param: usize) -> bool {
        let Some(id) = self.function.params.get(param) else {
            return false;
        };
        let mut nodes = self.function.nodes.iter();
        nodes.any(|n| n.inputs.contains(&Some(*id)))
            || self.function.results.iter().any(|(_, v)| v == id)
    }

    pub fn takes(&self, operands: usize) -> Result<(), OpError> {
        let takes = self.function.params.len();
        match takes == operands {
            true => Ok(()),
            false => Err(OpError::shape(format!(
                "the body takes {takes} operands, {operands} are given"
            ))),
        }
    }

    pub fn yields(&self, least: usize) -> Result<(), OpError> {
        let yields = self.function.results.len();
        match yields >= least {
            true => Ok(()),
            false => Err(OpError::shape(format!(
                "the body yields {yields} results, {least} are needed"
            ))),
        }
    }

    /// Runs the function once. `registers` are memory that the runs of a loop share.
    pub fn run(
        &self,
        params: Values,
        registers: &mut Vec<Register>,
        exec: Exec<'_>,
        pool: &Pool,
    ) -> Result<Values, KernelFailure> {
        exec.check()?;
        for (id, tensor) in self.function.params.iter().zip(&params) {
            if tensor.dtype() != self.function.ty(*id).dtype {
                let (name, ty) = (&self.function.value(*id).name, self.function.ty(*id));
                let msg = format!("'{name}' is {}, not {ty}", tensor.signature());
                return Err(KernelFailure::values(msg));
            }
        }
        let code = match &self.typed {
            Some(code) if self.fits(&params) => code,
            _ => self
                .untyped
                .get_or_init(|| self.lowered(InputAssumption::Untyped)),
        };
        registers.clear();
        registers.resize(code.registers, None);
        let mut results: SmallVec<[Register; 4]> = SmallVec::new();
        let declared = self.function.results.iter();
        results.extend(declared.map(|(_, id)| self.constants[id.ix()].clone()));
        for (id, tensor) in self.function.params.iter().zip(params) {
            keep(code, &mut results, id.0, &tensor);
            if let Some(home) = code.home(id.0) {
                registers[home as usize] = Some(tensor);
            }
        }
        for i in code.sequences.iter().flat_map(|s| s.first..s.end) {
            exec.check()?;
            self.step(code, i, registers, &mut results, exec, pool)?;
        }
        let missing = || Error::internal("a function's result has no value");
        let results = results.into_iter();
        results.map(|r| Ok(r.ok_or_else(missing)?)).collect()
    }

    /// Runs one instruction.
    fn step(
        &self,
        code: &LoweredProgram,
        i: u32,
        registers: &mut [Register],
        results: &mut [Register],
        exec: Exec<'_>,
        pool: &Pool,
    ) -> Result<(), KernelFailure> {
        let launched = code.kernel(i).launch(&mut Launch {
            inputs: Operands::at(code.operands(i), registers, &code.constants),
            sizes: code.sizes(i),
            exec,
            pool,
        });
        let made = launched.map_err(|e| match e {
            KernelFailure::Cancelled => KernelFailure::Cancelled,
            KernelFailure::Error(e) => (*e).at(self.site(code, i, registers)).into(),
        })?;
        for end in code.ends(i) {
            registers[end.register as usize] = None;
        }
        for (result, tensor) in code.results(i).iter().zip(made) {
            keep(code, results, result.value, &tensor);
            if result.register != NONE {
                registers[result.register as usize] = Some(tensor);
            }
        }
        Ok(())
    }

    /// Whether the parameters have the types that the program declares.
    fn fits(&self, params: &[Tensor]) -> bool {
        if let Some(shapes) = &self.shapes {
            let mut pairs = params.iter().zip(shapes);
            return pairs.all(|(t, shape)| t.shape() == shape.as_slice());
        }
        let declared = |id: &ValueId| &self.program.values[id.ix()].ty.shape;
        let all = || self.function.params.iter().map(declared).zip(params);
        let mut axes = Bindings::new();
        let unified = all().all(|(dims, t)| Axes::unify(dims, t.shape(), &mut axes));
        // A dimension that is an expression may have been met before its symbols.
        unified
            && all().all(|(dims, t)| {
                let mut pairs = dims.iter().zip(t.shape());
                pairs.all(|(d, n)| d.eval(&axes) == i64::try_from(*n).ok())
            })
    }

    /// The place of an instruction's first node, for errors.
    #[cold]
    fn site(&self, code: &LoweredProgram, i: u32, registers: &[Register]) -> Site {
        let node = &self.function.nodes[code.instr(i).node as usize];
        let declared = |at: usize| {
            let id = node.inputs.get(at).copied().flatten()?;
            Some(self.function.ty(id).to_string())
        };
        let operands = code.operands(i).iter().enumerate();
        let operands = operands.filter_map(|(at, slot)| {
            let there = match slot.place() {
                OperandPlace::Nothing => return None,
                OperandPlace::Constant(c) => code.constants.get(c as usize),
                OperandPlace::Read(r) | OperandPlace::Last(r) => {
                    registers.get(r as usize).and_then(Option::as_ref)
                }
            };
            // The kernel took the operand that is missing.
            there.map(signature).or_else(|| declared(at))
        });
        Site {
            node: Some(node.name.to_string()),
            op: Some(node.op.to_string()),
            operands: operands.collect(),
            ..Site::default()
        }
    }
}

fn signature(t: &Tensor) -> String {
    TensorType::fixed(t.dtype(), t.shape()).to_string()
}

/// Keeps a value as often as it is a result.
fn keep(code: &LoweredProgram, results: &mut [Register], value: u32, tensor: &Tensor) {
    for slot in code.sends.row(value) {
        results[*slot as usize] = Some(tensor.clone());
    }
}

/// The function with the types that follow from those of its parameters. Symbols are named after values, and get names
/// that no symbol from outside has.
fn inferred(f: &Function) -> Option<Function> {
    let mut f = f.clone();
    for value in &mut f.values {
        value.name = format!("body~{}", value.name).into();
    }
    ops::infer_types(&mut f).ok()?;
    Some(f)
}

/// The function as a program: its parameters arrive, and its results are sent, each in the slot of its number.
fn as_program(f: &Function) -> Program {
    let operand = |id: &Option<ValueId>| id.map_or(NO_OPERAND, |id| id.0);
    let node = |n: &Node| ProgramNode {
        name: n.name.clone(),
        op: n.op.clone(),
        attrs: n.attrs.clone(),
        inputs: n.inputs.iter().map(operand).collect(),
        outputs: n.outputs.iter().map(|id| id.0).collect(),
        priority: 0,
        cost: 0,
    };
    let recv = |id: &ValueId| RecvSlot {
        value: id.0,
        from: 0,
    };
    let send = |(slot, (_, id)): (u32, &(String, ValueId))| SendEdge {
        value: id.0,
        to: 0,
        slot,
        priority: 0,
    };
    Program {
        name: f.name.clone(),
        function: FunctionId([0; 32]),
        profile: String::new(),
        values: f.values.clone(),
        literals: vec![],
        artifacts: vec![],
        nodes: f.nodes.iter().map(node).collect(),
        init_nodes: 0,
        recvs: f.params.iter().map(recv).collect(),
        sends: (0..).zip(&f.results).map(send).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use convoke_common::memory::{Ledger, Purpose};
    use convoke_graph::graph::{Attr, Attrs, RunsAt};
    use convoke_graph::{DType, Dim};

    use super::*;
    use crate::cpu::evaluate::{evaluate, inline_only};
    use crate::cpu::testing::counting;

    /// The chain `tanh((x + y) · ½)`, whose sum is a result as well, of parameters with the dimensions `dims`.
    fn chain(dims: [&[Dim]; 2]) -> Arc<Function> {
        let mut f = Function::default();
        let ty = |dims: &[Dim]| TensorType::new(DType::F32, dims.to_vec());
        let [x, y] = [("x", dims[0]), ("y", dims[1])].map(|(name, d)| f.add_value(name, ty(d)));
        let half = f.add_value("half", ty(&[]));
        f.params = vec![x, y];
        f.literals = vec![(half, Literal::Inline(Tensor::scalar(0.5f32)))];
        let mut last = x;
        for (op, other) in [("Add", Some(y)), ("Mul", Some(half)), ("Tanh", None)] {
            let out = f.add_value(op, ty(&[]));
            f.nodes.push(Node {
                name: op.into(),
                op: op.into(),
                attrs: Attrs::default(),
                inputs: [Some(last)]
                    .into_iter()
                    .chain([other].into_iter().filter(Option::is_some))
                    .collect(),
                outputs: vec![out],
                runs_at: RunsAt::Step,
            });
            last = out;
        }
        f.results = vec![
            ("sum".into(), f.nodes[0].outputs[0]),
            ("y".into(), last),
            ("x".into(), x),
        ];
        ops::infer_types(&mut f).unwrap();
        f.into()
    }

    /// Checks a run on parameters of these shapes against the reference, and which code it takes.
    fn check(f: &Arc<Function>, shapes: [&[usize]; 2], typed: bool) {
        let body = Body::new(f).unwrap();
        let params: Vec<Tensor> = shapes.iter().map(|shape| counting(shape)).collect();
        assert_eq!(body.fits(&params), typed, "{shapes:?}");
        let want = evaluate(f, &params, &inline_only).unwrap();
        let cancel = AtomicBool::new(false);
        let pool = Pool::new(&Ledger::new("test", 1 << 20), Purpose::Handles, 0).unwrap();
        let mut registers = vec![];
        for _ in 0..2 {
            let params = params.iter().cloned().collect();
            let made = body.run(params, &mut registers, Exec::single(&cancel), &pool);
            assert_eq!(made.unwrap().as_slice(), want, "{shapes:?}");
            assert!(registers.iter().all(Option::is_none));
        }
    }

    #[test]
    fn parameters_of_declared_and_of_other_sizes() {
        let (n, two) = ([Dim::sym("n")], [Dim::Const(2)]);
        let fixed = chain([&two, &two]);
        check(&fixed, [&[2], &[2]], true);
        check(&fixed, [&[3], &[3]], false);
        check(&fixed, [&[3, 2], &[2]], false);
        let symbolic = chain([&n, &n]);
        check(&symbolic, [&[5], &[5]], true);
        // The sizes would broadcast, which nodes that are fused because of their types do not expect.
        check(&symbolic, [&[1], &[5]], false);
        check(&symbolic, [&[5], &[1]], false);
        // The expression is met before its symbol.
        let twice = chain([&[n[0].clone() * two[0].clone()], &n]);
        check(&twice, [&[6], &[1]], false);
    }

    #[test]
    fn what_a_loop_appends_to_stays_where_it_is() {
        let mut f = Function::default();
        let ty = |dim: Dim| TensorType::new(DType::F32, vec![dim]);
        let x = f.add_value("x", ty(Dim::sym("n")));
        let more = f.add_value("more", ty(Dim::Const(5)));
        let longer = f.add_value("longer", ty(Dim::Const(0)));
        f.params = vec![x, more];
        let grows = Attrs::default().with("axis", Attr::Int(0));
        f.nodes.push(Node {
            name: "append".into(),
            op: "Concat".into(),
            attrs: grows.with("grows", Attr::Int(1)),
            inputs: vec![Some(x), Some(more)],
            outputs: vec![longer],
            runs_at: RunsAt::Step,
        });
        f.results = vec![("longer".into(), longer)];
        ops::infer_types(&mut f).unwrap();
        let body = Body::new(&f.into()).unwrap();
        let cancel = AtomicBool::new(false);
        let pool = Pool::new(&Ledger::new("test", 1 << 20), Purpose::Handles, 0).unwrap();
        let (mut registers, more) = (vec![], counting(&[5]));
        let (mut x, mut moved) = (counting(&[0]), 0);
        for n in 1..=1000 {
            let (place, len) = (x.bytes().as_ptr(), x.byte_len());
            let params = [x, more.clone()].into_iter().collect();
            let made = body.run(params, &mut registers, Exec::single(&cancel), &pool);
            x = made.unwrap().remove(0);
            assert_eq!(x.shape(), [5 * n]);
            moved += if x.bytes().as_ptr() == place { 0 } else { len };
        }
        let all = x.byte_len();
        assert!(moved <= 3 * all, "{moved} bytes moved for {all}");
    }

    #[test]
    fn chains_are_fused_once_for_the_declared_types() {
        let body = Body::new(&chain([&[Dim::Const(2)], &[Dim::Const(2)]])).unwrap();
        let instructions = |code: &LoweredProgram| {
            let all = code.sequences.iter().map(|s| s.end - s.first);
            all.sum::<u32>()
        };
        // The sum is a result, so that it stays a node of its own.
        assert_eq!(body.typed.as_ref().map(instructions), Some(2));
        assert_eq!(instructions(&body.lowered(InputAssumption::Untyped)), 3);
    }
}
