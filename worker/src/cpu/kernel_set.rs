//! The ops of the registry that the CPU has kernels for: all of them.

use convoke_graph::ops::KernelSet;

/// Returns the ops that the CPU has kernels for, by the dtypes of their first operands.
pub fn kernels() -> KernelSet {
    KernelSet::all()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use convoke_graph::DType;
    use convoke_graph::graph::Attrs;
    use convoke_graph::ops::{self, OpDef, OpError};

    use crate::cpu::resolve;

    /// Whether every attempt to resolve a kernel of an op without attributes fails because of its dtypes, the first of
    /// which is `dtype`. An op that cannot do without some attribute fails for another reason.
    fn lacks(def: &OpDef, dtype: DType) -> bool {
        let required = def.operands.iter().filter(|o| !o.optional).count();
        let class = def.operands.first().map_or(0, |o| o.class);
        let operand = |i: usize| {
            let own = def.operands.get(i)?;
            match i == 0 || class != 0 && own.class == class {
                true => Some(dtype),
                false => own.dtypes.first().copied(),
            }
        };
        (required..=def.operands.len().max(required)).all(|count| {
            let operands: Vec<Option<DType>> = (0..count).map(operand).collect();
            let found = resolve(def.name, &Attrs::default(), &operands, 1);
            matches!(found, Err(OpError::DType { .. }))
        })
    }

    #[test]
    fn the_cpu_has_a_kernel_for_each_dtype_of_each_definition() {
        let lacking = ops::all().filter(|def| {
            let first = def.operands.first().map_or(&[][..], |o| o.dtypes);
            first.iter().any(|dtype| lacks(def, *dtype))
        });
        // These take further dtypes with attributes of their own.
        let with_attributes = BTreeSet::from(["GridSample"]);
        let names: BTreeSet<&str> = lacking.map(|def| def.name).collect();
        assert_eq!(names, with_attributes);
    }
}
