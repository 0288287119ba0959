//! Finds the mutants of a source file, and writes the file with all of them built in, each behind a switch.
//!
//! Invariants
//! 1. No line moves: inserted code has no line break, so that an error of the compiler names the mutant's own line.
//! 2. A mutant's own text has no other mutant in it: one is switched on at a time.

use std::collections::BTreeSet;
use std::ops::Range;

use anyhow::{Context, Result};
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, ExprBinary, ExprIf, ExprMethodCall, ExprUnary, Stmt};

/// One change of the code, as it was found.
#[derive(Debug, Clone)]
pub struct Mutant {
    pub number: usize,
    pub file: String,
    pub line: usize,
    /// The name under which the table of survivors knows the mutant, whatever lines move: its file, function, change, and
    /// how many alike come before it in the function.
    pub key: String,
}

/// Text that is put in at a place of the file.
struct Insertion {
    at: usize,
    /// The part that it surrounds, which orders insertions at one place: what surrounds more is further outside.
    range: Range<usize>,
    opens: bool,
    text: String,
}

struct Finder<'a> {
    file: &'a str,
    text: &'a str,
    /// The byte at which each line begins.
    lines: Vec<usize>,
    functions: Vec<String>,
    keys: BTreeSet<String>,
    next: usize,
    skipped: &'a BTreeSet<String>,
    mutants: Vec<Mutant>,
    insertions: Vec<Insertion>,
}

/// Returns the mutants of a file, numbered from `first` on, and its text with all of them but those that are `skipped`.
pub fn mutate(
    file: &str,
    text: &str,
    first: usize,
    skipped: &BTreeSet<String>,
) -> Result<(Vec<Mutant>, String)> {
    let parsed = syn::parse_file(text).with_context(|| format!("{file} cannot be read"))?;
    let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1));
    let mut finder = Finder {
        file,
        text,
        lines: lines.collect(),
        functions: vec![],
        keys: BTreeSet::new(),
        next: first,
        skipped,
        mutants: vec![],
        insertions: vec![],
    };
    finder.visit_file(&parsed);
    let Finder {
        mutants,
        mut insertions,
        ..
    } = finder;
    // At one place, what ends comes before what begins; of those that begin, the longer comes first, and of those that
    // end, the shorter.
    insertions.sort_by_key(|i| {
        let len = i.range.len() as isize;
        (i.at, i.opens, if i.opens { -len } else { len })
    });
    let (mut changed, mut at) = (String::with_capacity(2 * text.len()), 0);
    for insertion in insertions {
        changed.push_str(&text[at..insertion.at]);
        changed.push_str(&insertion.text);
        at = insertion.at;
    }
    changed.push_str(&text[at..]);
    Ok((mutants, changed))
}

/// Whether an item is compiled for tests alone.
fn is_of_tests(attrs: &[syn::Attribute]) -> bool {
    let of_tests = |a: &syn::Attribute| {
        let path = a.path();
        let cfg = path.is_ident("cfg") && quoted(&a.meta).contains("test");
        cfg || path.is_ident("test") || path.segments.last().is_some_and(|s| s.ident == "test")
    };
    attrs.iter().any(of_tests)
}

fn quoted(meta: &syn::Meta) -> String {
    match meta {
        syn::Meta::List(list) => list.tokens.to_string(),
        _ => String::new(),
    }
}

/// The values that a function may return in place of its result.
fn defaults(output: &syn::ReturnType) -> Vec<String> {
    let syn::ReturnType::Type(_, ty) = output else {
        return vec![String::new()];
    };
    let syn::Type::Path(path) = &**ty else {
        return match &**ty {
            syn::Type::Tuple(t) if t.elems.is_empty() => vec![String::new()],
            _ => vec![],
        };
    };
    let Some(last) = path.path.segments.last() else {
        return vec![];
    };
    let of = |all: &[&str]| all.iter().map(|s| (*s).to_owned()).collect();
    match last.ident.to_string().as_str() {
        "bool" => of(&["true", "false"]),
        "usize" | "u64" | "u32" | "u16" | "u8" | "i64" | "i32" | "isize" => of(&["0", "1"]),
        "Option" => of(&["None"]),
        "Vec" => of(&["vec![]"]),
        "String" => of(&["String::new()"]),
        "Duration" => of(&["std::time::Duration::ZERO"]),
        "Result" if is_unit(last) => of(&["Ok(())"]),
        _ => vec![],
    }
}

