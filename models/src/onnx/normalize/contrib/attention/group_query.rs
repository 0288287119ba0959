//! GroupQueryAttention, whose keys and values are written into caches at places that data decides.
//!
//! ```text
//! past [batch, heads, length, size] ── zeros up to the total length ── TensorScatter ── present
//! K ── rotated by the places of its tokens ────────────────────────────┘ from `before` on
//! ```
//!
//! `before` is how many tokens of each row came before: none of a prompt, which has as many tokens as there are in all,
//! else those that `seqlens_k` counts without the new ones. A cache that is longer than all tokens keeps its length, so
//! that one of a fixed length serves every step.

use convoke_graph::graph::{Attr, Attrs, ValueId};
use convoke_graph::{DType, Dim};

use super::super::super::super::builder::Builder;
use super::super::super::attention::where_allowed;
use super::super::super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, axis_of, unsupported,
};
use super::coded::Coding;
use super::mask::Lengths;
use super::packed::split;
use super::rotary::{Rotation, half};
use super::windowed::WindowedCache;
use super::{Heads, added, heads_of, joined_heads, take_heads, take_scale};

/// The attributes of GroupQueryAttention.
struct GroupQueryAttrs {
    heads: i64,
    key_heads: i64,
    scale: Option<f32>,
    softcap: f32,
    /// How many keys a query attends to, counting its own, where that is bounded.
    window: Option<i64>,
    /// Whether caches evict keys that have left the window.
    evicting: bool,
    causal: bool,
    rotary: bool,
    interleaved: bool,
    /// Whether the weights of a query sum to less than one, as if there were a key of score zero.
    smooth: bool,
    epsilon: f32,
    /// What the fourth output shows, where it is read.
    shown: Option<Stage>,
    /// How caches are written that hold codes.
    coding: Option<Coding>,
}

/// A stage of attention.
#[derive(Clone, Copy)]
enum Stage {
    Scores,
    Weights,
}

impl GroupQueryAttrs {
    fn take(c: &mut ImportedNode) -> Result<GroupQueryAttrs, ImportFailure> {
        let coding = Coding::take(c)?;
        let shown = match c.take_int("qk_output")? {
            None | Some(0) => None,
            Some(1) => Some(Stage::Scores),
            Some(2) => Some(Stage::Weights),
            Some(_) => return Err(c.wrong("qk_output", "0, 1 or 2").into()),
        };
        let shown = shown.filter(|_| c.outputs.get(3).is_some_and(|o| !o.is_empty()));
        let attrs = GroupQueryAttrs {
            heads: take_heads(c, "num_heads")?,
            key_heads: take_heads(c, "kv_num_heads")?,
            scale: take_scale(c)?,
            softcap: c.take_float("softcap")?.unwrap_or(0.0),
            window: c.take_int("local_window_size")?.filter(|w| *w >= 0),
            evicting: c.take_flag("sliding_window_cache", false)?,
            causal: c.take_flag("causal", true)?,
            rotary: c.take_flag("do_rotary", false)?,
            interleaved: c.take_flag("rotary_interleaved", false)?,
            smooth: c.take_int("smooth_softmax")? == Some(1),
            epsilon: c.take_float("qk_norm_epsilon")?.unwrap_or(1e-6),
            shown,
            coding,
        };
        c.no_more_attributes()?;
        if attrs.shown.is_some() && attrs.evicting {
            return Err(unsupported(
                "an output of the scores beside a cache of a window",
            ));
        }
        if attrs.window.is_some() && !attrs.causal {
            return Err(unsupported("a window without the causal order"));
        }
        if attrs.evicting && attrs.window.is_none_or(|window| window < 1) {
            let wanted = "above zero where 'sliding_window_cache' is set";
            return Err(c.wrong("local_window_size", wanted).into());
        }
        match attrs.heads % attrs.key_heads {
            0 => Ok(attrs),
            _ => Err(c.wrong("num_heads", "a multiple of kv_num_heads").into()),
        }
    }
}

/// The places of a batch's new tokens.
pub(super) struct Places {
    /// Whether the tokens are a prompt, a scalar.
    prompt: ValueId,
    /// The place of the last token of each row: [batch].
    last: ValueId,
    /// The tokens of each row after this step: [batch].
    pub ends: ValueId,
    /// The tokens of each row before this step: [batch].
    pub before: ValueId,
    /// The number of new tokens, a scalar.
    pub queries: ValueId,
    /// The number of all tokens of the longest row, a scalar.
    total: ValueId,
}

