//! Patterns in the syntax of RE2, which ONNX prescribes, brought to that of the `regex` crate.
//!
//! Both read the same text differently in a few places. The classes of `\d`, `\s` and `\w`, and `\b`, are ASCII in RE2,
//! so they are replaced; so is `\<`, a plain character in RE2. Syntax that RE2 reads differently and hardly anyone
//! writes is refused: brackets and set operators in a class, `{,n}`, and flags that RE2 lacks.

use std::ops::Range;

use regex::{Regex, RegexBuilder};
use regex_syntax::ast::parse::ParserBuilder;
use regex_syntax::ast::{
    self, AssertionKind, Ast, ClassPerl, ClassPerlKind, ClassSetBinaryOp, ClassSetItem, Flag,
    Flags, FlagsItemKind, Span, Visitor,
};

use crate::cpu::kernel::KernelFailure;

/// Most memory of a compiled pattern in bytes, and the longest string that it is matched with: a match cannot be cancelled,
/// and takes a time that is at most the product of both.
pub(super) const SIZES: [(usize, usize); 2] = [(1 << 18, 1 << 16), (1 << 21, 1 << 13)];
/// Deepest nesting of a pattern in the syntax of RE2.
const DEEPEST_PATTERN: u32 = 50;
/// The deepest nesting of a converted pattern: the group around it, and the groups that replace its classes, are three
/// levels at most.
pub(super) const DEEPEST: u32 = DEEPEST_PATTERN + 3;

/// A pattern in the syntax of RE2, compiled, and the longest string that it is matched with. `compile` is given the
/// pattern in the syntax of the `regex` crate, and the most memory in bytes.
pub(super) fn compiled<T>(
    pattern: &str,
    compile: impl Fn(&str, usize) -> Result<T, String>,
) -> Result<(T, usize), String> {
    // The pattern is read alone first: with a parenthesis too many, it could end the group that it is put into.
    let pattern = from_re2(pattern, DEEPEST_PATTERN)?;
    let mut last = String::new();
    for (size, longest) in SIZES {
        match compile(&pattern, size) {
            Ok(made) => return Ok((made, longest)),
            Err(why) => last = why,
        }
    }
    Err(last)
}

/// An expression in the syntax of the `regex` crate that takes at most `size` bytes.
pub(super) fn regex(pattern: &str, size: usize) -> Result<Regex, String> {
    let mut builder = RegexBuilder::new(pattern);
    builder.size_limit(size).dfa_size_limit(size);
    let built = builder.nest_limit(DEEPEST).build();
    built.map_err(|e| e.to_string())
}

/// Fails where string `i` is longer than those that a pattern is matched with.
pub(super) fn check_length(i: usize, string: &str, longest: usize) -> Result<(), KernelFailure> {
    match string.len() <= longest {
        true => Ok(()),
        false => Err(KernelFailure::values(format!(
            "string {i} has {} bytes; with this pattern, at most {longest} are matched",
            string.len()
        ))),
    }
}

/// The pattern in the syntax of the `regex` crate. Groups may lie in at most `deepest` others.
fn from_re2(pattern: &str, deepest: u32) -> Result<String, String> {
    let mut parser = ParserBuilder::new().nest_limit(deepest).build();
    let tree = parser.parse(pattern).map_err(|e| e.to_string())?;
    let visitor = Replacements {
        pattern,
        all: vec![],
    };
    let (mut made, mut done) = (String::with_capacity(pattern.len()), 0);
    // Replacements come in the order of the text, since the tree is walked from left to right.
    for (range, text) in ast::visit(&tree, visitor)? {
        made.push_str(pattern.get(done..range.start).unwrap_or_default());
        made.push_str(text);
        done = range.end;
    }
    made.push_str(pattern.get(done..).unwrap_or_default());
    Ok(made)
}

/// Parts of a pattern, and their replacements.
struct Replacements<'a> {
    pattern: &'a str,
    all: Vec<(Range<usize>, &'static str)>,
}