/// Whether the first argument of a type is `()`.
fn is_unit(segment: &syn::PathSegment) -> bool {
    let syn::PathArguments::AngleBracketed(arguments) = &segment.arguments else {
        return false;
    };
    matches!(
        arguments.args.first(),
        Some(syn::GenericArgument::Type(syn::Type::Tuple(t))) if t.elems.is_empty()
    )
}

/// Whether an operand of a chain of `&&` is a `let`, so that the chain is no value.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(b) if matches!(b.op, BinOp::And(_)) => has_let(&b.left) || has_let(&b.right),
        _ => false,
    }
}

fn other_operator(op: &BinOp) -> Option<&'static str> {
    Some(match op {
        BinOp::Lt(_) => "<=",
        BinOp::Le(_) => "<",
        BinOp::Gt(_) => ">=",
        BinOp::Ge(_) => ">",
        BinOp::Eq(_) => "!=",
        BinOp::Ne(_) => "==",
        BinOp::And(_) => "||",
        BinOp::Or(_) => "&&",
        BinOp::Add(_) => "-",
        BinOp::Sub(_) => "+",
        BinOp::Mul(_) => "+",
        BinOp::Div(_) => "*",
        BinOp::AddAssign(_) => "-=",
        BinOp::SubAssign(_) => "+=",
        _ => return None,
    })
}

fn other_method(name: &str) -> Option<&'static str> {
    Some(match name {
        "min" => "max",
        "max" => "min",
        "any" => "all",
        "all" => "any",
        "is_some" => "is_none",
        "is_none" => "is_some",
        "is_ok" => "is_err",
        "is_err" => "is_ok",
        "is_some_and" => "is_none_or",
        "is_none_or" => "is_some_and",
        "saturating_sub" => "saturating_add",
        "saturating_add" => "saturating_sub",
        _ => return None,
    })
}

