//! Resolving the kernel of an op for its attributes and the dtypes of its operands.

use std::sync::{Arc, Mutex, PoisonError};

use convoke_graph::graph::Attrs;
use convoke_graph::ops::{self, ConcreteOperand, ConcreteOutputs, Op, OpDef, OpError};
use convoke_graph::{DType, Outputs};
use smallvec::SmallVec;

use super::kernel::{
    Kernel, KernelBody, KernelFailure, Launch, OpLaunch, Operands, SizeKey, Spec, is_host,
};
use super::{control, families};

/// Resolves the kernel of `op` for these attributes and operand dtypes, with `outputs` results.
pub fn resolve(
    op: &str,
    attrs: &Attrs,
    operands: &[Option<DType>],
    outputs: usize,
) -> Result<Arc<dyn Kernel>, OpError> {
    let def = ops::lookup(op).ok_or_else(|| OpError::Unknown { op: op.into() })?;
    if let Op::Control(op) = def.op {
        return control::find(op, attrs, operands);
    }
    let body = families::find(&Spec {
        def,
        attrs,
        operands,
    })?;
    let host = (0..operands.len()).map(|i| is_host(def, i)).collect();
    Ok(Arc::new(ResolvedOp {
        def,
        attrs: attrs.clone(),
        outputs,
        host,
        last: Mutex::default(),
        body,
    }))
}

/// Refuses the shape of a tensor that is empty in one dimension and exceeds any address range in the others: kernels
/// compute strides, and products of only some dimensions.
fn check_strides(shape: &[usize]) -> Result<(), OpError> {
    let product = shape
        .iter()
        .try_fold(8usize, |n, d| n.checked_mul((*d).max(1)));
    match product.filter(|n| isize::try_from(*n).is_ok()) {
        Some(_) => Ok(()),
        None => Err(OpError::shape(format!(
            "dimensions {shape:?} are too large, although the tensor is empty"
        ))),
    }
}

struct ResolvedOp {
    def: &'static OpDef,
    attrs: Attrs,
    outputs: usize,
    /// By operand, whether it is a host operand.
    host: SmallVec<[bool; 8]>,
    /// The sizes of the latest launch: in the steady state they do not change.
    last: Mutex<Option<Sizes>>,
    body: KernelBody,
}

/// The operands of a launch, and the output sizes that follow from them.
struct Sizes {
    operands: SizeKey,
    outputs: ConcreteOutputs,
}

