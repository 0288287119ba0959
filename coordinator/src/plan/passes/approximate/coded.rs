//! Makes the left operand of a product codes of eight bits, where the model's file allows it: the weights of such a
//! product are codes already, so that only whole numbers are multiplied.
//!
//! ```text
//! MatMulNBits {accuracy_level=4}  ->  MatMulNBitsInt8
//! ```

use convoke_graph::graph::{Attr, Function};
use convoke_graph::ops::attrs::BlockWeightAttrs;
use convoke_graph::ops::{FusedOp, QuantisedOp};

use crate::passes::pass;

/// The `accuracy_level` of products whose left operand may be codes of eight bits.
const INT8: i64 = 4;

/// Runs the pass, also on the functions of control flow.
pub fn run(mut f: Function) -> (Function, Option<String>) {
    let coded = code(&mut f);
    let report = (coded > 0).then(|| format!("{} on codes", pass::count(coded, "product")));
    (f, report)
}

/// Changes the products of a function, and returns their number.
fn code(f: &mut Function) -> usize {
    let mut coded = 0;
    for node in &mut f.nodes {
        let mut functions = vec![];
        for (name, body) in node.attrs.functions() {
            let mut body = Function::clone(body);
            match code(&mut body) {
                0 => {}
                n => {
                    coded += n;
                    functions.push((name.to_owned(), body));
                }
            }
        }
        for (name, body) in functions {
            let attrs = std::mem::take(&mut node.attrs);
            node.attrs = attrs.with(&name, Attr::Function(body.into()));
        }
        let attrs = &node.attrs;
        let allowed = node.is(QuantisedOp::MatMulNBits)
            && attrs.int("accuracy_level", 0) == INT8
            && BlockWeightAttrs::new(attrs).is_ok_and(|a| a.fits_codes());
        if allowed {
            node.op = FusedOp::MatMulNBitsInt8.name().into();
            coded += 1;
        }
    }
    coded
}