impl Places {
    fn of(e: &mut Expansion<'_>, query: ValueId) -> Result<Places, ImportFailure> {
        let (last, total) = (e.c.need(5)?, e.c.need(6)?);
        let queries = e.length(query, 1)?;
        let queries = e.scalar(queries)?;
        let total = match e.shape(total)?.is_empty() {
            true => total,
            false => e.reshaped(total, &[])?,
        };
        let total = e.cast(total, DType::I64)?;
        let last = match e.shape(last)?.len() {
            1 => last,
            _ => e.reshaped(last, &[-1])?,
        };
        let last = e.cast(last, DType::I64)?;
        let one = e.int("one", 1)?;
        let ends = e.plain("Add", &[last, one])?;
        let prompt = e.plain("Equal", &[queries, total])?;
        let earlier = e.plain("Sub", &[ends, queries])?;
        let none = e.int("none", 0)?;
        let before = e.plain("Where", &[prompt, none, earlier])?;
        Ok(Places {
            prompt,
            last,
            ends,
            before,
            queries,
            total,
        })
    }

    /// The place of each new token: [batch, tokens].
    pub fn of_tokens(&self, e: &mut Expansion<'_>) -> Made {
        let token = e.counted(self.queries)?;
        let before = e.unsqueezed(self.before, &[1])?;
        e.plain("Add", &[before, token])
    }

    /// The places by which tokens are rotated: [batch, tokens]. Given ones count for a prompt from their first one on.
    fn of_rotation(&self, e: &mut Expansion<'_>) -> Made {
        let Some(given) = e.c.input(9) else {
            return self.of_tokens(e);
        };
        let given = e.cast(given, DType::I64)?;
        let mut first = e.slice(given, 0, 0, 1, 1)?;
        first = e.slice(first, 1, 0, 1, 1)?;
        let token = e.counted(self.queries)?;
        let counted = e.plain("Add", &[first, token])?;
        e.plain("Where", &[self.prompt, counted, given])
    }
}

/// Imports GroupQueryAttention.
pub(in super::super) fn group_query_attention(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let attrs = GroupQueryAttrs::take(&mut c)?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    if attrs.coding.is_none() && (c.input(12).is_some() || c.input(13).is_some()) {
        return Err(unsupported("scales of caches that hold numbers"));
    }
    let query = c.need(0)?;
    let mut e = Expansion { b, c: &c };
    let e = &mut e;
    if e.shape(query)?.len() != 3 {
        return Err(c.error("query must have rank 3").into());
    }
    let [q, k, v] = operands(e, &attrs, query)?;
    let q = normalised(e, &attrs, q, 14)?;
    let k = normalised(e, &attrs, k, 15)?;
    let places = Places::of(e, query)?;
    let (q, k) = match attrs.rotary {
        true => {
            let place = places.of_rotation(e)?;
            let (cos, sin) = (c.need(7)?, c.need(8)?);
            let rotation = Rotation::new(attrs.interleaved, half(e, cos)?);
            let caches = [cos, sin];
            (
                rotation.of(e, q, caches, place)?,
                rotation.of(e, k, caches, place)?,
            )
        }
        false => (q, k),
    };
    let (past_key, past_value) = (c.input(3), c.input(4));
    if past_key.is_some() != past_value.is_some() {
        return Err(c.error("past_key and past_value go together").into());
    }
    let given_dtype = e.ty(q)?.dtype;
    let coded = match &attrs.coding {
        Some(coding) => Some([coding.of(e, 0, k)?, coding.of(e, 1, v)?]),
        None => None,
    };
    let (q, k, v) = match &coded {
        Some([keys, values]) => (
            e.cast(q, DType::F32)?,
            keys.codes(e, k)?,
            values.codes(e, v)?,
        ),
        None => (q, k, v),
    };
    let past_key = past_key.map(|past| sized(e, past, k)).transpose()?;
    let past_value = past_value.map(|past| sized(e, past, v)).transpose()?;
    let dtype = e.ty(q)?.dtype;
    // Keys and values as they are attended to, and as they are kept.
    let (k, v, kept, cache) = match (attrs.evicting, past_key, past_value, attrs.window) {
        (true, Some(past_key), Some(past_value), Some(window)) => {
            let cache = WindowedCache::of(e, &places, past_key, window)?;
            let (k, kept_key) = cache.keep(e, 1, past_key, k)?;
            let (v, kept_value) = cache.keep(e, 2, past_value, v)?;
            (k, v, [kept_key, kept_value], Some(cache))
        }
        (true, ..) => return Err(unsupported("a window's cache that is not given")),
        _ => {
            let k = cached(e, 1, &places, past_key, k)?;
            let v = cached(e, 2, &places, past_value, v)?;
            (k, v, [k, v], None)
        }
    };
    let (k, v) = match &coded {
        Some([keys, values]) => (keys.numbers(e, k)?, values.numbers(e, v)?),
        None => (k, v),
    };
    let lengths = Lengths::of(e, q, k)?;
    let key_places = match &cache {
        Some(cache) => cache.key_places,
        None => lengths.key_places(e)?,
    };
    let seen = attended(e, &attrs, &places, key_places)?;
    let unseen = where_allowed(e, seen, dtype, f64::NEG_INFINITY)?;
    let given = match (c.input(10), &cache) {
        (Some(bias), Some(cache)) => Some(cache.of_keys(e, bias)?),
        (Some(bias), None) => Some(lengths.up_to_keys(e, bias)?),
        (None, _) => None,
    };
    let given = given.map(|bias| e.cast(bias, dtype)).transpose()?;
    let bias = added(e, &[given, Some(unseen)])?;
    let attention = Heads {
        q,
        k,
        v,
        scale: attrs.scale,
        softcap: attrs.softcap,
        bias,
    };
    let attention = match (c.input(11), attrs.smooth) {
        (None, false) => attention,
        (sink, _) => with_sink(e, attention, sink)?,
    };
    let (y, shown) = attention.attend(e, attrs.shown.is_some())?;
    let [key, value] = kept;
    let y = e.cast(y, given_dtype)?;
    let mut out = vec![joined_heads(e, y)?, key, value];
    if let (Some(stage), Some(shown)) = (attrs.shown, shown) {
        let shown = match stage {
            Stage::Scores => shown.scores,
            Stage::Weights => shown.weights,
        };
        out.push(of_all_tokens(e, &places, shown, seen, given_dtype)?);
    }
    out.truncate(c.outputs.len());
    Ok(out)
}

