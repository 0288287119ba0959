//! Custom ops: definitions of a user's own, which a process registers beside the registry's.
//!
//! A process may handle a function with nodes of custom ops whose definition it does not know: a coordinator takes the
//! declared types of their outputs.
//!
//! Invariants
//! 1. Names of custom ops have a domain and a dot, and names of the registry have none: no op takes another's place.
//! 2. A name has one definition for the life of the process.
//! 3. Whatever goes wrong in a rule of a custom op, panics included, comes back as an error.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{PoisonError, RwLock};

use serde::{Deserialize, Serialize};

use super::def::{InferredOutput, OpDef};
use super::error::OpError;
use crate::graph::{Node, Value};

/// The longest name of a custom op, in bytes.
pub const LONGEST_NAME: usize = 128;

static CUSTOM: RwLock<BTreeMap<&'static str, &'static OpDef>> = RwLock::new(BTreeMap::new());

/// The description of a custom op that one process sends to another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CustomOp {
    pub name: String,
    /// The fingerprint of the op's definition, see [`OpDef::fingerprint`].
    #[serde(with = "crate::ids::digits")]
    pub fingerprint: u64,
}

impl CustomOp {
    /// The description of a definition.
    pub fn of(def: &OpDef) -> CustomOp {
        CustomOp {
            name: def.name.to_owned(),
            fingerprint: def.fingerprint(),
        }
    }
}

/// Whether an op of this name would be a custom one: the name has a dot.
pub fn is_custom(name: &str) -> bool {
    name.contains('.')
}

/// Whether a custom op may have this name: a domain, a dot, and a word, of ASCII letters, digits, `_` and `-`.
pub fn is_custom_name(name: &str) -> bool {
    let part = |p: &str| {
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        !p.is_empty() && p.chars().all(known)
    };
    name.len() <= LONGEST_NAME && is_custom(name) && name.split('.').all(part)
}

/// Why a custom op cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the op '{name}' cannot be registered: {why}")]
pub struct RegisterError {
    pub name: &'static str,
    pub why: &'static str,
}

/// Registers a custom op with this process. Registering the same definition again does nothing; another definition of
/// the same name is refused.
pub fn register(def: &'static OpDef) -> Result<(), RegisterError> {
    let bad = |why| {
        let name = def.name;
        Err(RegisterError { name, why })
    };
    if !is_custom_name(def.name) {
        return bad("a custom op has a name of a domain, a dot and a word, as 'example.Clamp'");
    }
    let (least, most) = def.outputs;
    if least == 0 || most < least {
        return bad("it has no outputs");
    }
    let variadic = def.operands.iter().position(|o| o.variadic);
    if variadic.is_some_and(|at| at + 1 < def.operands.len()) {
        return bad("only its last operand may repeat");
    }
    let mut custom = CUSTOM.write().unwrap_or_else(PoisonError::into_inner);
    match custom.get(def.name) {
        Some(known) if std::ptr::eq(*known, def) => Ok(()),
        Some(_) => bad("another definition has its name"),
        None => {
            custom.insert(def.name, def);
            Ok(())
        }
    }
}

/// The definition of the custom op called `name`, if this process knows it.
pub fn lookup(name: &str) -> Option<&'static OpDef> {
    let custom = CUSTOM.read().unwrap_or_else(PoisonError::into_inner);
    custom.get(name).copied()
}

/// Runs a rule of `op`, and turns a panic into an error where the op is a custom one. Rules of the registry do not
/// panic.
pub(super) fn guarded<T>(op: &OpDef, rule: impl FnOnce() -> T) -> Result<T, OpError> {
    if !is_custom(op.name) {
        return Ok(rule());
    }
    catch_unwind(AssertUnwindSafe(rule))
        .map_err(|_| OpError::shape(format!("the rule of {} panicked", op.name)))
}

