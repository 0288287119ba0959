//! Products of matrices with what ONNX Runtime fuses into them.

use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::super::builder::Builder;
use super::super::node::{Expansion, ImportFailure, ImportedNode, Made, Outputs, unsupported};
use super::elementwise::Activation;

/// Imports FusedMatMul: a product of operands that may be transposed, times a number.
pub(super) fn fused_matmul(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let alpha = c.take_float("alpha")?.unwrap_or(1.0);
    let turned = |c: &mut ImportedNode, matrix: &str, batch: &str| {
        Ok::<_, ImportFailure>((c.take_flag(matrix, false)?, c.take_flag(batch, false)?))
    };
    let left = turned(&mut c, "transA", "transBatchA")?;
    let right = turned(&mut c, "transB", "transBatchB")?;
    let activation = Activation::of_product(&mut c)?;
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (x, y) = (c.need(0)?, c.need(1)?);
    let mut e = Expansion { b, c: &c };
    let x = transposed(&mut e, x, left)?;
    let y = transposed(&mut e, y, right)?;
    if alpha == 1.0 {
        return Ok(vec![activation.after(
            &mut e,
            "MatMul",
            Attrs::default(),
            &[x, y],
        )?]);
    }
    let product = e.plain("MatMul", &[x, y])?;
    let dtype = e.ty(product)?.dtype;
    let alpha = e.float("alpha", dtype, alpha.into())?;
    Ok(vec![activation.after(
        &mut e,
        "Mul",
        Attrs::default(),
        &[product, alpha],
    )?])
}

/// An operand whose matrices are transposed, or whose rows are the first axis before those of the batch, or both.
fn transposed(e: &mut Expansion<'_>, x: ValueId, (matrix, batch): (bool, bool)) -> Made {
    let rank = e.shape(x)?.len();
    if rank < 2 {
        return Ok(x);
    }
    let mut perm: Vec<usize> = (0..rank).collect();
    if batch && rank > 2 {
        perm[..rank - 1].rotate_left(1);
    }
    if matrix {
        perm.swap(rank - 2, rank - 1);
    }
    e.transposed(x, &perm)
}

/// Imports FusedGemm.
pub(super) fn fused_gemm(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let activation = Activation::of_product(&mut c)?;
    let attrs = std::mem::take(&mut c.attrs);
    let operands: Vec<ValueId> = [Some(c.need(0)?), Some(c.need(1)?), c.input(2)]
        .into_iter()
        .flatten()
        .collect();
    let mut e = Expansion { b, c: &c };
    Ok(vec![activation.after(&mut e, "Gemm", attrs, &operands)?])
}

/// Imports GemmFastGelu: Gelu by tanh of a product and a bias.
pub(super) fn gemm_fast_gelu(b: &mut Builder, c: ImportedNode) -> Outputs {
    c.no_more_attributes()?;
    let (x, w) = (c.need(0)?, c.need(1)?);
    if c.input(2)
        .is_some_and(|bias| b.ty(bias).is_some_and(|ty| ty.shape.len() != 1))
    {
        return Err(unsupported("a bias that is no vector"));
    }
    let mut e = Expansion { b, c: &c };
    let mut y = e.plain("MatMul", &[x, w])?;
    if let Some(bias) = c.input(2) {
        y = e.plain("Add", &[y, bias])?;
    }
    let attrs = Attrs::default().with("approximate", Attr::Str("tanh".into()));
    Ok(vec![e.last(0, "Gelu", attrs, &[y])?])
}
