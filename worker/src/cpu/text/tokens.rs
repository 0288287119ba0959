//! The tokens of strings: `Tokenizer` of ONNX Runtime.
//!
//! ```text
//! strings ──> where each token begins and ends, in scratch memory ──> tokens, marks and padding
//! ```
//!
//! The match that begins first is taken, and where several begin there, the longest of them. The `regex` crate takes the first
//! alternative of the pattern instead. So it finds where a match begins, and an automaton of all matches finds where the longest one
//! ends.

use std::ops::Range;

use convoke_common::Error;
use convoke_graph::ops::attrs::{TokenizerAttrs, Tokens};
use convoke_graph::{Tensor, text::Strings};
use convoke_kernels::Exec;
use regex::Regex;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind};

use super::pattern;
use super::strings::{PIECE, made, of_strings, strings};
use crate::cpu::kernel::{FamilyAnswer, KernelFailure, OpLaunch, Spec, write};

/// The marks that stand before and after the tokens of a string.
const MARKS: [&str; 2] = ["\u{2}", "\u{3}"];

/// Makes the kernel of `Tokenizer`.
pub(super) fn find(spec: &Spec<'_>) -> FamilyAnswer {
    let attrs = TokenizerAttrs::new(spec.attrs)?;
    let all = |attr: &'static str, patterns: &[std::sync::Arc<str>]| {
        // The patterns of a node share the memory that one may take.
        let new = |p: &str, size: usize| Pattern::new(p, size / patterns.len().max(1));
        let compile = |p: &std::sync::Arc<str>| {
            pattern::compiled(p, new).map_err(|why| spec.bad_attr(attr, why))
        };
        patterns.iter().map(compile).collect::<Result<Vec<_>, _>>()
    };
    let patterns = match &attrs.tokens {
        Tokens::Characters => vec![],
        Tokens::Between(separators) => all("separators", separators)?,
        Tokens::Matching(token) => all("tokenexp", std::slice::from_ref(token))?,
    };
    let longest = patterns.iter().map(|(_, longest)| *longest).min();
    let longest = longest.unwrap_or(usize::MAX);
    let patterns: Vec<Pattern> = patterns.into_iter().map(|(p, _)| p).collect();
    of_strings(move |call| tokenized(call, &attrs, &patterns, longest))
}

fn tokenized(
    call: &OpLaunch<'_, '_>,
    attrs: &TokenizerAttrs,
    patterns: &[Pattern],
    longest: usize,
) -> Result<Tensor, KernelFailure> {
    let (exec, pool) = (&call.launch.exec, call.launch.pool);
    let x = strings(call, 0)?;
    for (i, string) in x.iter().enumerate() {
        if i.is_multiple_of(PIECE / 16) {
            exec.check()?;
        }
        pattern::check_length(i, string, longest)?;
    }
    let mut begins = call.scratch::<u64>(x.len() + 1)?;
    // The tokens are looked for twice, so that no more is kept than they take: first they are only counted.
    let most = found(
        exec,
        attrs,
        patterns,
        x,
        write(&mut begins)?,
        &mut |_, _| Ok(()),
    )?;
    let count = begins.as_slice::<u64>()?[x.len()] as usize;
    let mut spans = call.scratch::<u64>(count.saturating_mul(2))?;
    let places = write::<u64>(&mut spans)?;
    found(
        exec,
        attrs,
        patterns,
        x,
        write(&mut begins)?,
        &mut |token, at| {
            let room = places.get_mut(2 * token..2 * token + 2);
            let room = room.ok_or_else(|| Error::internal("more tokens than there were"))?;
            room.copy_from_slice(&[at.start as u64, at.end as u64]);
            Ok(())
        },
    )?;
    let (begins, spans) = (begins.as_slice::<u64>()?, spans.as_slice::<u64>()?);
    // Where no string has a token, there are no marks.
    let marked = attrs.mark && most > 0;
    let width = most + 2 * usize::from(marked);
    let mut shape = call.shape(0)?.to_vec();
    shape.push(width);
    made(exec, pool, &shape, |i, sink| {
        let (string, mut place) = (i / width, i % width);
        if marked {
            if place == 0 {
                return Ok(sink(MARKS[0])?);
            }
            place -= 1;
        }
        let (begin, end) = (begins[string] as usize, begins[string + 1] as usize);
        let part = match place.cmp(&(end - begin)) {
            std::cmp::Ordering::Less => {
                let at = 2 * (begin + place);
                let token = spans[at] as usize..spans[at + 1] as usize;
                &x.get(string)[token]
            }
            std::cmp::Ordering::Equal if marked => MARKS[1],
            _ => &attrs.pad,
        };
        Ok(sink(part)?)
    })
}