/// The declared outputs of a node whose op has no definition. Fails where that cannot be a custom op.
pub(super) fn declared(node: &Node, values: &[Value]) -> Result<Vec<InferredOutput>, OpError> {
    if !is_custom(&node.op) {
        let op = node.op.to_string();
        return Err(OpError::Unknown { op });
    }
    if !is_custom_name(&node.op) {
        return Err(OpError::shape("no custom op may be called so"));
    }
    if node.outputs.is_empty() {
        return Err(OpError::shape("has no outputs"));
    }
    let ty = |id: &crate::graph::ValueId| values[id.ix()].ty.clone();
    let of = |ty| InferredOutput { ty, value: None };
    Ok(node.outputs.iter().map(ty).map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType::{self, F32, I64};
    use crate::graph::{Attrs, Function, GraphError, RunsAt, TensorType};
    use crate::ops::def::{Infer, operand};
    use crate::ops::{self, Cost, OperandDef};

    const X: &[OperandDef] = &[operand("X", &[F32])];

    fn same(i: &Infer<'_>) -> Result<Vec<InferredOutput>, OpError> {
        let x = i.required(0)?;
        Ok(vec![InferredOutput::of(x.ty.dtype, x.ty.shape.clone())])
    }

    fn panics(_: &Infer<'_>) -> Result<Vec<InferredOutput>, OpError> {
        panic!("on purpose")
    }

    static SAME: OpDef = OpDef::new("test.Same", "X, any shape.", X, same);
    static OTHER: OpDef = OpDef::new("test.Same", "X, any shape.", X, same);
    static PANICS: OpDef = OpDef::new("test.Panics", "Nothing.", X, panics).cost(no_cost);

    fn no_cost(_: &Attrs, _: &[Option<&TensorType>], _: &[&TensorType]) -> Cost {
        panic!("on purpose")
    }

    /// The function `y = op(x)`, where `y` is declared as `ty`.
    fn function(op: &str, ty: TensorType) -> Function {
        let mut f = Function::default();
        let x = f.add_value("x", TensorType::fixed(F32, &[3]));
        let y = f.add_value("y", ty);
        f.params = vec![x];
        f.nodes.push(Node {
            name: "n".into(),
            op: op.into(),
            attrs: Attrs::default(),
            inputs: vec![Some(x)],
            outputs: vec![y],
            runs_at: RunsAt::Step,
        });
        f.results = vec![("y".into(), y)];
        f
    }

    #[test]
    fn names_have_a_domain() {
        for name in ["a.B", "com.example.Clamp-2", "a_b.c"] {
            assert!(is_custom_name(name), "{name}");
        }
        let long = format!("a.{}", "b".repeat(LONGEST_NAME));
        for name in ["Relu", "", ".", "a.", ".b", "a..b", "a.b c", "a.\n", &long] {
            assert!(!is_custom_name(name), "{name}");
        }
        assert!(ops::all().all(|op| !is_custom(op.name)));
    }

    #[test]
    fn a_name_has_one_definition() {
        register(&SAME).unwrap();
        register(&SAME).unwrap();
        assert!(std::ptr::eq(ops::lookup("test.Same").unwrap(), &SAME));
        let e = register(&OTHER).unwrap_err();
        assert!(e.why.contains("another definition"), "{e}");
        static RELU: OpDef = OpDef::new("Relu", "X.", X, same);
        static NONE: OpDef = OpDef::new("test.None", "X.", X, same).outputs(0, 1);
        for def in [&RELU, &NONE] {
            assert!(register(def).is_err(), "{def:?}");
        }
    }

    #[test]
    fn fingerprints_tell_definitions_apart() {
        let of = |def: &OpDef| def.fingerprint();
        let base = || OpDef::new("test.Same", "Other words.", X, same);
        assert_eq!(of(&SAME), of(&base()));
        assert_ne!(of(&SAME), of(&base().version(1)));
        assert_ne!(of(&SAME), of(&base().outputs(1, 2)));
        assert_ne!(of(&SAME), of(&base().impure()));
        const TWO: &[OperandDef] = &[operand("X", &[F32, I64])];
        assert_ne!(of(&SAME), of(&OpDef::new("test.Same", "X.", TWO, same)));
    }

    #[test]
    fn an_op_without_a_definition_has_the_declared_types() {
        let check = |dtype: DType, shape: &[i64], fits: bool| {
            let dims = shape.iter().map(|d| crate::Dim::Const(*d)).collect();
            let ty = TensorType::new(dtype, dims);
            let mut f = function("test.Unknown", ty.clone());
            assert_eq!(f.verify().is_ok(), fits, "{ty}");
            assert_eq!(ops::infer_types(&mut f).is_ok(), fits, "{ty}");
            assert_eq!(f.values[1].ty, ty);
        };
        check(I64, &[7, 2], true);
        check(F32, &[], true);
        check(F32, &[-1], false);
        check(F32, &[1; 17], false);
        check(F32, &[1 << 40, 1 << 40], false);
        let unknown = function("Unknown", TensorType::fixed(F32, &[3])).verify();
        assert!(matches!(unknown, Err(GraphError::Unsupported { .. })));
        let f = function("test.Unknown", TensorType::fixed(F32, &[3]));
        assert_eq!(
            ops::node_cost(&f, &f.nodes[0], &Default::default()).bytes,
            24.
        );
    }

    #[test]
    fn an_op_with_a_definition_is_checked_by_it() {
        register(&SAME).unwrap();
        assert_eq!(
            function("test.Same", TensorType::fixed(F32, &[3])).verify(),
            Ok(())
        );
        let wrong = function("test.Same", TensorType::fixed(F32, &[4])).verify();
        assert!(
            matches!(wrong, Err(GraphError::WrongType { .. })),
            "{wrong:?}"
        );
    }

    #[test]
    fn a_rule_that_panics_is_an_error() {
        register(&PANICS).unwrap();
        let f = function("test.Panics", TensorType::fixed(F32, &[3]));
        let e = f.verify().unwrap_err().to_string();
        assert!(e.contains("the rule of test.Panics panicked"), "{e}");
        assert_eq!(
            ops::node_cost(&f, &f.nodes[0], &Default::default()),
            Cost::default()
        );
    }
}