impl Finder<'_> {
    fn offset(&self, at: proc_macro2::LineColumn) -> usize {
        let line = self.lines[at.line - 1];
        let columns = self.text[line..].chars().take(at.column);
        line + columns.map(char::len_utf8).sum::<usize>()
    }

    fn range(&self, span: Span) -> Range<usize> {
        self.offset(span.start())..self.offset(span.end())
    }

    /// Notes a mutant, and returns the condition under which it is on; `None` if it is skipped.
    fn note(&mut self, at: usize, change: &str) -> Option<String> {
        let function = self.functions.last()?;
        let line = self.lines.partition_point(|begins| *begins <= at);
        let base = format!("{} {function}: {change}", self.file);
        let numbered = (1..).map(|n| match n {
            1 => base.clone(),
            n => format!("{base} ({n})"),
        });
        let key = numbered.into_iter().find(|k| !self.keys.contains(k))?;
        self.keys.insert(key.clone());
        if self.skipped.contains(&key) {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.mutants.push(Mutant {
            number,
            file: self.file.to_owned(),
            line,
            key,
        });
        Some(format!("crate::mutation_switch::on({number})"))
    }

    fn insert(&mut self, range: Range<usize>, before: String, after: &str) {
        for (at, opens, text) in [
            (range.start, true, before),
            (range.end, false, after.into()),
        ] {
            let range = range.clone();
            self.insertions.push(Insertion {
                at,
                range,
                opens,
                text,
            });
        }
    }

    /// Evaluates `instead` in place of an expression where the mutant is on.
    fn replace(&mut self, range: Range<usize>, change: &str, instead: &str) {
        // A comment to the end of the line would swallow the code after it.
        if instead.contains("//") {
            return;
        }
        if let Some(on) = self.note(range.start, change) {
            let instead = instead.replace('\n', " ");
            self.insert(range, format!("(if {on} {{ {instead} }} else {{ "), " })");
        }
    }

    /// Negates a condition where the mutant is on.
    fn negate(&mut self, condition: &Expr) {
        let has_own = match condition {
            Expr::Binary(b) => other_operator(&b.op).is_some(),
            Expr::Unary(u) => matches!(u.op, syn::UnOp::Not(_)),
            Expr::MethodCall(m) => other_method(&m.method.to_string()).is_some(),
            Expr::Let(_) | Expr::Macro(_) | Expr::Lit(_) => true,
            _ => false,
        };
        if has_own {
            return;
        }
        let range = self.range(condition.span());
        let shown = shortened(&self.text[range.clone()]);
        if let Some(on) = self.note(range.start, &format!("`{shown}` negated")) {
            self.insert(range, "((".into(), &format!(") ^ {on})"));
        }
    }

    /// Visits the body of a function: it may end at once.
    fn body(&mut self, name: String, signature: &syn::Signature, block: &syn::Block) {
        if signature.constness.is_some() || signature.unsafety.is_some() {
            return;
        }
        self.functions.push(name);
        let own: Vec<String> = match block.stmts.is_empty() {
            true => vec![],
            false => defaults(&signature.output),
        };
        let begins = self.offset(block.brace_token.span.open().end());
        for value in own {
            let is_value = quoted_block(block) == value;
            if is_value {
                continue;
            }
            let change = match value.as_str() {
                "" => "does nothing".to_owned(),
                value => format!("returns `{value}`"),
            };
            if let Some(on) = self.note(begins, &change) {
                let text = format!(" if {on} {{ return {value}; }}");
                self.insertions.push(Insertion {
                    at: begins,
                    range: begins..begins,
                    opens: true,
                    text,
                });
            }
        }
        visit::visit_block(self, block);
        self.functions.pop();
    }
}

fn quoted_block(block: &syn::Block) -> String {
    match block.stmts.as_slice() {
        [Stmt::Expr(Expr::Lit(l), None)] => match &l.lit {
            syn::Lit::Bool(b) => b.value.to_string(),
            syn::Lit::Int(i) => i.base10_digits().to_owned(),
            _ => String::new(),
        },
        [Stmt::Expr(Expr::Path(p), None)] if p.path.is_ident("None") => "None".into(),
        _ => "…".into(),
    }
}