/// Tells `take` the number of each token, and where it lies in its string, and writes where the tokens of each string begin among
/// all of them. Returns the most tokens of a string.
fn found(
    exec: &Exec<'_>,
    attrs: &TokenizerAttrs,
    patterns: &[Pattern],
    x: Strings<'_>,
    begins: &mut [u64],
    take: &mut dyn FnMut(usize, Range<usize>) -> Result<(), KernelFailure>,
) -> Result<usize, KernelFailure> {
    let mut searches: Vec<Search<'_>> = patterns.iter().map(Search::new).collect();
    let (mut count, mut most) = (0, 0);
    begins[0] = 0;
    for (i, string) in x.iter().enumerate() {
        exec.check()?;
        let before = count;
        let mut sink = |token: Range<usize>| {
            take(count, token)?;
            count += 1;
            Ok(())
        };
        match (&attrs.tokens, &mut *searches) {
            (Tokens::Matching(_), [search]) => {
                matching(exec, string, search, attrs.least, &mut sink)?;
            }
            (Tokens::Characters, _) => {
                for (i, (at, c)) in string.char_indices().enumerate() {
                    if i.is_multiple_of(PIECE) {
                        exec.check()?;
                    }
                    sink(at..at + c.len_utf8())?;
                }
            }
            (_, separators) => {
                let all = 0..string.len();
                between(exec, string, all, separators, attrs.least, &mut sink)?;
            }
        }
        most = most.max(count - before);
        begins[i + 1] = count as u64;
    }
    Ok(most)
}

/// Takes where a token lies in its string.
type Sink<'s> = &'s mut dyn FnMut(Range<usize>) -> Result<(), KernelFailure>;

/// The tokens of a part of a string between matches of separators, each of which divides what those before it left.
fn between(
    exec: &Exec<'_>,
    string: &str,
    part: Range<usize>,
    separators: &mut [Search<'_>],
    least: usize,
    sink: Sink<'_>,
) -> Result<(), KernelFailure> {
    let Some((first, others)) = separators.split_first_mut() else {
        return sink(part);
    };
    let text = &string[part.clone()];
    let mut at = 0;
    loop {
        exec.check()?;
        let separator = first.next(text, at)?;
        let token = at..separator.as_ref().map_or(text.len(), |s| s.start);
        if text[token.clone()].chars().count() >= least {
            let token = part.start + token.start..part.start + token.end;
            between(exec, string, token, others, least, sink)?;
        }
        // As in ONNX Runtime, a separator of no characters takes the character behind it with it.
        match separator.and_then(|s| beyond(text, s)) {
            Some(end) => at = end,
            None => return Ok(()),
        }
    }
}

/// The tokens of a string that match a pattern. After a match of too few characters, the search goes on one character
/// behind its beginning.
fn matching(
    exec: &Exec<'_>,
    string: &str,
    search: &mut Search<'_>,
    least: usize,
    sink: Sink<'_>,
) -> Result<(), KernelFailure> {
    let mut at = 0;
    while let Some(token) = search.next(string, at)? {
        exec.check()?;
        let counts = string[token.clone()].chars().count() >= least;
        let next = match counts {
            true => Some(token.end),
            false => beyond(string, token.start..token.start),
        };
        if counts {
            sink(token)?;
        }
        match next {
            Some(next) => at = next,
            None => break,
        }
    }
    Ok(())
}

/// The end of a match, or of the character behind it where it is empty; `None` where the text ends there.
fn beyond(text: &str, found: Range<usize>) -> Option<usize> {
    match found.is_empty() {
        false => Some(found.end),
        true => {
            let next = text[found.end..].chars().next()?;
            Some(found.end + next.len_utf8())
        }
    }
}

/// A compiled pattern.
struct Pattern {
    /// Finds where the first match begins.
    first: Regex,
    /// Finds where the longest match from there ends.
    longest: DFA,
}

impl Pattern {
    /// Compiles a pattern, for which each part may take `size` bytes.
    fn new(pattern: &str, size: usize) -> Result<Pattern, String> {
        let first = pattern::regex(pattern, size)?;
        let longest = DFA::builder()
            .syntax(syntax::Config::new().nest_limit(pattern::DEEPEST))
            .thompson(thompson::Config::new().nfa_size_limit(Some(size)))
            .configure(
                DFA::config()
                    .match_kind(MatchKind::All)
                    // The cache that the automaton needs at least is bounded by its own size, which is limited above.
                    .skip_cache_capacity_check(true)
                    .cache_capacity(size),
            )
            .build(pattern)
            .map_err(|e| e.to_string())?;
        Ok(Pattern { first, longest })
    }
}

/// A pattern with the memory that its automaton needs.
struct Search<'p> {
    pattern: &'p Pattern,
    cache: Cache,
}