/// Scores or weights of all tokens as the fourth output: zero where a query does not attend to a key. `seen` says where it
/// does.
fn of_all_tokens(
    e: &mut Expansion<'_>,
    places: &Places,
    shown: ValueId,
    seen: ValueId,
    dtype: DType,
) -> Made {
    // A cache may be longer, and a sink has a column of its own behind the keys.
    let total = e.unsqueezed(places.total, &[0])?;
    let (first, axes) = (e.ints("first", &[0])?, e.ints("axes", &[3])?);
    let [shown, seen] = [
        e.plain("Slice", &[shown, first, total, axes])?,
        e.plain("Slice", &[seen, first, total, axes])?,
    ];
    let shown = e.cast(shown, dtype)?;
    let zero = e.float("zero", dtype, 0.0)?;
    e.last(3, "Where", Attrs::default(), &[seen, shown, zero])
}

/// Queries, keys and values as [batch, heads, tokens, size].
fn operands(
    e: &mut Expansion<'_>,
    attrs: &GroupQueryAttrs,
    query: ValueId,
) -> Result<[ValueId; 3], ImportFailure> {
    let [q, k, v] = match (e.c.input(1), e.c.input(2)) {
        (Some(k), Some(v)) => [query, k, v],
        (None, None) => {
            let all = attrs.heads.checked_add(attrs.key_heads.saturating_mul(2));
            let all = all.ok_or_else(|| e.c.error("has too many heads"))?;
            let columns = e.shape(query)?[2].as_const();
            let size = columns.filter(|c| c % all == 0).map(|c| c / all);
            let size = size.ok_or_else(|| {
                ImportFailure::from(e.c.error(format!("query does not divide into {all} heads")))
            })?;
            let of_keys = attrs.key_heads.saturating_mul(size);
            let sizes = [attrs.heads.saturating_mul(size), of_keys, of_keys];
            split(e, query, &sizes)?
        }
        _ => return Err(e.c.error("key and value go together").into()),
    };
    Ok([
        heads_of(e, q, attrs.heads)?,
        heads_of(e, k, attrs.key_heads)?,
        heads_of(e, v, attrs.key_heads)?,
    ])
}

/// Heads that are divided by their root mean square, where operand `weight` is given.
fn normalised(e: &mut Expansion<'_>, attrs: &GroupQueryAttrs, x: ValueId, weight: usize) -> Made {
    match e.c.input(weight) {
        None => Ok(x),
        Some(weight) => {
            let attrs = axis_of(-1).with("epsilon", Attr::Float(attrs.epsilon));
            e.op("RMSNormalization", attrs, &[x, weight])
        }
    }
}