/// A text of code in one line of the table.
fn shortened(code: &str) -> String {
    let words: Vec<&str> = code.split_whitespace().collect();
    let line = words.join(" ").replace('|', "¦").replace('`', "'");
    match line.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_of_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_expr_repeat(&mut self, r: &'ast syn::ExprRepeat) {
        self.visit_expr(&r.expr);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of = item
            .trait_
            .as_ref()
            .and_then(|(_, path, _)| path.segments.last());
        let skipped = ["Debug", "Display", "Default", "Hash", "Ord", "PartialOrd"];
        let is_skipped = of.is_some_and(|of| skipped.iter().any(|s| of.ident == s));
        if !is_skipped && !is_of_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_of_tests(&item.attrs) {
            self.body(item.sig.ident.to_string(), &item.sig, &item.block);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_of_tests(&item.attrs) {
            self.body(item.sig.ident.to_string(), &item.sig, &item.block);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.body(item.sig.ident.to_string(), &item.sig, block);
        }
    }

    fn visit_expr_binary(&mut self, b: &'ast ExprBinary) {
        let (all, op) = (self.range(b.span()), self.range(b.op.span()));
        if let Some(other) = other_operator(&b.op)
            && !(has_let(&b.left) || has_let(&b.right))
        {
            let text = self.text;
            let (left, right) = (&text[all.start..op.start], &text[op.end..all.end]);
            let shown = shortened(&text[all.clone()]);
            let (own, new) = (shortened(&text[op]), shortened(other));
            let change = format!("`{own}` becomes `{new}` in `{shown}`");
            self.replace(all, &change, &format!("{left}{other}{right}"));
        }
        visit::visit_expr_binary(self, b);
    }

    fn visit_expr_unary(&mut self, u: &'ast ExprUnary) {
        if matches!(u.op, syn::UnOp::Not(_)) {
            let (all, operand) = (self.range(u.span()), self.range(u.expr.span()));
            let text = self.text;
            let shown = shortened(&text[all.clone()]);
            self.replace(all, &format!("`{shown}` loses its `!`"), &text[operand]);
        }
        visit::visit_expr_unary(self, u);
    }

    fn visit_expr_method_call(&mut self, m: &'ast ExprMethodCall) {
        if let Some(other) = other_method(&m.method.to_string()) {
            let (all, name) = (self.range(m.span()), self.range(m.method.span()));
            let text = self.text;
            let (before, after) = (&text[all.start..name.start], &text[name.end..all.end]);
            let change = format!(
                "`{}` becomes `{other}` in `{}`",
                m.method,
                shortened(&text[all.clone()])
            );
            self.replace(all.clone(), &change, &format!("{before}{other}{after}"));
        }
        visit::visit_expr_method_call(self, m);
    }

    fn visit_expr_if(&mut self, i: &'ast ExprIf) {
        self.negate(&i.cond);
        visit::visit_expr_if(self, i);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some((_, guard)) = &arm.guard {
            self.negate(guard);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        if let Stmt::Expr(expr, Some(semi)) = stmt
            && matches!(expr, Expr::MethodCall(_) | Expr::Call(_) | Expr::Assign(_))
        {
            let range = self.range(expr.span()).start..self.range(semi.span()).end;
            let shown = shortened(&self.text[range.clone()]);
            if let Some(on) = self.note(range.start, &format!("without `{shown}`")) {
                self.insert(range, format!("if !{on} {{ "), " }");
            }
        }
        visit::visit_stmt(self, stmt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutated(text: &str) -> (Vec<String>, String) {
        let (mutants, changed) = mutate("f.rs", text, 0, &BTreeSet::new()).unwrap();
        assert_eq!(changed.lines().count(), text.lines().count());
        syn::parse_file(&changed).unwrap_or_else(|e| panic!("{e}: {changed}"));
        (mutants.into_iter().map(|m| m.key).collect(), changed)
    }

    #[test]
    fn each_change_is_behind_a_switch_of_its_own() {
        let (keys, changed) = mutated("fn f(a: u32) -> bool { a < 3 && a != 1 }");
        assert_eq!(
            keys,
            [
                "f.rs f: returns `true`",
                "f.rs f: returns `false`",
                "f.rs f: `&&` becomes `¦¦` in `a < 3 && a != 1`",
                "f.rs f: `<` becomes `<=` in `a < 3`",
                "f.rs f: `!=` becomes `==` in `a != 1`",
            ]
        );
        let inner = "(if crate::mutation_switch::on(3) { a <= 3 } else { a < 3 })";
        assert!(changed.contains(inner), "{changed}");
        assert!(
            changed.contains("{ a < 3 || a != 1 } else { (if"),
            "{changed}"
        );
    }

    #[test]
    fn a_chain_with_a_let_stays_one() {
        let text = "fn f(a: Option<u32>) { if let Some(x) = a && x > 2 { g(x); } }";
        let (keys, _) = mutated(text);
        let without = keys.iter().filter(|k| k.contains("&&")).count();
        assert_eq!((without, keys.len()), (0, 3), "{keys:?}");
    }

    #[test]
    fn tests_constants_and_macros_have_none() {
        let text = "const A: u32 = 1 + 2;\n#[cfg(test)] mod t { fn g() { h(); } }\nfn f() -> T { assert!(1 < 2) }";
        assert_eq!(mutated(text).0, Vec::<String>::new());
    }

    #[test]
    fn changes_that_read_alike_are_told_apart() {
        let (keys, _) = mutated("fn f(a: &mut A) -> T { a.g(); a.g(); a.b }");
        assert_eq!(
            keys,
            ["f.rs f: without `a.g();`", "f.rs f: without `a.g();` (2)"]
        );
    }
}