impl<'p> Search<'p> {
    fn new(pattern: &'p Pattern) -> Search<'p> {
        Search {
            pattern,
            cache: pattern.longest.create_cache(),
        }
    }

    /// The first match in `text` that begins at byte `at` or behind it, and of those the longest.
    fn next(&mut self, text: &str, at: usize) -> Result<Option<Range<usize>>, KernelFailure> {
        let Some(found) = self.pattern.first.find_at(text, at) else {
            return Ok(None);
        };
        let input = Input::new(text)
            .range(found.start()..)
            .anchored(Anchored::Yes);
        let longest = self
            .pattern
            .longest
            .try_search_fwd(&mut self.cache, &input)
            .map_err(|e| Error::internal(e.to_string()))?;
        let end = longest.map_or(found.end(), |m| m.offset());
        Ok(Some(found.start()..end))
    }
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::{Attr, Attrs};

    use super::*;
    use crate::cpu::testing::one;

    fn text(shape: &[usize], strings: &[&str]) -> Tensor {
        Tensor::from_strings(shape, strings).unwrap()
    }

    fn attrs(mark: bool, least: i64, by: (&str, Attr)) -> Attrs {
        Attrs::default()
            .with("mark", Attr::Int(mark.into()))
            .with("mincharnum", Attr::Int(least))
            .with("pad_value", Attr::Str("#".into()))
            .with(by.0, by.1)
    }

    fn separators(all: &[&str]) -> (&'static str, Attr) {
        let all = all.iter().map(|s| (*s).into()).collect();
        ("separators", Attr::Strs(all))
    }

    fn token(pattern: &str) -> (&'static str, Attr) {
        ("tokenexp", Attr::Str(pattern.into()))
    }

    /// The tokens of one string, without padding.
    fn tokens(string: &str, least: i64, by: (&str, Attr)) -> Vec<String> {
        let y = one(
            "Tokenizer",
            attrs(false, least, by),
            &[&text(&[1], &[string])],
        );
        y.unwrap().to_strings().unwrap()
    }

    #[test]
    fn tokens_are_marked_and_filled_up() {
        let x = text(&[1, 3], &["é a", "", "b"]);
        let all = |mark| one("Tokenizer", attrs(mark, 1, separators(&[" "])), &[&x]).unwrap();
        assert_eq!(
            all(false),
            text(&[1, 3, 2], &["é", "a", "#", "#", "b", "#"])
        );
        let (s, e) = (MARKS[0], MARKS[1]);
        let want = [s, "é", "a", e, s, e, "#", "#", s, "b", e, "#"];
        assert_eq!(all(true), text(&[1, 3, 4], &want));
        let none = text(&[2], &["", " "]);
        let y = one("Tokenizer", attrs(true, 1, separators(&[" "])), &[&none]);
        assert_eq!(y.unwrap(), text(&[2, 0], &[]));
        let y = one(
            "Tokenizer",
            attrs(true, 1, token("a")),
            &[&text(&[0, 2], &[])],
        );
        assert_eq!(y.unwrap().shape(), [0, 2, 0]);
    }

    #[test]
    fn each_character_may_be_a_token() {
        for by in [separators(&[""]), token(".")] {
            assert_eq!(tokens("a é\n東", 1, by), ["a", " ", "é", "\n", "東"]);
        }
    }

    #[test]
    fn separators_are_applied_in_turn() {
        let check = |string: &str, least: i64, by: &[&str], want: &[&str]| {
            assert_eq!(
                tokens(string, least, separators(by)),
                want,
                "{string:?} {by:?}"
            );
        };
        check("a,b  c,,d", 1, &[",", " +"], &["a", "b", "c", "d"]);
        check("ab,c  def", 2, &[",", " +"], &["ab", "def"]);
        check("aXbXYc", 1, &["X|XY"], &["a", "b", "c"]);
        check("abcabd", 1, &["ab|abc|b"], &["d"]);
        // A separator at the beginning of the text behind another separator.
        check("a-b", 1, &["a", "^-"], &["b"]);
        // A separator of no characters takes what stands behind it.
        check("abc", 1, &["x*"], &[]);
        check("ab1c", 2, &["(?:[0-9]?)$"], &["ab1c"]);
    }

    #[test]
    fn tokens_are_the_longest_matches() {
        let check = |string: &str, least: i64, by: &str, want: &[&str]| {
            assert_eq!(tokens(string, least, token(by)), want, "{string:?} {by:?}");
        };
        check("abcd xab", 1, "a|ab|abc", &["abc", "ab"]);
        check("aaa b", 1, "a+?|b", &["aaa", "b"]);
        check("a bc déf", 2, "[a-zé]+", &["bc", "déf"]);
        check("foo bar", 1, r"\bb\w+\b", &["bar"]);
        check("aba", 2, "a|ba", &["ba"]);
        check("abc", 1, "x*", &[]);
        check("ab", 3, "a*", &[]);
    }

    #[test]
    fn patterns_and_strings_have_limits() {
        let x = text(&[1], &["a"]);
        for pattern in ["(", "[a&&b]", "a{1000}{1000}", &"(".repeat(1000)] {
            for by in [token(pattern), separators(&[pattern])] {
                assert!(
                    one("Tokenizer", attrs(false, 1, by), &[&x]).is_err(),
                    "{pattern}"
                );
            }
        }
        let long = "a".repeat(pattern::SIZES[0].1 + 1);
        let e = one(
            "Tokenizer",
            attrs(false, 1, token("a")),
            &[&text(&[1], &[&long])],
        );
        assert!(e.unwrap_err().message.contains("string 0"));
        let y = tokens(&long, 1, separators(&[""]));
        assert_eq!(y.len(), long.len());
    }
}
