//! Tests of sparse constants.

use convoke_graph::DType;

use super::super::content::bytes;
use super::*;

fn indices(dims: &[i64], data: &[i64]) -> TensorProto {
    raw("", I64, dims, bytemuck::cast_slice(data).to_vec())
}

/// A sparse tensor of numbers with the name `w`.
fn sparse(values: &[f32], indices: Option<TensorProto>, dims: &[i64]) -> SparseTensorProto {
    SparseTensorProto {
        values: Some(floats("w", &[values.len() as i64], values)),
        indices,
        dims: dims.to_vec(),
    }
}

/// A model that computes `y = x + w` with a sparse `w`.
fn adds(w: SparseTensorProto, dims: &[&str]) -> ModelProto {
    let add = node("Add", "x w", "y", vec![]);
    let g = graph(vec![value("x", F32, dims)], vec![], vec![add], "y");
    let sparse_initializer = vec![w];
    model(
        17,
        GraphProto {
            sparse_initializer,
            ..g
        },
    )
}

/// The elements of `w`, as a worker loads them.
fn dense(m: &ModelProto) -> Vec<f32> {
    let s = Scratch::new();
    let i = import_in(&s, m).unwrap_or_else(|e| panic!("{}", Error::from(e)));
    bytemuck::pod_collect_to_vec(&bytes(&i, "w"))
}

#[test]
fn sparse_constants_become_dense() {
    let check = |w: SparseTensorProto, dims: &[&str], want: &[f32]| {
        assert_eq!(dense(&adds(w, dims)), want);
    };
    let positions = indices(&[2], &[1, 5]);
    check(
        sparse(&[3., 4.], Some(positions), &[2, 3]),
        &["2", "3"],
        &[0., 3., 0., 0., 0., 4.],
    );
    let rows = indices(&[2, 2], &[0, 1, 1, 2]);
    check(
        sparse(&[3., 4.], Some(rows), &[2, 3]),
        &["2", "3"],
        &[0., 3., 0., 0., 0., 4.],
    );
    let of_vector = indices(&[1, 1], &[2]);
    check(sparse(&[9.], Some(of_vector), &[3]), &["3"], &[0., 0., 9.]);
    check(sparse(&[], None, &[2]), &["2"], &[0., 0.]);
    check(
        sparse(&[], Some(indices(&[0], &[])), &[2]),
        &["2"],
        &[0., 0.],
    );
    check(
        sparse(&[], Some(indices(&[0, 2], &[])), &[0, 2]),
        &["0", "2"],
        &[],
    );
}

#[test]
fn large_sparse_constants_lie_in_the_sidecar() {
    let rows: Vec<i64> = (0..2000).map(|i| i * 150 + i % 7).collect();
    let values: Vec<f32> = (0..2000).map(|i| i as f32 + 1.).collect();
    let mut want = vec![0f32; 300_000];
    for (at, v) in rows.iter().zip(&values) {
        want[*at as usize] = *v;
    }
    let w = sparse(&values, Some(indices(&[2000], &rows)), &[300, 1000]);
    assert_eq!(dense(&adds(w, &["300", "1000"])), want);
}

#[test]
fn constant_nodes_and_bodies_have_sparse_values() {
    let value_of = |name: &str| SparseTensorProto {
        values: Some(raw(name, F16, &[1], vec![1, 2])),
        indices: Some(indices(&[1], &[1])),
        dims: vec![3],
    };
    let a = AttributeProto {
        sparse_tensor: Some(value_of("")),
        ..attr("sparse_value", AttributeType::SparseTensor)
    };
    let g = graph(
        vec![],
        vec![],
        vec![node("Constant", "", "w", vec![a])],
        "w",
    );
    let i = try_import(&model(17, g)).unwrap();
    assert_eq!(bytes(&i, "w"), [0, 0, 1, 2, 0, 0]);
    assert_eq!(i.function.ty(i.function.results[0].1).dtype, DType::F16);
}

#[test]
fn an_input_may_have_a_sparse_default() {
    let w = sparse(&[1.], Some(indices(&[1], &[0])), &[2]);
    let mut m = adds(w, &["2"]);
    let g = m.graph.as_mut().unwrap();
    g.input.push(value("w", F32, &["2"]));
    assert_eq!(dense(&m), [1., 0.]);
}

#[test]
fn wrong_indices_are_one_error() {
    let check = |values: &[f32], found: Option<TensorProto>, dims: &[i64], message: &str| {
        let wanted = format!("tensor 'w': {message}");
        fails(
            &adds(sparse(values, found, dims), &["2", "3"]),
            Code::InvalidModel,
            &wanted,
        );
    };
    let list = |data: &[i64]| Some(indices(&[data.len() as i64], data));
    let pairs = |data: &[i64]| Some(indices(&[data.len() as i64 / 2, 2], data));
    let two = &[1., 2.];
    check(
        two,
        list(&[5, 1]),
        &[2, 3],
        "has indices that do not ascend",
    );
    check(two, list(&[1, 1]), &[2, 3], "has two values at position 1");
    check(
        two,
        pairs(&[0, 1, 0, 1]),
        &[2, 3],
        "has two values at position 1",
    );
    check(
        two,
        list(&[0, 6]),
        &[2, 3],
        "has the index 6, outside of its 6 elements",
    );
    check(
        two,
        list(&[-1, 0]),
        &[2, 3],
        "has the index -1, outside of its 6 elements",
    );
    check(
        two,
        pairs(&[0, 0, 0, 3]),
        &[2, 3],
        "has the index [0, 3], outside of its shape [2, 3]",
    );
    let short = "has indices of shape [1] for 2 values of a tensor of rank 2";
    check(two, list(&[0]), &[2, 3], short);
    check(
        two,
        Some(indices(&[2, 1], &[0, 1])),
        &[2, 3],
        "has indices of shape [2, 1] for 2 values of a tensor of rank 2",
    );
    // Their form is checked before their content is looked for.
    let absent = |dims: &[i64]| {
        let file = external("", dims, &[("location", "absent")]);
        Some(TensorProto {
            data_type: Some(I64),
            ..file
        })
    };
    check(two, absent(&[1]), &[2, 3], short);
    check(
        two,
        absent(&[2]),
        &[1],
        "is sparse and has 2 values for 1 elements",
    );
    check(two, None, &[2, 3], "is sparse and has no indices");
    check(
        two,
        Some(floats("", &[2], &[0., 1.])),
        &[2, 3],
        "has indices of type f32",
    );
    check(
        two,
        list(&[0, 1]),
        &[2, -3],
        "dimension -3 is negative, in [2, -3]",
    );
}

#[test]
fn a_small_file_does_not_expand_without_a_bound() {
    // Each tensor is below the limit of an address space, and far above what its file may expand to.
    for dims in [&[1i64 << 20, 1 << 20][..], &[1 << 30]] {
        let w = sparse(&[1.], Some(indices(&[1], &[0])), dims);
        let e = try_import(&adds(w, &["2", "3"])).unwrap_err();
        let e = e.to_string();
        assert!(e.contains("bytes of expanded sparse tensors"), "{e}");
    }
    let w = sparse(&[1.], Some(indices(&[1], &[0])), &[1 << 40, 1 << 40, 0]);
    let e = try_import(&adds(w, &["2", "3"])).unwrap_err();
    assert!(e.to_string().contains("too large to allocate"), "{e}");
}
