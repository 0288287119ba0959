//! Attributes of ops on strings.

use std::sync::Arc;

use super::{bad, flag};
use crate::graph::{Attr, Attrs};
use crate::ops::error::OpError;

/// The most columns that `TfIdfVectorizer` makes.
pub const MOST_COLUMNS: usize = 1 << 24;

/// The most items of a gram.
pub const LONGEST_GRAM: usize = 64;

/// The longest pattern of `RegexFullMatch` and of `Tokenizer`, in bytes.
pub const LONGEST_PATTERN: usize = 4 << 10;

/// The most separators of `Tokenizer`. Each is compiled.
pub const MOST_SEPARATORS: usize = 32;

/// Fails where a pattern is longer than `LONGEST_PATTERN`.
pub fn check_pattern(attr: &'static str, pattern: &str) -> Result<(), OpError> {
    match pattern.len() <= LONGEST_PATTERN {
        true => Ok(()),
        false => Err(bad(
            attr,
            format!("must have at most {LONGEST_PATTERN} bytes"),
        )),
    }
}

/// How `StringNormalizer` changes the case of letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaseChange {
    None,
    Lower,
    Upper,
}

/// Attributes of `StringNormalizer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NormalizerAttrs {
    pub change: CaseChange,
    /// Whether stop words are left out only where they have the same case.
    pub case_sensitive: bool,
    pub stop_words: Vec<Arc<str>>,
}

impl NormalizerAttrs {
    /// Reads the attributes of a node.
    pub fn new(attrs: &Attrs) -> Result<NormalizerAttrs, OpError> {
        let change = match attrs.str("case_change_action", "NONE") {
            "NONE" => CaseChange::None,
            "LOWER" => CaseChange::Lower,
            "UPPER" => CaseChange::Upper,
            other => {
                let why = format!("must be LOWER, UPPER or NONE, not '{other}'");
                return Err(bad("case_change_action", why));
            }
        };
        // The letters of these languages have other cases than Unicode gives to all.
        let locale = attrs.str("locale", "");
        let language = locale.split(['_', '-', '.']).next().unwrap_or_default();
        if ["az", "lt", "tr"].contains(&language.to_ascii_lowercase().as_str()) {
            return Err(bad("locale", format!("'{locale}' has other rules of case")));
        }
        let stop_words = match attrs.get("stopwords") {
            Some(Attr::Strs(words)) => words.clone(),
            _ => vec![],
        };
        Ok(NormalizerAttrs {
            change,
            case_sensitive: flag(attrs, "is_case_sensitive", false),
            stop_words,
        })
    }
}

/// How `Tokenizer` divides a string into tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tokens {
    /// Each character is a token.
    Characters,
    /// Tokens are the parts between matches of these patterns, which are applied in turn.
    Between(Vec<Arc<str>>),
    /// Tokens are the matches of this pattern.
    Matching(Arc<str>),
}

/// Attributes of `Tokenizer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizerAttrs {
    pub tokens: Tokens,
    /// Whether the characters U+0002 and U+0003 stand before and after the tokens of a string.
    pub mark: bool,
    /// The string that fills the places behind the last token of a string.
    pub pad: Arc<str>,
    /// The fewest characters of a token.
    pub least: usize,
}

impl TokenizerAttrs {
    /// Reads the attributes of a node.
    pub fn new(attrs: &Attrs) -> Result<TokenizerAttrs, OpError> {
        let separators = match attrs.get("separators") {
            Some(Attr::Strs(all)) => Some(all.clone()),
            _ => None,
        };
        // As in ONNX Runtime, separators go before a pattern of tokens, and "." stands for all characters.
        let tokens = match (separators, attrs.str("tokenexp", "")) {
            (Some(all), _) if all.is_empty() => {
                return Err(bad("separators", "must not be empty"));
            }
            (Some(all), _) if all.len() > MOST_SEPARATORS => {
                let why = format!("must have at most {MOST_SEPARATORS} patterns");
                return Err(bad("separators", why));
            }
            (Some(all), _) if *all == ["".into()] => Tokens::Characters,
            (Some(all), _) => {
                all.iter()
                    .try_for_each(|pattern| check_pattern("separators", pattern))?;
                Tokens::Between(all)
            }
            (None, "") => return Err(bad("tokenexp", "must be given, or separators")),
            (None, ".") => Tokens::Characters,
            (None, pattern) => {
                check_pattern("tokenexp", pattern)?;
                Tokens::Matching(pattern.into())
            }
        };
        let least = usize::try_from(attrs.int("mincharnum", 0)).unwrap_or(0);
        let most = match tokens {
            Tokens::Characters => 1,
            _ => usize::MAX,
        };
        if !(1..=most).contains(&least) {
            let why = match most {
                1 => "must be 1 where each character is a token",
                _ => "must be above zero",
            };
            return Err(bad("mincharnum", why));
        }
        Ok(TokenizerAttrs {
            tokens,
            mark: flag(attrs, "mark", false),
            pad: attrs.str("pad_value", "").into(),
            least,
        })
    }
}

/// How `TfIdfVectorizer` weighs the number of a gram's occurrences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GramMode {
    /// The number.
    Tf,
    /// The gram's weight, where it occurs.
    Idf,
    /// The number times the weight.
    TfIdf,
}

/// Attributes of `TfIdfVectorizer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GramAttrs {
    pub mode: GramMode,
    /// The least and the most items of grams that are counted.
    pub items: (usize, usize),
    /// The most items that may lie between two neighbours of a gram.
    pub skips: usize,
    /// Where the grams of one item, of two items and so on begin in the pool.
    pub begins: Vec<usize>,
    /// Length of the result.
    pub columns: usize,
}

impl GramAttrs {
    /// Reads the attributes of a node.
    pub fn new(attrs: &Attrs) -> Result<GramAttrs, OpError> {
        let mode = match attrs.str("mode", "TF") {
            "TF" => GramMode::Tf,
            "IDF" => GramMode::Idf,
            "TFIDF" => GramMode::TfIdf,
            other => {
                return Err(bad(
                    "mode",
                    format!("must be TF, IDF or TFIDF, not '{other}'"),
                ));
            }
        };
        let within = |name: &str, default: i64, least: usize, most: usize| {
            let given = attrs.int(name, default);
            let v = usize::try_from(given)
                .ok()
                .filter(|v| (least..=most).contains(v));
            v.ok_or_else(|| {
                bad(
                    name,
                    format!("must be between {least} and {most}, not {given}"),
                )
            })
        };
        let most = within("max_gram_length", 1, 1, LONGEST_GRAM)?;
        let items = (within("min_gram_length", 1, 1, most)?, most);
        let skips = attrs.int("max_skip_count", 0);
        let skips = usize::try_from(skips);
        let skips = skips.map_err(|_| bad("max_skip_count", "must not be negative"))?;
        let columns = within("columns", 0, 1, MOST_COLUMNS)?;
        let begins = match attrs.get("ngram_counts") {
            Some(Attr::Ints(begins)) => begins.iter().map(|b| usize::try_from(*b).ok()).collect(),
            _ => None,
        };
        let begins: Option<Vec<usize>> = begins;
        let begins = begins.filter(|b| b.is_sorted() && (1..=LONGEST_GRAM).contains(&b.len()));
        let ascend = || bad("ngram_counts", "must be places of the pool that ascend");
        Ok(GramAttrs {
            mode,
            items,
            skips,
            begins: begins.ok_or_else(ascend)?,
            columns,
        })
    }
}
