//! Ops on strings that other ops do not have.

use crate::Dim;
use crate::ops::attrs::{GramAttrs, NormalizerAttrs, TokenizerAttrs, check_pattern};
use crate::ops::cost::{per_element, per_input_element};
use crate::ops::def::*;
use crate::ops::error::OpError;
use crate::ops::kind::{Op, TextOp};
use crate::ops::shapes::*;

fn concat(i: &Infer<'_>) -> Rule {
    one(Str, broadcast(i.shape(0)?, i.shape(1)?)?)
}

fn split(i: &Infer<'_>) -> Rule {
    let x = i.shape(0)?;
    let mut parts = x.to_vec();
    parts.push(i.fresh(0, x.len()));
    Ok(vec![
        InferredOutput::of(Str, parts),
        InferredOutput::of(I64, x.to_vec()),
    ])
}

fn full_match(i: &Infer<'_>) -> Rule {
    check_pattern("pattern", i.attrs.str("pattern", ""))?;
    one(Bool, i.shape(0)?.to_vec())
}

fn normalize(i: &Infer<'_>) -> Rule {
    NormalizerAttrs::new(i.attrs)?;
    match i.shape(0)? {
        [_] => one(Str, vec![i.fresh(0, 0)]),
        [row, _] => {
            unify(row, &Dim::Const(1), "rows of X")?;
            one(Str, vec![Dim::Const(1), i.fresh(0, 1)])
        }
        x => Err(OpError::shape(format!("X {x:?} must have rank 1 or 2"))),
    }
}

fn count_grams(i: &Infer<'_>) -> Rule {
    let attrs = GramAttrs::new(i.attrs)?;
    if (i.dtype(0)? == Str) != (i.dtype(1)? == Str) {
        return Err(OpError::DTypeMismatch {
            left: i.dtype(0)?,
            right: i.dtype(1)?,
        });
    }
    i.ranked(1, "pool", 1)?;
    let grams = &i.ranked(2, "indexes", 1)?[0];
    if i.opt(3).is_some() {
        unify(
            &i.ranked(3, "weights", 1)?[0],
            grams,
            "grams and their weights",
        )?;
    }
    let columns = Dim::from(attrs.columns);
    match i.shape(0)? {
        [_] => one(F32, vec![columns]),
        [rows, _] => one(F32, vec![rows.clone(), columns]),
        x => Err(OpError::shape(format!("X {x:?} must have rank 1 or 2"))),
    }
}

fn tokenize(i: &Infer<'_>) -> Rule {
    TokenizerAttrs::new(i.attrs)?;
    let x = i.shape(0)?;
    if !(1..=2).contains(&x.len()) {
        return Err(OpError::shape(format!("X {x:?} must have rank 1 or 2")));
    }
    let mut tokens = x.to_vec();
    tokens.push(i.fresh(0, x.len()));
    one(Str, tokens)
}

const TEXT: &[crate::DType] = &[Str];

/// Definitions of this family.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef::of(
        Op::Text(TextOp::RegexFullMatch),
        "Whether each string of X as a whole matches a regular expression: bool, any shape.",
        &[operand("X", TEXT)],
        full_match,
    )
    .attrs(&[required("pattern", AttrKind::Str)])
    .cost(per_element::<200>),
    OpDef::of(
        Op::Text(TextOp::StringConcat),
        "Each string of X with that of Y behind it, broadcast.",
        &[operand("X", TEXT), operand("Y", TEXT)],
        concat,
    )
    .cost(per_element::<20>),
    OpDef::of(
        Op::Text(TextOp::StringNormalizer),
        "The strings of X [C] or [1, C] that are no stop words, in another case; one empty string where none is left.",
        &[operand("X", TEXT)],
        normalize,
    )
    .attrs(&[
        attr("case_change_action", AttrKind::Str),
        attr("is_case_sensitive", AttrKind::Int),
        attr("locale", AttrKind::Str),
        attr("stopwords", AttrKind::Strs),
    ])
    .sized_by_data()
    .cost(per_input_element::<50>),
    OpDef::of(
        Op::Text(TextOp::StringSplit),
        "The parts of each string of X along a new last axis, filled up with empty ones, and how many there are.",
        &[operand("X", TEXT)],
        split,
    )
    .attrs(&[attr("delimiter", AttrKind::Str), attr("maxsplit", AttrKind::Int)])
    .outputs(2, 2)
    .sized_by_data()
    .cost(per_input_element::<50>),
    OpDef::of(
        Op::Text(TextOp::TfIdfVectorizer),
        "How often grams of items of `pool` occur in X [C] or in each row of X [N, C], at the columns that `indexes` gives: f32.",
        &[
            operand("X", &[I32, I64, Str]),
            operand("pool", &[I64, Str]),
            operand("indexes", LONG),
            operand("weights", &[F32]).optional(),
        ],
        count_grams,
    )
    .attrs(&[
        required("columns", AttrKind::Int),
        attr("max_gram_length", AttrKind::Int),
        attr("max_skip_count", AttrKind::Int),
        attr("min_gram_length", AttrKind::Int),
        attr("mode", AttrKind::Str),
        required("ngram_counts", AttrKind::Ints),
    ])
    .cost(per_input_element::<100>),
    OpDef::of(
        Op::Text(TextOp::Tokenizer),
        "The tokens of each string of X [C] or [N, C] along a new last axis, filled up to the most that a string has.",
        &[operand("X", TEXT)],
        tokenize,
    )
    .attrs(&[
        required("mark", AttrKind::Int),
        required("mincharnum", AttrKind::Int),
        required("pad_value", AttrKind::Str),
        attr("separators", AttrKind::Strs),
        attr("tokenexp", AttrKind::Str),
    ])
    .sized_by_data()
    .cost(per_input_element::<200>),
];
