//! LinearAttention as a Scan over the sequence, in f32.
//!
//! The heads of Q that share one of K and V are rows of one product with its state:
//!
//! ```text
//! q [T, B, H, G, Dk]   k [T, B, H, 1, Dk]   v [T, B, H, 1, Dv]   state [B, H, Dk, Dv]
//! ```

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, TensorType, ValueId};

use super::super::super::builder::{Body, Builder};
use super::super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, to_dtype, unsupported,
};

/// The operands of the Scan, with the sequence as their first axis.
struct Steps {
    query: ValueId,
    key: ValueId,
    value: ValueId,
    /// The factor that the state is multiplied by before each step: [T, B, H, Dk or 1, 1].
    kept: Option<ValueId>,
    /// The rate of an update: [T, B, H or 1, 1, 1].
    rate: Option<ValueId>,
}

/// Imports LinearAttention.
pub(in super::super) fn linear_attention(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let rule = c.take_name("update_rule")?;
    let (gated, delta) = match rule.as_deref() {
        Some("linear") => (false, false),
        Some("gated") => (true, false),
        Some("delta") => (false, true),
        None | Some("gated_delta") => (true, true),
        Some(_) => {
            let want = "linear, gated, delta or gated_delta";
            return Err(c.wrong("update_rule", want).into());
        }
    };
    let heads = |c: &mut ImportedNode, attr: &str| match c.take_int(attr)? {
        Some(n) if n > 0 => Ok(n),
        _ => Err(c.wrong(attr, "a number above zero")),
    };
    let (query_heads, heads) = (
        heads(&mut c, "q_num_heads")?,
        heads(&mut c, "kv_num_heads")?,
    );
    if query_heads % heads != 0 && heads % query_heads != 0 {
        let want = "a multiple of kv_num_heads, or a part of it";
        return Err(c.wrong("q_num_heads", want).into());
    }
    let scale = c.take_float("scale")?.filter(|scale| *scale != 0.0);
    // This tunes implementations that compute several steps at once.
    c.take_int("chunk_size")?;
    c.no_more_attributes()?;
    for (i, name, wanted) in [(4, "decay", gated), (5, "beta", delta)] {
        if c.input(i).is_some() != wanted {
            let verb = if wanted { "needs" } else { "takes no" };
            return Err(c.error(format!("its update rule {verb} {name}")).into());
        }
    }
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let (mut q, mut k, v) = (c.need(0)?, c.need(1)?, c.need(2)?);
    let mut e = Expansion { b, c: &c };
    let dtype = e.ty(q)?.dtype;
    let (mut query_heads, fewer) = (query_heads, heads / query_heads);
    if fewer > 1 {
        // Several heads of values share one of queries, and one of keys where there are as few. The columns of the
        // values bound the number of heads.
        per_head(&e, v, heads)?;
        let size = per_head(&e, q, query_heads)?;
        if per_head(&e, k, query_heads)? == size {
            k = repeated(&mut e, k, [query_heads, fewer, size])?;
        }
        q = repeated(&mut e, q, [query_heads, fewer, size])?;
        query_heads = heads;
    }
    let (key_size, value_size) = (per_head(&e, k, heads)?, per_head(&e, v, heads)?);
    if per_head(&e, q, query_heads)? != key_size {
        return Err(c.error("heads of query and key differ in size").into());
    }
    let scale = scale.map_or_else(|| 1.0 / (key_size as f64).sqrt(), f64::from);
    let scale = e.float("scale", DType::F32, scale)?;
    let group = query_heads / heads;
    let q = e.cast(q, DType::F32)?;
    let q = e.plain("Mul", &[q, scale])?;
    let kept = match c.input(4) {
        None => None,
        Some(decay) => {
            let size = per_head(&e, decay, heads)?;
            if size != 1 && size != key_size {
                return Err(c
                    .error("decay must be one number for a head, or its size")
                    .into());
            }
            let decay = e.cast(decay, DType::F32)?;
            let kept = e.plain("Exp", &[decay])?;
            Some(by_steps(&mut e, kept, [heads, size, 1])?)
        }
    };
    let rate = match c.input(5) {
        None => None,
        Some(beta) => {
            let columns = per_head(&e, beta, 1)?;
            if columns != 1 && columns != heads {
                return Err(c
                    .error("beta must have one column, or one for each head")
                    .into());
            }
            Some(by_steps(&mut e, beta, [columns, 1, 1])?)
        }
    };
    let steps = Steps {
        query: by_steps(&mut e, q, [heads, group, key_size])?,
        key: by_steps(&mut e, k, [heads, 1, key_size])?,
        value: by_steps(&mut e, v, [heads, 1, value_size])?,
        kept,
        rate,
    };
    let (state, state_dtype) = match c.input(3) {
        Some(past) => {
            let ty = e.ty(past)?;
            let want = [heads, key_size, value_size];
            let fits =
                |(d, want): (&convoke_graph::Dim, i64)| d.as_const().is_none_or(|d| d == want);
            if ty.shape.len() != 4 || !ty.shape[1..].iter().zip(want).all(fits) {
                let reason = format!("past_state must be [B, {heads}, {key_size}, {value_size}]");
                return Err(c.error(reason).into());
            }
            (e.cast(past, DType::F32)?, ty.dtype)
        }
        None => {
            let batch = e.length(q, 0)?;
            let sizes = e.ints("sizes", &[heads, key_size, value_size])?;
            let shape = e.joined(0, &[batch, sizes])?;
            let zero = e.float("zero", DType::F32, 0.0)?;
            (e.plain("Expand", &[zero, shape])?, dtype)
        }
    };
    let body = step(&mut e, state, &steps)?;
    let operands: Vec<_> = [steps.query, steps.key, steps.value]
        .into_iter()
        .chain(steps.kept)
        .chain(steps.rate)
        .collect();
    let attrs = Attrs::default().with("num_scan_inputs", Attr::Int(operands.len() as i64));
    let name = c.sub("Scan");
    let names = [format!("{name}.0"), format!("{name}.1")];
    let operands = std::iter::once(state).chain(operands).map(Some);
    let made = body.emit(e.b, "Scan", &name, attrs, operands, &names)?;
    let [last, all] = made[..] else {
        return Err(c.error("has no results").into());
    };
    let y = e.transposed(all, &[1, 0, 2, 3, 4])?;
    let columns = query_heads.checked_mul(value_size);
    let columns = columns.ok_or_else(|| c.error("the heads of the result are too large"))?;
    let y = e.reshaped(y, &[0, 0, columns])?;
    let mut out = vec![e.last(0, "Cast", to_dtype(dtype), &[y])?];
    if c.outputs.len() > 1 {
        out.push(e.last(1, "Cast", to_dtype(state_dtype), &[last])?);
    }
    Ok(out)
}