/// New keys or values in their cache, as output `o` where it is read.
fn cached(
    e: &mut Expansion<'_>,
    o: usize,
    places: &Places,
    past: Option<ValueId>,
    x: ValueId,
) -> Made {
    let Some(past) = past else {
        return match e.is_read(o) {
            true => e.last(o, "Identity", Attrs::default(), &[x]),
            false => Ok(x),
        };
    };
    let total = e.unsqueezed(places.total, &[0])?;
    let past = at_least(e, past, total)?;
    let attrs = axis_of(2).with("mode", Attr::Str("linear".into()));
    let operands = [past, x, places.before];
    match e.is_read(o) {
        true => e.last(o, "TensorScatter", attrs, &operands),
        false => e.op("TensorScatter", attrs, &operands),
    }
}

/// A cache whose heads have the size that those of `x` have: models leave it open, since caches may be quantised.
fn sized(e: &mut Expansion<'_>, past: ValueId, x: ValueId) -> Made {
    let (cache, fresh) = (e.shape(past)?, e.shape(x)?);
    match (
        cache.last().map(Dim::as_const),
        fresh.last().and_then(Dim::as_const),
    ) {
        (Some(None), Some(size)) if cache.len() == 4 => e.reshaped(past, &[0, 0, 0, size]),
        _ => Ok(past),
    }
}

/// A cache padded with zeros, so that it has room for at least this many tokens (a list of one number).
pub(super) fn at_least(e: &mut Expansion<'_>, past: ValueId, tokens: ValueId) -> Made {
    let own = e.length(past, 2)?;
    let none = e.ints("none", &[0])?;
    let missing = e.plain("Sub", &[tokens, own])?;
    let missing = e.plain("Max", &[missing, none])?;
    if e.b.elements(missing).as_deref() == Some(&[0]) {
        return Ok(past);
    }
    let pads = e.joined(0, &[none, missing])?;
    let axes = e.ints("axes", &[2])?;
    let dtype = e.ty(past)?.dtype;
    let zero = e.int("zero", 0)?;
    let zero = e.cast(zero, dtype)?;
    e.plain("Pad", &[past, pads, zero, axes])
}

/// Whether a query attends to a key: [batch, 1, queries or 1, keys]. `key` is the places of the keys, whose last axis they
/// are.
fn attended(e: &mut Expansion<'_>, attrs: &GroupQueryAttrs, places: &Places, key: ValueId) -> Made {
    if !attrs.causal {
        let ends = e.unsqueezed(places.ends, &[1, 2, 3])?;
        return e.plain("Less", &[key, ends]);
    }
    // A padding token of a prompt attends to the same keys as the last token of its row.
    let place = places.of_tokens(e)?;
    let last = e.unsqueezed(places.last, &[1])?;
    let place = e.plain("Min", &[place, last])?;
    let place = e.unsqueezed(place, &[1, 3])?;
    let seen = e.plain("LessOrEqual", &[key, place])?;
    let Some(window) = attrs.window else {
        return Ok(seen);
    };
    let window = e.int("window", window)?;
    let first = e.plain("Sub", &[place, window])?;
    let near = e.plain("Greater", &[key, first])?;
    e.plain("And", &[seen, near])
}

/// Attention with one key more, whose value is zero and whose score is zero, or that of `sink` [heads].
fn with_sink(
    e: &mut Expansion<'_>,
    attention: Heads,
    sink: Option<ValueId>,
) -> Result<Heads, ImportFailure> {
    let dtype = e.ty(attention.q)?.dtype;
    let pads = e.ints("pads", &[0, 1])?;
    let zero = e.float("zero", dtype, 0.0)?;
    let longer = |e: &mut Expansion<'_>, x: ValueId, axis: i64| {
        let axes = e.ints("axes", &[axis])?;
        e.plain("Pad", &[x, pads, zero, axes])
    };
    let (k, v) = (longer(e, attention.k, 2)?, longer(e, attention.v, 2)?);
    let bias = match (attention.bias, sink) {
        (None, _) => return Err(unsupported("a sink without a mask")),
        (Some(bias), None) => longer(e, bias, 3)?,
        (Some(bias), Some(sink)) => {
            let q = attention.q;
            let rows = [e.length(q, 0)?, e.length(q, 1)?, e.length(q, 2)?];
            let one = e.ints("one", &[1])?;
            let own = e.length(bias, -1)?;
            let all = e.joined(0, &[rows[0], rows[1], rows[2], own])?;
            let bias = e.plain("Expand", &[bias, all])?;
            let column = e.joined(0, &[rows[0], rows[1], rows[2], one])?;
            let sink = e.cast(sink, dtype)?;
            let sink = e.reshaped(sink, &[1, -1, 1, 1])?;
            let sink = e.plain("Expand", &[sink, column])?;
            e.joined(3, &[bias, sink])?
        }
    };
    Ok(Heads {
        k,
        v,
        bias: Some(bias),
        ..attention
    })
}
