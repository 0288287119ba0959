//! Tests of gates and of hyper-connections.

use super::*;

#[test]
fn streams_may_be_flattened() {
    let m = |op: &str, x: &[&str], branches: i64, more: Vec<TensorProto>| {
        let names: Vec<String> = more.iter().map(|t| t.name().to_string()).collect();
        let operands = ["x".to_string()]
            .into_iter()
            .chain(names)
            .collect::<Vec<_>>();
        let n = node(
            op,
            &operands.join(" "),
            "y",
            vec![int("num_branches", branches)],
        );
        of(MICROSOFT, x, more, vec![n])
    };
    let ty = |m: &ModelProto| {
        let f = import(m);
        f.ty(f.results[0].1).to_string()
    };
    for (x, branches) in [(&["b", "3", "8"][..], 2), (&["b", "3", "2", "4"], 0)] {
        let same = format!("f32[{}]", x.join(", "));
        for scale in [&[8][..], &[2, 4], &[4]] {
            let m = m("BranchwiseRMSNorm", x, branches, vec![zeros("w", scale)]);
            assert_eq!(ty(&m), same);
        }
        let gates = || zeros("g", &[1, 3, 2]);
        let mixed = m("HyperConnectionPreMix", x, branches, vec![gates()]);
        assert_eq!(ty(&mixed), "f32[b, 3, 4]");
        let block = zeros("block", &[1, 3, 4]);
        let matrix = zeros("matrix", &[1, 3, 2, 2]);
        let added = m(
            "HyperConnectionPostMix",
            x,
            branches,
            vec![block, gates(), matrix],
        );
        assert_eq!(ty(&added), same);
    }
    let narrow = m("BranchwiseRMSNorm", &["3", "8"], 3, vec![]);
    refused(&narrow, "8 columns do not divide into 3 streams");
    let flat = m("HyperConnectionPreMix", &["8"], 0, vec![zeros("g", &[2])]);
    refused(&flat, "too few axes");
    let negative = m("HyperConnectionPreMix", &["8"], -2, vec![zeros("g", &[2])]);
    refused(&negative, "'num_branches'");
    let gate = m(
        "HyperConnectionPreMix",
        &["3", "2", "4"],
        0,
        vec![zeros("g", &[2])],
    );
    refused(&gate, "the axes of the streams");
}

#[test]
fn sections_of_a_rotation_fill_its_cache() {
    let m = |sections: &[i64], places: &[&str]| {
        let attrs = vec![ints("mrope_section", sections), int("num_heads", 2)];
        let n = NodeProto {
            domain: Some(MICROSOFT.into()),
            ..node("MRotaryEmbedding", "x p c c", "y", attrs)
        };
        let inputs = vec![value("x", F32, &["b", "3", "24"]), value("p", I64, places)];
        model(17, graph(inputs, vec![zeros("c", &[9, 6])], vec![n], "y"))
    };
    let f = import(&m(&[1, 2, 3], &["3", "b", "3"]));
    assert_eq!(f.ty(f.results[0].1).to_string(), "f32[b, 3, 24]");
    refused(&m(&[1, 2, 4], &["3", "b", "3"]), "'mrope_section'");
    refused(&m(&[6, -1, 1], &["3", "b", "3"]), "'mrope_section'");
    for places in [&["b", "3"][..], &["4", "b", "3"]] {
        refused(
            &m(&[1, 2, 3], places),
            "position_ids must be of shape [3, batch, tokens]",
        );
    }
}

#[test]
fn windows_of_an_axis_become_the_last_axis() {
    let sized = |dim: i64, step: i64, size: i64| {
        let attrs = vec![int("dim", dim), int("size", size), int("step", step)];
        let n = node("UnfoldTensor", "x", "y", attrs);
        of(MICROSOFT, &["8", "5"], vec![], vec![n])
    };
    let m = |dim: i64, step: i64| sized(dim, step, 3);
    for (dim, want) in [(0, "f32[3, 5, 3]"), (-1, "f32[8, 2, 3]")] {
        let f = import(&m(dim, 2));
        assert_eq!(f.ty(f.results[0].1).to_string(), want);
    }
    refused(&m(2, 1), "'dim'");
    refused(&m(0, 0), "'step'");
    refused(&sized(1, 1, 6), "do not fit axis 1");
}
