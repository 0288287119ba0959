//! Captured constants as literals of a function, while passes run on it.

use convoke_graph::DType;
use convoke_graph::artifact::ArtifactMeta;
use convoke_graph::graph::{Function, Literal, TensorType, ValueId};

use super::{Bodies, infallible};
use crate::passes::edit::Edit;

/// The bytes of the file without content that literals for captured constants are ranges of.
const FILE: u64 = u64::MAX / 2;

/// For each captured value its type, if a literal stands for it while passes run.
pub struct CapturedConstants(Vec<Option<TensorType>>);

impl CapturedConstants {
    /// Makes the parameters of function `body` that stand for constants literals: copies of small constants, and ranges
    /// whose offset is the number of the captured value.
    pub fn make_literals(e: &Edit, bodies: &mut Bodies, body: usize) -> CapturedConstants {
        let mut constants = vec![None; bodies.captured.len()];
        for (k, v) in bodies.captured.clone().into_iter().enumerate() {
            let param = bodies.param(body, k);
            let Some(literal) = literal(e, v, k).filter(|_| e.is_constant(v)) else {
                continue;
            };
            let f = &mut bodies.functions[body];
            constants[k] = Some(f.ty(param).clone());
            f.literals.push((param, literal));
        }
        let own = bodies.own_params();
        let f = &mut bodies.functions[body];
        let mut position = 0;
        f.params.retain(|_| {
            position += 1;
            position <= own || constants[position - 1 - own].is_none()
        });
        f.artifacts = vec![ArtifactMeta::new("captured".into(), FILE, vec![])];
        CapturedConstants(constants)
    }

    /// Makes the literals that stand for captured constants parameters again. A constant that the function does not
    /// read any longer gets a parameter that nothing reads.
    pub fn into_params(self, bodies: &mut Bodies, body: usize) {
        let own = bodies.own_params();
        let f = &mut bodies.functions[body];
        let mut stands: Vec<Option<ValueId>> = vec![None; self.0.len()];
        f.literals.retain(|(v, l)| match l {
            Literal::Range { offset, .. } => {
                let k = usize::try_from(*offset).unwrap_or(usize::MAX);
                stands.get_mut(k).into_iter().for_each(|s| *s = Some(*v));
                false
            }
            Literal::Inline(_) => true,
        });
        f.artifacts.clear();
        let kept = f.params.split_off(own);
        let mut kept = kept.into_iter();
        for (constant, stands) in self.0.into_iter().zip(stands) {
            let here = match constant {
                None => kept.next(),
                Some(ty) => stands.or_else(|| Some(bodies.add_value(body, "unread", ty))),
            };
            let Some(here) = here else { continue };
            bodies.functions[body].params.push(here);
        }
    }
}

/// The literal for captured value `k`, which is the constant `v`; `None` where its size is not known.
fn literal(e: &Edit, v: ValueId, k: usize) -> Option<Literal> {
    if let Some(t) = e.inline(v) {
        return Some(Literal::Inline(t.clone()));
    }
    let ty = e.f.ty(v);
    let elements = ty.fixed_shape()?;
    let elements = elements.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
    let bytes = ty.dtype.bytes_for(elements)?;
    (ty.dtype != DType::Str).then_some(Literal::Range {
        artifact: 0,
        offset: k as u64,
        len: bytes as u64,
    })
}

/// A pass that moves nodes which depend on constants only to the init part, if they cannot fail.
pub fn to_init(f: Function) -> (Function, Option<String>) {
    let mut e = Edit::new(f);
    for i in 0..e.f.nodes.len() {
        let node = &e.f.nodes[i];
        let constant = node.inputs.iter().flatten().all(|v| e.is_constant(*v));
        let fixed = |v: &ValueId| e.f.ty(*v).fixed_shape().is_some();
        if constant
            && !node.inputs.is_empty()
            && node.outputs.iter().all(fixed)
            && infallible(&e.f, node, |v| e.inline(*v).is_some())
        {
            e.make_init(i);
        }
    }
    (e.finish(), None)
}
