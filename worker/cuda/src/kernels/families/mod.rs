//! The kernels by family of ops: each module makes those of one family, or text that several share.

mod activation;
mod attention;
mod blocks;
mod conv;
mod elementwise;
mod movement;
mod pool;
mod product;
mod rotary;
mod rows;
mod tiles;
mod window;

use convoke_graph::ops::Op;
use convoke_worker::device::DeviceOp;

use super::launch::Template;

/// The kernel of an op; `None` where the device has none, so that the op runs on the host.
pub fn template(op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    let found = match op.def.op {
        Op::Unary(unary) => elementwise::unary(unary, op).or_else(|| movement::identity(unary, op)),
        Op::Binary(binary) => elementwise::binary(binary, op),
        Op::Shape(shape) => movement::view(shape, op),
        Op::Movement(moves) => movement::transposition(moves, op),
        Op::Slice(slice) => movement::slices(slice, op),
        Op::Index(index) => movement::gather(index, op),
        Op::MatMul(product) => product::plain(product, op),
        Op::Fused(fused) => product::fused(fused, op)
            .or_else(|| conv::fused(fused, op))
            .or_else(|| attention::fused(fused, op)),
        Op::Conv(convolution) => conv::plain(convolution, op),
        Op::Pool(pool) => pool::pool(pool, op),
        Op::Quantised(quantised) => blocks::product(quantised, op),
        Op::Reduce(reduce) => rows::reduction(reduce, op),
        Op::Norm(norm) => rows::normalisation(norm, op),
        Op::Position(position) => rotary::position(position, op),
        // Named one by one, so that an op of a new family is decided about here.
        Op::Control(_)
        | Op::Custom
        | Op::Handle(_)
        | Op::Learn(_)
        | Op::Random(_)
        | Op::Recurrent(_)
        | Op::Resize(_)
        | Op::Scan(_)
        | Op::Signal(_)
        | Op::Text(_)
        | Op::Vision(_) => None,
    };
    found.filter(|_| op.outputs == 1 || matches!(op.def.op, Op::Slice(_)))
}