impl ResolvedOp {
    fn outputs(&self, inputs: &Operands<'_>) -> Result<ConcreteOutputs, OpError> {
        let given = || inputs.iter().zip(self.host.iter().copied());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sizes) = &*last
            && sizes.operands.matches(given())
        {
            return Ok(sizes.outputs.clone());
        }
        let outputs = self.infer_from(inputs)?;
        *last = Some(Sizes {
            operands: SizeKey::of(given()),
            outputs: outputs.clone(),
        });
        Ok(outputs)
    }

    fn infer_from(&self, inputs: &Operands<'_>) -> Result<ConcreteOutputs, OpError> {
        let operands = inputs.iter().zip(&self.host);
        let operands: SmallVec<[Option<ConcreteOperand<'_>>; 8]> = operands
            .map(|(t, is_host)| {
                let t = t?;
                Some(ConcreteOperand {
                    dtype: t.dtype(),
                    shape: t.shape(),
                    host: is_host.then_some(t),
                })
            })
            .collect();
        self.concrete(&operands)
    }

    fn concrete(
        &self,
        operands: &[Option<ConcreteOperand<'_>>],
    ) -> Result<ConcreteOutputs, OpError> {
        let outputs = ops::infer_launch(self.def, &self.attrs, operands, self.outputs)?;
        let given = operands.iter().flatten().map(|o| o.shape);
        for shape in given.chain(outputs.iter().map(|(_, shape)| shape.as_slice())) {
            check_strides(shape)?;
        }
        Ok(outputs)
    }
}

impl Kernel for ResolvedOp {
    fn launch(&self, launch: &mut Launch<'_>) -> Result<Outputs, KernelFailure> {
        launch.exec.check()?;
        let found;
        let outputs = match launch.sizes {
            Some(sizes) => sizes,
            None => {
                found = self.outputs(&launch.inputs)?;
                &found
            }
        };
        self.body.run(OpLaunch {
            attrs: &self.attrs,
            outputs,
            launch,
        })
    }

    fn sizes(&self, operands: &[Option<ConcreteOperand<'_>>]) -> Option<ConcreteOutputs> {
        if self.def.sized_by_data {
            return None;
        }
        let mut given = operands.iter().zip(&self.host);
        let lacks = |o: &Option<ConcreteOperand<'_>>| o.is_some_and(|o| o.host.is_none());
        if given.any(|(o, is_host)| *is_host && lacks(o)) {
            return None;
        }
        // Operands that the rule refuses are refused when the kernel runs.
        self.concrete(operands).ok()
    }

    fn infer(
        &self,
        operands: &[Option<ConcreteOperand<'_>>],
    ) -> Result<ConcreteOutputs, KernelFailure> {
        if self.def.sized_by_data {
            return Err(KernelFailure::values(
                "only the kernel can tell the sizes of the results",
            ));
        }
        Ok(self.concrete(operands)?)
    }
}

#[cfg(test)]
mod tests {
    use convoke_common::memory::{Ledger, Pool, Purpose};
    use convoke_graph::Tensor;
    use convoke_graph::graph::Attr;
    use convoke_graph::ops::AttrKind;
    use convoke_kernels::Exec;

    use super::*;
    use crate::cpu::testing::{counting, launch_within, one, vec1};

    /// Some value for each attribute that an op requires.
    fn attrs(def: &OpDef) -> Attrs {
        def.attrs
            .iter()
            .filter(|a| a.required)
            .fold(Attrs::default(), |attrs, a| {
                let value = match (a.kind, a.name) {
                    (_, "block_size") => Attr::Int(2),
                    (_, "bits") => Attr::Int(4),
                    (_, "w_shape") => Attr::Ints(vec![1, 1, 1]),
                    (AttrKind::Float, _) => Attr::Float(1.0),
                    (_, "pooled_shape") => Attr::Ints(vec![1, 1]),
                    (AttrKind::Int, _) => Attr::Int(1),
                    (AttrKind::Str, _) => Attr::Str("LEFT".into()),
                    (AttrKind::Ints, _) => Attr::Ints(vec![1]),
                    (AttrKind::Strs, _) => Attr::Strs(vec!["n".into()]),
                    (AttrKind::Tensor, _) => Attr::Tensor(vec1(&[1f32])),
                    (AttrKind::DType, _) => Attr::DType(DType::F32),
                    (kind, name) => panic!("attribute {name} of kind {kind:?}"),
                };
                attrs.with(a.name, value)
            })
    }

    #[test]
    fn every_op_has_a_kernel_for_every_dtype() {
        // Functions must fit their operands: the client's tests of control flow run those ops.
        let runs_functions = |def: &&OpDef| def.attrs.iter().any(|a| a.kind == AttrKind::Function);
        for def in ops::all().filter(|def| !runs_functions(def)) {
            for (i, varied) in def.operands.iter().enumerate() {
                for dtype in varied.dtypes {
                    let of = |(j, o): (usize, &ops::OperandDef)| {
                        let same = j == i || (o.class != 0 && o.class == varied.class);
                        Some(if same { *dtype } else { o.dtypes[0] })
                    };
                    let operands: Vec<_> = def.operands.iter().enumerate().map(of).collect();
                    // Bits can only be read as elements of their own size.
                    let attrs = match def.name {
                        "BitCast" => attrs(def).with("to", Attr::DType(*dtype)),
                        // Only the nearest elements are taken of any dtype.
                        "GridSample" => attrs(def).with("mode", Attr::Str("nearest".into())),
                        // It requires either its pattern or separators.
                        "Tokenizer" => attrs(def).with("tokenexp", Attr::Str("a".into())),
                        _ => attrs(def),
                    };
                    let found = resolve(def.name, &attrs, &operands, def.outputs.0);
                    assert!(
                        found.is_ok(),
                        "{} {operands:?}: {:?}",
                        def.name,
                        found.err()
                    );
                }
            }
            if def.operands.is_empty() {
                assert!(
                    resolve(def.name, &attrs(def), &[], 1).is_ok(),
                    "{}",
                    def.name
                );
            }
        }
        let unknown = resolve("NoSuchOp", &Attrs::default(), &[], 1);
        assert!(matches!(unknown, Err(OpError::Unknown { .. })));
    }

    /// Operands after the first of an op that may replace it, which has this dtype and 4 × 16 × 256 elements.
    fn further_operands(def: &OpDef, dtype: DType) -> Vec<Tensor> {
        let zeros = |shape: &[usize]| Tensor::zeros(dtype, shape).unwrap();
        // Divisors are not zero.
        let ones = || {
            let bytes = vec![1; Tensor::size_of(dtype, &[4, 16, 256]).unwrap()];
            Tensor::from_bytes(dtype, &[4, 16, 256], &bytes).unwrap()
        };
        // Places that elements move to.
        let at = || Tensor::zeros(DType::I64, &[1, 1, 3]).unwrap();
        let required = def.operands.iter().filter(|o| !o.optional).count();
        match def.name {
            "BatchNormalization" => (0..4).map(|_| zeros(&[16])).collect(),
            "TensorScatter" => vec![zeros(&[4, 1, 256])],
            "ScatterElements" => vec![at(), zeros(&[1, 1, 3])],
            "ScatterND" => vec![at(), zeros(&[1, 1])],
            "Reshape" => vec![vec1(&[64i64, 256])],
            "Unsqueeze" => vec![vec1(&[0i64])],
            "Min" | "Max" | "Sum" | "Mean" => vec![ones(), ones()],
            _ => (1..required).map(|_| ones()).collect(),
        }
    }

    #[test]
    fn what_plans_count_as_in_place_takes_no_memory() {
        let (mut tried, mut failed) = (std::collections::BTreeSet::new(), vec![]);
        for def in ops::all().filter(|def| def.in_place) {
            for dtype in def.operands[0].dtypes {
                if *dtype == DType::Str {
                    // Ops that only give a tensor another shape take no memory for strings either.
                    let moves = matches!(def.op, Op::Index(_));
                    assert!(
                        !moves || !def.replaces_first(&[Some(*dtype)]),
                        "{}",
                        def.name
                    );
                    continue;
                }
                let x = Tensor::zeros(*dtype, &[4, 16, 256]).unwrap();
                let mut operands = further_operands(def, *dtype);
                operands.insert(0, x);
                let dtypes: Vec<_> = operands.iter().map(|t| Some(t.dtype())).collect();
                if !def.replaces_first(&dtypes) {
                    continue;
                }
                // That much is enough for all but copies of the elements.
                let operands = operands.into_iter().map(Some).collect();
                match launch_within(1024, def.name, attrs(def), operands, 1) {
                    Ok(_) => drop(tried.insert(def.name)),
                    Err(e) => failed.push(format!("{} of {dtype}: {e}", def.name)),
                }
            }
        }
        assert!(failed.is_empty(), "{failed:#?}");
        let all = ops::all().filter(|def| def.in_place).map(|def| def.name);
        assert_eq!(tried, all.collect());
    }

    #[test]
    fn remembered_sizes_follow_shapes_and_host_operands() {
        let dtypes = [Some(DType::F32), Some(DType::I64)];
        let kernel = resolve("Reshape", &Attrs::default(), &dtypes, 1).unwrap();
        let cancel = std::sync::atomic::AtomicBool::new(false);
        let ledger = Ledger::new("test", 1 << 20);
        let pool = Pool::new(&ledger, Purpose::Handles, 0).unwrap();
        let check = |x: &[usize], to: &[i64], want: &[usize]| {
            let mut inputs = [Some(counting(x)), Some(vec1(to))];
            let y = kernel
                .launch(&mut Launch {
                    inputs: Operands::given(&mut inputs),
                    sizes: None,
                    exec: Exec::single(&cancel),
                    pool: &pool,
                })
                .unwrap();
            assert_eq!(y[0].shape(), want);
        };
        for _ in 0..2 {
            check(&[2, 6], &[3, -1], &[3, 4]);
            check(&[2, 6], &[4, -1], &[4, 3]);
            check(&[2, 8], &[4, -1], &[4, 4]);
            check(&[2, 8], &[16], &[16]);
        }
    }

    #[test]
    fn a_cancelled_step_ends_at_once() {
        let kernel = resolve("Relu", &Attrs::default(), &[Some(DType::F32)], 1).unwrap();
        let cancel = std::sync::atomic::AtomicBool::new(true);
        let ledger = Ledger::new("test", 1 << 20);
        let pool = Pool::new(&ledger, Purpose::Handles, 0).unwrap();
        let mut inputs = [Some(counting(&[4]))];
        let end = kernel.launch(&mut Launch {
            inputs: Operands::given(&mut inputs),
            sizes: None,
            exec: Exec::single(&cancel),
            pool: &pool,
        });
        assert!(matches!(end, Err(KernelFailure::Cancelled)));
    }

    #[test]
    fn operands_of_another_dtype_than_resolved_are_an_error() {
        let e = one("Add", Attrs::default(), &[&vec1(&[1f32]), &vec1(&[1f64])]);
        assert!(e.is_err());
    }
}
