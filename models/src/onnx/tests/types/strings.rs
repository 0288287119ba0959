//! Tests of strings: constants, inputs, and malformed ones.

use convoke_graph::DType;

use super::*;

const STRING: i32 = 8;

fn words(name: &str, dims: &[i64], words: &[&[u8]]) -> TensorProto {
    TensorProto {
        string_data: words.iter().map(|w| w.to_vec()).collect(),
        raw_data: None,
        ..raw(name, STRING, dims, vec![])
    }
}

fn concat(t: TensorProto) -> ModelProto {
    let n = node("StringConcat", "x w", "y", vec![]);
    let x = value("x", STRING, &["n"]);
    model(20, graph(vec![x], vec![t], vec![n], "y"))
}

#[test]
fn initializers_hold_strings() {
    let f = import(&concat(words("w", &[2], &[b"a", "é".as_bytes()])));
    assert_eq!(f.ty(f.results[0].1).to_string(), "string[2]");
    let w = f.nodes[0].inputs[1].and_then(|id| f.inline(id)).unwrap();
    assert_eq!(w.to_strings().unwrap(), ["a", "é"]);
    // Many strings lie in an artifact, as many numbers do.
    let long = b"x".repeat(100);
    let many: Vec<&[u8]> = (0..100).map(|_| &long[..]).collect();
    let s = Scratch::new();
    let i = import_in(&s, &concat(words("w", &[100], &many))).unwrap();
    let of = literal(&i.function, "w");
    assert!(matches!(of, Literal::Range { len: 10_800, .. }), "{of:?}");
}

#[test]
fn constants_are_strings() {
    let check = |a: AttributeProto, shape: &[usize], want: &[&str]| {
        let n = node("Constant", "", "y", vec![a]);
        let f = import(&model(13, graph(vec![], vec![], vec![n], "y")));
        let t = f.inline(f.results[0].1).unwrap();
        assert_eq!((t.dtype(), t.shape()), (DType::Str, shape));
        assert_eq!(t.to_strings().unwrap(), want);
    };
    check(text("value_string", "a b"), &[], &["a b"]);
    let all = AttributeProto {
        strings: vec![b"a".to_vec(), b"".to_vec()],
        ..attr("value_strings", AttributeType::Strings)
    };
    check(all, &[2], &["a", ""]);
    check(tensor_attr("value", words("", &[1], &[b"t"])), &[1], &["t"]);
}

#[test]
fn what_is_no_string_is_refused() {
    let check = |t: TensorProto, why: &str| {
        let message = format!("tensor 'w': {why}");
        let e = try_import(&concat(t)).expect_err(&message);
        assert!(e.to_string().contains(why), "{e}");
    };
    check(words("w", &[1], &[&[0xff]]), "is not UTF-8");
    check(words("w", &[2], &[b"a"]), "needs 16 bytes");
    check(words("w", &[-1], &[]), "dimension -1 is negative");
    check(
        raw("w", STRING, &[1], b"a".to_vec()),
        "stored as another type",
    );
    let numbers = TensorProto {
        int32_data: vec![1],
        ..words("w", &[1], &[])
    };
    check(numbers, "stored as another type");
    let elsewhere = TensorProto {
        data_location: Some(1),
        ..words("w", &[1], &[b"a"])
    };
    check(elsewhere, "stored as another type");
}

#[test]
fn a_locale_with_other_cases_is_refused() {
    let n = node("StringNormalizer", "x", "y", vec![text("locale", "tr_TR")]);
    let m = model(
        10,
        graph(vec![value("x", STRING, &["n"])], vec![], vec![n], "y"),
    );
    assert!(try_import(&m).unwrap_err().to_string().contains("'tr_TR'"));
}

#[test]
fn grams_become_operands() {
    let n = node(
        "TfIdfVectorizer",
        "x",
        "y",
        vec![
            text("mode", "TF"),
            int("min_gram_length", 1),
            int("max_gram_length", 2),
            int("max_skip_count", 0),
            ints("ngram_counts", &[0, 2]),
            ints("ngram_indexes", &[2, 0, 1]),
            ints("pool_int64s", &[5, 6, 5, 6]),
        ],
    );
    let x = value("x", I64, &["b", "c"]);
    let f = import(&model(9, graph(vec![x], vec![], vec![n], "y")));
    assert_eq!(lines(&f), ["TfIdfVectorizer(x, [5, 6, 5, 6], [2, 0, 1])"]);
    assert_eq!(f.ty(f.results[0].1).to_string(), "f32[b, 3]");
}
