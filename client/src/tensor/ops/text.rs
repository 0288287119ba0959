//! Strings.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::options;
use crate::tensor::{Tensor, call};

/// Strings.
impl Tensor {
    /// Whether each string of X as a whole matches a regular expression: bool, any shape.
    ///
    /// - `self`: operand X, string
    /// - `pattern`: the regular expression
    #[track_caller]
    pub fn regex_full_match(&self, pattern: &str) -> Result<Tensor> {
        let attrs = call::attrs([("pattern", call::text(pattern))]);
        let operands = [call::strict(self)];
        call::one("RegexFullMatch", attrs, &operands)
    }

    /// Each string of X with that of Y behind it, broadcast.
    ///
    /// - `self`: operand X, string
    /// - `y`: operand Y, string
    #[track_caller]
    pub fn string_concat(&self, y: &Tensor) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self), call::strict(y)];
        call::one("StringConcat", attrs, &operands)
    }

    /// The strings of X \[C\] or \[1, C\] that are no stop words, in another case; one empty string where
    /// none is left.
    ///
    /// - `self`: operand X, string
    /// - `with`: further attributes
    #[track_caller]
    pub fn string_normalizer(
        &self,
        with: impl Into<Option<options::StringNormalizer>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            (
                "case_change_action",
                call::text(with.case_change_action.as_deref()),
            ),
            ("is_case_sensitive", call::flag(with.is_case_sensitive)),
            ("locale", call::text(with.locale.as_deref())),
            ("stopwords", call::texts(with.stopwords)),
        ]);
        let operands = [call::strict(self)];
        call::one("StringNormalizer", attrs, &operands)
    }

    /// The parts of each string of X along a new last axis, filled up with empty ones, and how many there
    /// are.
    /// Both outputs are given, as a tuple of two.
    ///
    /// - `self`: operand X, string
    /// - `delimiter`: what stands between parts; white space where it is empty; by default white space
    /// - `maxsplit`: the most parts that are cut off; by default all
    #[track_caller]
    pub fn string_split<'a>(
        &self,
        delimiter: impl Into<Option<&'a str>>,
        maxsplit: impl Into<Option<i64>>,
    ) -> Result<(Tensor, Tensor)> {
        let attrs = call::attrs([
            ("delimiter", call::text(delimiter)),
            ("maxsplit", call::int(maxsplit)),
        ]);
        let operands = [call::strict(self)];
        call::two("StringSplit", attrs, &operands)
    }

    /// How often grams of items of `pool` occur in X \[C\] or in each row of X \[N, C\], at the columns that
    /// `indexes` gives: f32.
    ///
    /// - `self`: operand X, i32, i64, string
    /// - `pool`: operand pool, i64, string
    /// - `indexes`: operand indexes, i64
    /// - `weights`: operand weights, f32, may be left out
    /// - `columns`: the length of the result's last axis
    /// - `ngram_counts`: where grams of one item, of two and so on begin in the pool
    /// - `with`: further attributes
    #[track_caller]
    pub fn tf_idf_vectorizer(
        &self,
        pool: &Tensor,
        indexes: &Tensor,
        weights: Option<&Tensor>,
        columns: i64,
        ngram_counts: impl Into<Vec<i64>>,
        with: impl Into<Option<options::TfIdfVectorizer>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("columns", call::int(columns)),
            ("ngram_counts", call::ints(ngram_counts)),
            ("max_gram_length", call::int(with.max_gram_length)),
            ("max_skip_count", call::int(with.max_skip_count)),
            ("min_gram_length", call::int(with.min_gram_length)),
            ("mode", call::text(with.mode.as_deref())),
        ]);
        let operands = [
            call::strict(self),
            call::strict(pool),
            call::strict(indexes),
            call::optional(weights),
        ];
        call::one("TfIdfVectorizer", attrs, &operands)
    }

    /// The tokens of each string of X \[C\] or \[N, C\] along a new last axis, filled up to the most that a
    /// string has.
    ///
    /// - `self`: operand X, string
    /// - `mark`: the characters U+0002 and U+0003 stand before and after the tokens of a string
    /// - `mincharnum`: the fewest characters of a token
    /// - `pad_value`: what stands behind the last token of a string
    /// - `separators`: regular expressions that are applied in turn; one empty text makes each character a
    ///   token; by default none
    /// - `tokenexp`: the regular expression of tokens, where there are no separators; by default none
    #[track_caller]
    pub fn tokenizer<'a>(
        &self,
        mark: bool,
        mincharnum: i64,
        pad_value: &str,
        separators: Vec<String>,
        tokenexp: impl Into<Option<&'a str>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("mark", call::flag(mark)),
            ("mincharnum", call::int(mincharnum)),
            ("pad_value", call::text(pad_value)),
            ("separators", call::texts(separators)),
            ("tokenexp", call::text(tokenexp)),
        ]);
        let operands = [call::strict(self)];
        call::one("Tokenizer", attrs, &operands)
    }
}
