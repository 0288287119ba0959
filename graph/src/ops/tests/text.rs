//! Tests of ops on strings and of classical models.

use super::*;

#[test]
fn strings() {
    let grams = |columns: i64| {
        vec![
            ("columns", int(columns)),
            ("ngram_counts", ints(&[0, 4])),
            ("max_gram_length", int(2)),
        ]
    };
    let tokens = |least: i64, by: (&'static str, Attr)| {
        vec![
            ("mark", int(1)),
            ("mincharnum", int(least)),
            ("pad_value", text("")),
            by,
        ]
    };
    let words = || ("tokenexp", text("[a-z]+"));
    let separators = |all: &[&str]| {
        (
            "separators",
            Attr::Strs(all.iter().map(|s| (*s).into()).collect()),
        )
    };
    for (op, attrs, inputs, want) in [
        (
            "Tokenizer",
            tokens(2, words()),
            "string[n, c]",
            "string[n, c, new02]",
        ),
        (
            "Tokenizer",
            tokens(1, separators(&[""])),
            "string[c]",
            "string[c, new01]",
        ),
        (
            "StringConcat",
            vec![],
            "string[n, 1]; string[3]",
            "string[n, 3]",
        ),
        (
            "StringSplit",
            vec![],
            "string[n, 2]",
            "string[n, 2, new02]; i64[n, 2]",
        ),
        (
            "RegexFullMatch",
            vec![("pattern", text("a+"))],
            "string[]",
            "bool[]",
        ),
        ("StringNormalizer", vec![], "string[c]", "string[new00]"),
        (
            "StringNormalizer",
            vec![],
            "string[1, c]",
            "string[1, new01]",
        ),
        (
            "TfIdfVectorizer",
            grams(7),
            "string[n, c]; string[p]; i64[g]; f32[g]",
            "f32[n, 7]",
        ),
        (
            "TfIdfVectorizer",
            grams(7),
            "i32[c]; i64[p]; i64[g]",
            "f32[7]",
        ),
        ("Transpose", vec![], "string[a, b]", "string[b, a]"),
        (
            "Concat",
            vec![("axis", int(0))],
            "string[2]; string[n]",
            "string[n+2]",
        ),
        ("Equal", vec![], "string[n, 1]; string[2]", "bool[n, 2]"),
        (
            "Cast",
            vec![("to", Attr::DType(Str))],
            "f32[n]",
            "string[n]",
        ),
        ("Cast", vec![("to", Attr::DType(I4))], "string[n]", "i4[n]"),
    ] {
        check(op, &attrs, inputs, want);
    }
    for (op, attrs, inputs) in [
        ("Tokenizer", tokens(1, words()), "string[]"),
        ("Tokenizer", tokens(1, words()), "string[1, 2, 3]"),
        ("Tokenizer", tokens(0, words()), "string[c]"),
        ("Tokenizer", tokens(2, separators(&[""])), "string[c]"),
        ("Tokenizer", tokens(1, separators(&[])), "string[c]"),
        ("Tokenizer", tokens(1, separators(&["a"; 33])), "string[c]"),
        (
            "Tokenizer",
            tokens(1, separators(&["a", &"b".repeat(5000)])),
            "string[c]",
        ),
        ("Tokenizer", tokens(1, ("tokenexp", text(""))), "string[c]"),
        ("StringConcat", vec![], "string[2]; string[3]"),
        ("StringConcat", vec![], "string[2]; f32[2]"),
        (
            "RegexFullMatch",
            vec![("pattern", text(&"a".repeat(5000)))],
            "string[n]",
        ),
        ("StringNormalizer", vec![], "string[2, c]"),
        (
            "StringNormalizer",
            vec![("case_change_action", text("TITLE"))],
            "string[c]",
        ),
        ("TfIdfVectorizer", grams(0), "i64[c]; i64[p]; i64[g]"),
        ("TfIdfVectorizer", grams(i64::MAX), "i64[c]; i64[p]; i64[g]"),
        ("TfIdfVectorizer", grams(7), "string[c]; i64[p]; i64[g]"),
        (
            "TfIdfVectorizer",
            grams(7),
            "i64[c]; i64[p]; i64[3]; f32[2]",
        ),
        ("TfIdfVectorizer", grams(7), "i64[1, 2, c]; i64[p]; i64[g]"),
        ("Add", vec![], "string[2]; string[2]"),
        ("BitCast", vec![("to", Attr::DType(Str))], "i64[n]"),
        ("BitCast", vec![("to", Attr::DType(I64))], "string[n]"),
        ("EyeLike", vec![("dtype", Attr::DType(Str))], "f32[2, 2]"),
    ] {
        check_err(op, &attrs, inputs);
    }
}

#[test]
fn classical_models() {
    let trees = "i64[m]; u8[m]; f64[m]; i64[m, 2]; i64[t]; i64[l]; i64[w]; f64[w]";
    let targets = |n: i64| vec![("n_targets", int(n))];
    for (op, attrs, inputs, want) in [
        (
            "LabelEncoder",
            vec![],
            "string[n, 2]; string[k]; i64[k]; i64[]",
            "i64[n, 2]",
        ),
        (
            "LabelEncoder",
            vec![],
            "f32[]; f32[k]; string[k]; string[]",
            "string[]",
        ),
        ("OneHotEncoder", vec![], "i64[n, 2]; i64[k]", "f32[n, 2, k]"),
        (
            "TreeEnsemble",
            targets(3),
            &format!("f64[n, f]; {trees}"),
            "f64[n, 3]; bool[n, 3]",
        ),
    ] {
        check(op, &attrs, inputs, want);
    }
    for (op, attrs, inputs) in [
        ("LabelEncoder", vec![], "string[n]; i64[k]; i64[k]; i64[]"),
        ("LabelEncoder", vec![], "i64[n]; i64[2]; i64[3]; i64[]"),
        ("LabelEncoder", vec![], "i64[n]; i64[k]; i64[k]; i64[2]"),
        ("LabelEncoder", vec![], "i64[n]; i64[k]; i64[k]; string[]"),
        ("OneHotEncoder", vec![], "i64[n]; string[k]"),
        ("OneHotEncoder", vec![], "i64[n]; i64[k, 1]"),
        ("TreeEnsemble", targets(0), &format!("f64[n, f]; {trees}")),
        (
            "TreeEnsemble",
            targets(i64::MAX),
            &format!("f64[n, f]; {trees}"),
        ),
        ("TreeEnsemble", targets(1), &format!("f64[f]; {trees}")),
        ("TreeEnsemble", targets(1), &format!("f32[n, f]; {trees}")),
        (
            "TreeEnsemble",
            targets(1),
            &format!("f64[n, f]; {}", trees.replace("i64[m, 2]", "i64[m, 3]")),
        ),
    ] {
        check_err(op, &attrs, inputs);
    }
}
