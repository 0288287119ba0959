//! Tests of errors and of the advice on them.

use super::*;

#[test]
fn lists_are_cut_after_ten() {
    let names: Vec<String> = (0..10).map(|i| format!("w{i}")).collect();
    let e = ModelError::MissingWeights {
        names,
        count: 12,
        searched: false,
    };
    let e = Error::from(e);
    assert_eq!(e.code, Code::InvalidModel);
    assert_eq!(
        e.to_string(),
        "12 weights without data: w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, and 2 more\n  \
         give the file that has them with --weights FILE.safetensors"
    );
}

#[test]
fn the_place_of_an_error_is_its_first_node() {
    let check = |e: ModelError, text: &str| {
        let e = Error::from(e);
        let site = e.site.as_deref().cloned().unwrap_or_default();
        assert_eq!(
            (site.node.as_deref(), site.op.as_deref()),
            (Some("a"), Some("Add"))
        );
        assert!(e.to_string().starts_with(text), "{e}");
    };
    let (node, op, reason) = ("a".to_owned(), "Add".to_owned(), "no".to_owned());
    let wrong = ModelError::Node { node, op, reason };
    check(wrong, "node 'a' (Add): no\n");
    let nodes = ["a", "b"].map(|node| UnsupportedNode {
        node: node.into(),
        op: "Add".into(),
        opset: None,
        dtype: None,
        reason: None,
    });
    let nodes = nodes.to_vec();
    let unsupported = ModelError::Unsupported { nodes };
    check(
        unsupported,
        "the model needs operations that are not supported: Add (2 nodes: a, b)\n",
    );
}

#[test]
fn advice_follows_the_reason() {
    let node = UnsupportedNode {
        node: "a".into(),
        op: "Reshape".into(),
        opset: Some(21),
        dtype: Some(DType::F32),
        reason: Some(UNKNOWN_RANK.into()),
    };
    let nodes = vec![node];
    assert_eq!(unsupported_ops(&nodes)[0].dtypes, [DType::F32]);
    let e = ModelError::Unsupported { nodes };
    assert_eq!(e.advice(), DECLARE_RANK);
}

#[test]
fn advice_on_ranks_is_of_what_decides_them() {
    let check = |reason: &str, advice: &str| {
        assert_eq!(advice_on("If", Some(reason)), advice);
    };
    check(COMPUTED_RANK, DECLARE_ONE);
    check(BRANCHES_DIFFER, KEEP_RANK);
    check(&format!("'y' is a: {RANK_OF_DATA}"), KEEP_RANK);
    check(&format!("'y' is a: {RANK_OF_SIZES}"), GIVE_SIZES);
    check("control flow", WITHOUT_THEM);
    check(&format!("{OF_PATTERNS} is long"), AS_RE2);
    assert!(fewer("levels of functions").contains("inline"));
}

#[test]
fn the_list_of_unsupported_ops_is_bounded() {
    let nodes = |ops: usize| {
        let node = |i: usize| UnsupportedNode {
            node: format!("{i}{}", "n".repeat(300)),
            op: format!("{i}{}", "o".repeat(300)),
            opset: None,
            dtype: None,
            reason: Some("r".repeat(300)),
        };
        // The last op has another node.
        let all = (0..ops).chain([ops - 1]).map(node);
        ModelError::Unsupported {
            nodes: all.collect(),
        }
    };
    let text = nodes(62).to_string();
    assert!(text.len() < 8000, "{} bytes", text.len());
    assert!(
        text.ends_with("; and 46 further operators, 47 nodes"),
        "{text}"
    );
    let text = nodes(LISTED_OPS + 1).to_string();
    assert!(
        text.ends_with("; and 1 further operator, 2 nodes"),
        "{text}"
    );
    assert!(!nodes(LISTED_OPS).to_string().contains("further"));
}

#[test]
fn unsupported_nodes_are_counted_by_op() {
    let node = |op: &str, node: &str, reason: Option<&str>| UnsupportedNode {
        node: node.into(),
        op: op.into(),
        opset: Some(17),
        dtype: None,
        reason: reason.map(Into::into),
    };
    let nodes = vec![
        node("Loop", "a", None),
        node("If", "b", Some("the condition varies")),
        node("Loop", "c", None),
        node("Loop", "d", None),
        node("Loop", "e", None),
        node("Loop", "f", None),
    ];
    assert_eq!(
        ModelError::Unsupported { nodes }.to_string(),
        "the model needs operations that are not supported: Loop of opset 17 (5 nodes: a, c, d and 2 more); \
         If of opset 17 (node: b, the condition varies)"
    );
}