impl Replacements<'_> {
    fn replace(&mut self, span: &Span, text: &'static str) {
        self.all.push((span.start.offset..span.end.offset, text));
    }

    fn class(&mut self, class: &ClassPerl) {
        let text = match (&class.kind, class.negated) {
            (ClassPerlKind::Digit, false) => "[0-9]",
            (ClassPerlKind::Digit, true) => "[^0-9]",
            (ClassPerlKind::Space, false) => r"[\t\n\f\r ]",
            (ClassPerlKind::Space, true) => r"[^\t\n\f\r ]",
            (ClassPerlKind::Word, false) => "[0-9A-Za-z_]",
            (ClassPerlKind::Word, true) => "[^0-9A-Za-z_]",
        };
        self.replace(&class.span, text);
    }

    fn refused<T>(&self, span: &Span, why: &str) -> Result<T, String> {
        let text = self.pattern.get(span.start.offset..span.end.offset);
        let (text, at) = (text.unwrap_or_default(), span.start.offset);
        Err(format!("'{text}' at byte {at} {why}"))
    }

    fn flags(&self, flags: &Flags) -> Result<(), String> {
        let unknown = |item: &&ast::FlagsItem| {
            let kind = &item.kind;
            matches!(
                kind,
                FlagsItemKind::Flag(Flag::IgnoreWhitespace | Flag::Unicode | Flag::CRLF)
            )
        };
        match flags.items.iter().find(unknown) {
            Some(item) => self.refused(&item.span, "is no flag of RE2"),
            None => Ok(()),
        }
    }
}

impl Visitor for Replacements<'_> {
    type Output = Vec<(Range<usize>, &'static str)>;
    type Err = String;

    fn finish(self) -> Result<Self::Output, String> {
        Ok(self.all)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), String> {
        match ast {
            Ast::Flags(set) => return self.flags(&set.flags),
            Ast::Group(group) => {
                if let ast::GroupKind::NonCapturing(flags) = &group.kind {
                    return self.flags(flags);
                }
            }
            Ast::Repetition(repetition) => {
                let op = &repetition.op.span;
                let text = self.pattern.get(op.start.offset..).unwrap_or_default();
                let from = text.strip_prefix('{').map(str::trim_start);
                if from.is_some_and(|from| from.starts_with(',')) {
                    return self.refused(op, "has no least number");
                }
            }
            Ast::ClassPerl(class) => self.class(class),
            Ast::Assertion(assertion) => match assertion.kind {
                AssertionKind::WordBoundary => self.replace(&assertion.span, r"(?-u:\b)"),
                AssertionKind::NotWordBoundary => self.replace(&assertion.span, r"(?-u:\B)"),
                AssertionKind::WordBoundaryStartAngle => self.replace(&assertion.span, "<"),
                AssertionKind::WordBoundaryEndAngle => self.replace(&assertion.span, ">"),
                AssertionKind::StartLine
                | AssertionKind::EndLine
                | AssertionKind::StartText
                | AssertionKind::EndText => {}
                _ => return self.refused(&assertion.span, "is no assertion of RE2"),
            },
            _ => {}
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), String> {
        match item {
            ClassSetItem::Perl(class) => self.class(class),
            ClassSetItem::Bracketed(class) => {
                return self.refused(&class.span, "is a class within a class");
            }
            _ => {}
        }
        Ok(())
    }

    fn visit_class_set_binary_op_pre(&mut self, op: &ClassSetBinaryOp) -> Result<(), String> {
        self.refused(&op.span, "has an operator of sets, which RE2 lacks")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_ascii() {
        let check = |pattern: &str, want: &str| {
            assert_eq!(from_re2(pattern, 50).as_deref(), Ok(want), "{pattern}");
        };
        check("", "");
        check(r"(?i)a\\d[^é]+$", r"(?i)a\\d[^é]+$");
        check(r"é\d+|\W", "é[0-9]+|[^0-9A-Za-z_]");
        check(r"[\d_\S]\s", r"[[0-9]_[^\t\n\f\r ]][\t\n\f\r ]");
        check(r"\bx\B\<\>", r"(?-u:\b)x(?-u:\B)<>");
        check(r"a{2,}b{1,3}?", r"a{2,}b{1,3}?");
    }

    #[test]
    fn what_re2_reads_otherwise_is_refused() {
        for pattern in [
            "[a&&b]",
            "[a--b]",
            "[a~~b]",
            "[a[b]]",
            "a{,2}",
            "(?x) a",
            "(?u:a)",
            "(?-u)a",
            "(?R)a",
            r"\b{start}a",
            r"(a)\1",
            "(",
            "a)(b",
        ] {
            assert!(from_re2(pattern, 50).is_err(), "{pattern}");
        }
        assert!(from_re2(&"(".repeat(60), 50).is_err());
    }
}
