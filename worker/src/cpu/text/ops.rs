//! The ops of the family of strings.

use convoke_graph::ops::attrs::{CaseChange, NormalizerAttrs};
use convoke_graph::ops::{OpError, TextOp};
use convoke_graph::text::Strings;
use convoke_graph::{DType, Outputs, Tensor};

use super::strings::{PIECE, made, of_strings, places, strings};
use super::{grams, pattern, tokens};
use crate::cpu::kernel::{
    FamilyAnswer, KernelBody, KernelFailure, OpLaunch, Spec, body, one, write,
};

pub(in crate::cpu) fn find(op: TextOp, spec: &Spec<'_>) -> FamilyAnswer {
    match op {
        TextOp::RegexFullMatch => full_match(spec),
        TextOp::StringConcat => of_strings(joined),
        TextOp::StringNormalizer => {
            let attrs = NormalizerAttrs::new(spec.attrs)?;
            of_strings(move |call| normalized(call, &attrs))
        }
        TextOp::StringSplit => {
            let delimiter = spec.attrs.str("delimiter", "").to_owned();
            let most = spec.attrs.get("maxsplit").is_some();
            let most = most.then(|| spec.attrs.int("maxsplit", -1));
            // A negative number stands for none, as in Python.
            let most = most.and_then(|most| usize::try_from(most).ok());
            body(move |call| split(&call, &delimiter, most.unwrap_or(usize::MAX)))
        }
        TextOp::TfIdfVectorizer => body(|call| grams::counted(&call)),
        TextOp::Tokenizer => tokens::find(spec),
    }
}

fn joined(call: &OpLaunch<'_, '_>) -> Result<Tensor, KernelFailure> {
    let shape = call.out_shape(0);
    let at = [places(call, 0)?, places(call, 1)?];
    let (a, b) = (at[0].as_slice::<u64>()?, at[1].as_slice::<u64>()?);
    let (x, y) = (strings(call, 0)?, strings(call, 1)?);
    made(&call.launch.exec, call.launch.pool, shape, |i, sink| {
        sink(x.get(a[i] as usize))?;
        Ok(sink(y.get(b[i] as usize))?)
    })
}

fn full_match(spec: &Spec<'_>) -> Result<KernelBody, OpError> {
    let whole = |pattern: &str, size| pattern::regex(&format!(r"\A(?:{pattern})\z"), size);
    let (pattern, longest) = pattern::compiled(spec.attrs.str("pattern", ""), whole)
        .map_err(|why| spec.bad_attr("pattern", why))?;
    body(move |call| {
        let mut y = call.output(0)?;
        let all = strings(&call, 0)?.iter().enumerate();
        for (y, (i, string)) in write::<u8>(&mut y)?.iter_mut().zip(all) {
            call.launch.exec.check()?;
            pattern::check_length(i, string, longest)?;
            *y = u8::from(pattern.is_match(string));
        }
        one(y)
    })
}

fn normalized(call: &OpLaunch<'_, '_>, attrs: &NormalizerAttrs) -> Result<Tensor, KernelFailure> {
    let (exec, pool) = (&call.launch.exec, call.launch.pool);
    let x = strings(call, 0)?;
    // Without regard to case, both are compared in lower case.
    let same = |word: &str| match attrs.case_sensitive {
        true => word.to_owned(),
        false => word.to_lowercase(),
    };
    let mut stops: Vec<String> = attrs.stop_words.iter().map(|w| same(w)).collect();
    stops.sort();
    let mut kept = call.scratch::<i64>(x.len())?;
    let kept = write::<i64>(&mut kept)?;
    let mut count = 0;
    for (i, word) in x.iter().enumerate() {
        if i.is_multiple_of(PIECE) {
            exec.check()?;
        }
        let stops = !stops.is_empty() && stops.binary_search(&same(word)).is_ok();
        if !stops {
            kept[count] = i as i64;
            count += 1;
        }
    }
    let mut shape = vec![count.max(1)];
    if call.shape(0)?.len() == 2 {
        shape.insert(0, 1);
    }
    made(exec, pool, &shape, |i, sink| {
        if i == count {
            return Ok(());
        }
        let word = x.get(kept[i] as usize);
        Ok(match attrs.change {
            CaseChange::None => sink(word),
            CaseChange::Lower => sink(&word.to_lowercase()),
            CaseChange::Upper => sink(&word.to_uppercase()),
        }?)
    })
}