/// The columns of one head of a packed operand [B, T, heads * size].
fn per_head(e: &Expansion<'_>, x: ValueId, heads: i64) -> Result<i64, ImportFailure> {
    let shape = e.shape(x)?;
    let [_, _, columns] = shape.as_slice() else {
        return Err(e
            .c
            .error(format!("an operand must have rank 3, not {}", shape.len()))
            .into());
    };
    match columns.as_const() {
        Some(columns) if columns > 0 && columns % heads == 0 => Ok(columns / heads),
        Some(columns) => {
            let reason = format!("{columns} columns do not divide into {heads} heads");
            Err(e.c.error(reason).into())
        }
        None => Err(unsupported("operands of a width that is not known")),
    }
}

/// A packed operand [B, T, heads * size], with each head repeated this many times.
fn repeated(e: &mut Expansion<'_>, x: ValueId, [heads, times, size]: [i64; 3]) -> Made {
    let columns = heads.checked_mul(times).and_then(|n| n.checked_mul(size));
    let columns = columns.ok_or_else(|| e.c.error("the heads of the result are too large"))?;
    let x = e.reshaped(x, &[0, 0, heads, 1, size])?;
    let shape = e.ints("times", &[1, 1, 1, times, 1])?;
    let x = e.plain("Expand", &[x, shape])?;
    e.reshaped(x, &[0, 0, columns])
}

/// A packed operand [B, T, ..] as f32 [T, B, sizes].
fn by_steps(e: &mut Expansion<'_>, x: ValueId, sizes: [i64; 3]) -> Made {
    let x = e.cast(x, DType::F32)?;
    let x = e.reshaped(x, &[0, 0, sizes[0], sizes[1], sizes[2]])?;
    e.transposed(x, &[1, 0, 2, 3, 4])
}

/// The body of the Scan: one step.
fn step(e: &mut Expansion<'_>, state: ValueId, steps: &Steps) -> Result<Body, ImportFailure> {
    let mut body = Builder::body(&e.c.name);
    let param = |body: &mut Builder, what: &str, x: ValueId| -> Made {
        let ty = e.ty(x)?;
        let rest = ty.shape.get(1..).unwrap_or_default().to_vec();
        Ok(body.param(&e.c.sub(what), TensorType::new(ty.dtype, rest)))
    };
    let before = body.param(&e.c.sub("state"), e.ty(state)?);
    let query = param(&mut body, "query", steps.query)?;
    let key = param(&mut body, "key", steps.key)?;
    let mut value = param(&mut body, "value", steps.value)?;
    let kept = steps
        .kept
        .map(|x| param(&mut body, "kept", x))
        .transpose()?;
    let rate = steps
        .rate
        .map(|x| param(&mut body, "rate", x))
        .transpose()?;
    let mut inner = Expansion {
        b: &mut body,
        c: e.c,
    };
    let mut state = before;
    if let Some(kept) = kept {
        state = inner.plain("Mul", &[state, kept])?;
    }
    if let Some(rate) = rate {
        let known = inner.plain("MatMul", &[key, state])?;
        let new = inner.plain("Sub", &[value, known])?;
        value = inner.plain("Mul", &[rate, new])?;
    }
    let column = inner.transposed(key, &[0, 1, 3, 2])?;
    let written = inner.plain("Mul", &[column, value])?;
    state = inner.plain("Add", &[state, written])?;
    let y = inner.plain("MatMul", &[query, state])?;
    Ok(body.finish_body(&[state, y], e.b))
}