/// The parts of a string: between delimiters or, where that is empty, between white space. After `most` delimiters the
/// rest is one part.
fn parts<'a>(string: &'a str, delimiter: &'a str, most: usize) -> Parts<'a> {
    Parts {
        rest: Some(string),
        delimiter,
        left: most,
    }
}

struct Parts<'a> {
    /// The text that is not divided yet; `None` after the last part.
    rest: Option<&'a str>,
    delimiter: &'a str,
    /// How many parts may still be cut off.
    left: usize,
}

impl<'a> Iterator for Parts<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let mut rest = self.rest.take()?;
        let white = self.delimiter.is_empty();
        if white {
            rest = rest.trim_start();
            if rest.is_empty() {
                return None;
            }
        }
        let cut = match (self.left, white) {
            (0, _) => None,
            (_, true) => rest.split_once(char::is_whitespace),
            (_, false) => rest.split_once(self.delimiter),
        };
        self.left = self.left.saturating_sub(1);
        match cut {
            Some((part, after)) => {
                self.rest = Some(after);
                Some(part)
            }
            None => Some(rest),
        }
    }
}

fn split(call: &OpLaunch<'_, '_>, delimiter: &str, most: usize) -> Result<Outputs, KernelFailure> {
    let (exec, pool) = (&call.launch.exec, call.launch.pool);
    let x: Strings<'_> = strings(call, 0)?;
    let mut counts = pool.tensor(DType::I64, call.shape(0)?)?;
    let mut longest = 0;
    for (i, (n, string)) in write::<i64>(&mut counts)?
        .iter_mut()
        .zip(x.iter())
        .enumerate()
    {
        if i.is_multiple_of(PIECE / 16) {
            exec.check()?;
        }
        let count = parts(string, delimiter, most).count();
        *n = count as i64;
        longest = longest.max(count);
    }
    let mut shape = call.shape(0)?.to_vec();
    shape.push(longest);
    // The parts of one string are asked for one after the other.
    let mut before = (0, parts("", delimiter, 0));
    let made = made(exec, pool, &shape, |i, sink| {
        let (string, part) = (i / longest, i % longest);
        if part == 0 {
            before = (string, parts(x.get(string), delimiter, most));
        }
        match before.1.next() {
            Some(text) => Ok(sink(text)?),
            None => Ok(()),
        }
    })?;
    Ok([made, counts].into_iter().collect())
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::{Attr, Attrs};

    use super::*;
    use crate::cpu::testing::{launch, one, vec1};

    fn text(shape: &[usize], strings: &[&str]) -> Tensor {
        Tensor::from_strings(shape, strings).unwrap()
    }

    fn named(name: &str, value: &str) -> Attrs {
        Attrs::default().with(name, Attr::Str(value.into()))
    }

    #[test]
    fn parts_are_those_of_python() {
        let check = |string: &str, delimiter: &str, most: usize, want: &[&str]| {
            let got: Vec<_> = parts(string, delimiter, most).collect();
            assert_eq!(got, want, "{string:?} {delimiter:?} {most}");
        };
        let all = usize::MAX;
        check("a,b,,c", ",", all, &["a", "b", "", "c"]);
        check(",", ",", all, &["", ""]);
        check("", ",", all, &[""]);
        check("a,b,c", ",", 1, &["a", "b,c"]);
        check("a--b", "--", all, &["a", "b"]);
        check("  a b\t\u{3000}c ", "", all, &["a", "b", "c"]);
        check("  a  b  c ", "", 1, &["a", "b  c "]);
        check("   ", "", all, &[]);
        check(" a b", "", 0, &["a b"]);
    }

    #[test]
    fn splits_are_filled_up() {
        let x = text(&[3], &["a b", "", "c"]);
        let y = launch("StringSplit", Attrs::default(), vec![Some(x)], 2).unwrap();
        assert_eq!(y[0], text(&[3, 2], &["a", "b", "", "", "c", ""]));
        assert_eq!(y[1], vec1(&[2i64, 0, 1]));
        let none = text(&[2, 0], &[]);
        let y = launch("StringSplit", Attrs::default(), vec![Some(none)], 2).unwrap();
        assert_eq!((y[0].shape(), y[1].shape()), (&[2, 0, 0][..], &[2, 0][..]));
    }

    #[test]
    fn patterns_match_as_a_whole() {
        let x = text(&[4], &["ab", "abb", "xab", "ab\n"]);
        let matches = |pattern: &str| one("RegexFullMatch", named("pattern", pattern), &[&x]);
        let bools = |v: &[bool]| Tensor::from_bools(&[v.len()], v).unwrap();
        assert_eq!(matches("ab+").unwrap(), bools(&[true, true, false, false]));
        assert_eq!(
            matches("a|ab").unwrap(),
            bools(&[true, false, false, false])
        );
        let x = text(&[4], &["été", "ete", "a\u{b}", "٣"]);
        let all = |pattern: &str| one("RegexFullMatch", named("pattern", pattern), &[&x]);
        let check = |pattern, want: [bool; 4]| {
            assert_eq!(all(pattern).unwrap(), bools(&want), "{pattern}");
        };
        check(r"\w+", [false, true, false, false]);
        check(r"\W\w\W|a\s|\d", [true, false, false, false]);
        check(r"é\bt\b.", [true, false, false, false]);
        check(r"[^\d]\B.*", [false, true, false, true]);
        for refused in [
            "[a&&b]",
            "(",
            "a)(b",
            "a{1000}{1000}",
            &"(".repeat(1000),
            "(a)\\1",
        ] {
            assert!(matches(refused).is_err(), "{refused}");
        }
        let long = "a".repeat(pattern::SIZES[0].1 + 1);
        let e = one(
            "RegexFullMatch",
            named("pattern", "a*"),
            &[&text(&[1], &[&long])],
        );
        assert!(e.unwrap_err().message.contains("string 0"));
    }

    #[test]
    fn stop_words_are_left_out() {
        let x = text(&[1, 4], &["Straße", "MON", "mon", "été"]);
        let stop = Attr::Strs(vec!["mon".into()]);
        let attrs = named("case_change_action", "UPPER").with("stopwords", stop.clone());
        let y = one("StringNormalizer", attrs.clone(), &[&x]).unwrap();
        assert_eq!(y, text(&[1, 2], &["STRASSE", "ÉTÉ"]));
        let y = one(
            "StringNormalizer",
            attrs.with("is_case_sensitive", Attr::Int(1)),
            &[&x],
        );
        assert_eq!(y.unwrap(), text(&[1, 3], &["STRASSE", "MON", "ÉTÉ"]));
        let only = Attrs::default().with("stopwords", stop);
        let y = one("StringNormalizer", only, &[&text(&[1], &["mon"])]);
        assert_eq!(y.unwrap(), text(&[1], &[""]));
        let two_rows = text(&[2, 1], &["a", "b"]);
        assert!(one("StringNormalizer", Attrs::default(), &[&two_rows]).is_err());
        assert!(one("StringNormalizer", named("locale", "tr_TR"), &[&x]).is_err());
    }

    #[test]
    fn strings_are_put_together() {
        let y = one(
            "StringConcat",
            Attrs::default(),
            &[&text(&[2, 1], &["a", "é"]), &text(&[2], &["x", ""])],
        );
        assert_eq!(y.unwrap(), text(&[2, 2], &["ax", "a", "éx", "é"]));
    }
}
