//! Ops on eager tensors: results as ndarray's, dtypes as numpy's, errors at the line of the call.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

use convoke::{
    Cluster, Code, DType, Device, DeviceId, Element, Embedded, Index, Result, Tensor, display,
    options, with_device,
};
use ndarray::{Array2, ArrayD, Axis, array, s};

/// The device of the workers: `eager_devices.rs` runs the same tests on one with memory of its own.
fn device() -> DeviceId {
    let with_memory = module_path!().starts_with("eager_devices");
    ["cpu", "simgpu"][usize::from(with_memory)].parse().unwrap()
}

async fn cluster() -> (Cluster, Device, Device) {
    let embedded = Embedded::new(2).threads(1).devices([device()]);
    let cluster = embedded.start().await.unwrap();
    let (a, b) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    (cluster, a, b)
}

/// Checks dtype, shape and elements.
#[track_caller]
fn check<T: Element>(
    got: Result<Tensor>,
    want: impl Into<ArrayD<T>>,
) -> impl Future<Output = Tensor> {
    let (got, want) = (got.unwrap(), want.into());
    let at = std::panic::Location::caller();
    async move {
        assert_eq!(got.dtype(), T::DTYPE, "{at}");
        assert_eq!(got.fetch::<ArrayD<T>>().await.unwrap(), want, "{at}");
        got
    }
}

fn grid() -> Array2<f32> {
    Array2::from_shape_fn((3, 4), |(i, j)| (i * 4 + j) as f32 * 0.5 - 2.)
}

fn dim<T, D: ndarray::Dimension>(of: ndarray::Array<T, D>) -> ArrayD<T> {
    of.into_dyn()
}

#[tokio::test]
async fn methods_compute_what_ndarray_does() {
    let (cluster, a, b) = cluster().await;
    let (m, x) = (grid(), a.put(grid()).unwrap());
    let w = b.put(grid().t().to_owned()).unwrap();
    check(x.matmul(&w), dim(m.dot(&m.t()))).await;
    check(x.relu(), dim(m.mapv(|v| v.max(0.)))).await;
    check(x.mul(2.0), dim(&m * 2.)).await;
    check(x.sum(0), dim(m.sum_axis(Axis(0)))).await;
    check(x.sum(None), ndarray::arr0(m.sum()).into_dyn()).await;
    check(x.sum(vec![]), dim(m.clone())).await;
    check(x.mean(-1), dim(m.mean_axis(Axis(1)).unwrap())).await;
    check(x.max([0, 1]), ndarray::arr0(3.5f32).into_dyn()).await;
    check(x.min(1), dim(array![-2f32, 0., 2.])).await;
    check(x.argmax(1), dim(array![3i64, 3, 3])).await;
    check(x.argmin(None), ndarray::arr0(0i64).into_dyn()).await;
    check(x.t(), dim(m.t().to_owned())).await;
    check(x.transpose([1, 0]), dim(m.t().to_owned())).await;
    check(x.swap_axes(-1, 0), dim(m.t().to_owned())).await;
    check(
        x.reshape([2, -1]),
        m.to_shape((2, 6)).unwrap().to_owned().into_dyn(),
    )
    .await;
    check(x.clip(0.0, 1.0), dim(m.mapv(|v| v.clamp(0., 1.)))).await;
    check(x.clip(None, 1.0), dim(m.mapv(|v| v.min(1.)))).await;
    check(x.maximum(0.5), dim(m.mapv(|v| v.max(0.5)))).await;
    check(
        x.pad([0, 1, 0, 0], 9.0, None, None).unwrap().i((0, ..2)),
        dim(array![9f32, -2.]),
    )
    .await;
    let soft = x.softmax(-1).unwrap();
    let sums: Vec<f32> = soft.sum(-1).unwrap().fetch().await.unwrap();
    assert!(sums.iter().all(|s| (s - 1.).abs() < 1e-6), "{sums:?}");
    let default: ArrayD<f32> = x.softmax(None).unwrap().fetch().await.unwrap();
    assert_eq!(soft.fetch::<ArrayD<f32>>().await.unwrap(), default);
    cluster.shutdown().await;
}

#[tokio::test]
async fn ops_with_several_outputs_lists_and_options() {
    let (cluster, a, _) = cluster().await;
    let (m, x) = (grid(), a.put(grid()).unwrap());
    let (values, indices) = x.top_k(2, None, None).unwrap();
    check(
        Ok(values),
        dim(array![[-0.5f32, -1.], [1.5, 1.], [3.5, 3.]]),
    )
    .await;
    check(Ok(indices), dim(array![[3i64, 2], [3, 2], [3, 2]])).await;
    let parts = x.chunk(2, 1).unwrap();
    assert_eq!(parts.len(), 2);
    check(Ok(parts[1].clone()), dim(m.slice(s![.., 2..]).to_owned())).await;
    check(Tensor::concat(&[&parts[0], &parts[1]], 1), dim(m.clone())).await;
    let rows = ndarray::stack(Axis(0), &[m.view(), m.view()]).unwrap();
    check(Tensor::stack(&[&x, &x], 0), dim(rows)).await;
    check(Tensor::max_op(&[&x, &x]), dim(m.clone())).await;
    let with = options::Gemm {
        alpha: Some(2.),
        trans_b: Some(true),
        ..Default::default()
    };
    check(x.gemm(&x, None, with), dim(m.dot(&m.t()) * 2.)).await;
    let image = a.ones([1, 1, 4, 4], DType::F32).unwrap();
    let kernel = a.ones([1, 1, 2, 2], DType::F32).unwrap();
    let with = options::Conv {
        strides: vec![2, 2],
        ..Default::default()
    };
    let four = ArrayD::from_elem(vec![1, 1, 2, 2], 4f32);
    check(image.conv(&kernel, None, with), four).await;
    let picked = image.max_pool([2, 2], None).unwrap();
    assert_eq!(picked.shape(), Some(&[1, 1, 3, 3][..]));
    let (cond, y) = (x.greater(0.0).unwrap(), x.neg().unwrap());
    check(cond.where_(&x, &y), dim(m.mapv(f32::abs))).await;
    check(cond.where_(&x, 0.0), dim(m.mapv(|v| v.max(0.)))).await;
    let hot = a.put([2i64, 0]).unwrap().one_hot(3, DType::F32);
    check(hot, dim(array![[0f32, 0., 1.], [1., 0., 0.]])).await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn the_nearest_element_may_depend_on_the_scale() {
    let (cluster, a, _) = cluster().await;
    let x = a.put([1f32, 2., 3., 4.]).unwrap();
    let resized = |scale: f32| {
        let scales = a.put([scale]).unwrap();
        let with = options::Resize {
            coordinate_transformation_mode: Some("asymmetric".into()),
            nearest_mode: Some("by_scale".into()),
            ..options::Resize::default()
        };
        x.resize(None, &scales, None, with)
    };
    check(resized(0.6), dim(array![1f32, 3.])).await;
    check(resized(1.5), dim(array![1f32, 1., 2., 3., 3., 4.])).await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn signals_caches_and_bits() {
    let (cluster, a, b) = cluster().await;
    let x = a.put([1f32, 2., 3., 4.]).unwrap();
    check(x.cum_prod(0, None, None), dim(array![1f32, 2., 6., 24.])).await;
    let bits = array![0x3f80_0000i32, 0x4000_0000, 0x4040_0000, 0x4080_0000];
    check(x.bit_cast(DType::I32), dim(bits)).await;
    let column = x.reshape([4, 1]).unwrap();
    let spectrum = column.dft(None, None, None, None);
    let want = array![[10f32, 0.], [-2., 2.], [-2., 0.], [-2., -2.]];
    let spectrum = check(spectrum, dim(want)).await;
    let back = array![[1f32, 0.], [2., 0.], [3., 0.], [4., 0.]];
    check(spectrum.dft(None, None, true, None), dim(back)).await;
    let blocks = x.reshape([1, 4, 1]).unwrap();
    let image = array![[[[1f32, 2.], [3., 4.]]]];
    check(blocks.col2im([2i64, 2], [2i64, 2], None), dim(image)).await;
    let (update, place) = (b.put([7f32, 8.]).unwrap(), b.put([3i64]).unwrap());
    let update = update.reshape([1, 2, 1]).unwrap();
    let written = blocks.tensor_scatter(&update, Some(&place), None, "circular");
    check(written, dim(array![[[8f32], [2.], [3.], [7.]]])).await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn sizes_may_be_decided_by_data() {
    let (cluster, a, b) = cluster().await;
    let (m, x) = (grid(), a.put(grid()).unwrap());
    let to = b.put([2i64, 6]).unwrap();
    let wide = m.to_shape((2, 6)).unwrap().to_owned();
    check(x.reshape(&to), dim(wide)).await;
    let late = x.greater(2.5).unwrap().nonzero().unwrap();
    assert_eq!(late.rank(), 2);
    check(late.i(1), dim(array![2i64, 3])).await;
    assert_eq!(late.preview().await.unwrap(), "[[2, 2],\n [2, 3]]");
    assert_eq!(late.shape(), Some(&[2, 2][..]));
    let n = a.put([3i64, 1, 3, 2, 1]).unwrap();
    let (y, first, place, times) = n.unique_with_indices(None, None).unwrap();
    check(y.mul(2), dim(array![2i64, 4, 6])).await;
    check(Ok(first), dim(array![1i64, 3, 0])).await;
    check(Ok(place), dim(array![2i64, 0, 2, 1, 0])).await;
    check(Ok(times), dim(array![2i64, 1, 2])).await;
    let boxes = a
        .put(array![[
            [0f32, 0., 1., 1.],
            [0., 0., 1., 0.9],
            [0., 2., 1., 3.]
        ]])
        .unwrap();
    let scores = b.put(array![[[0.5f32, 0.9, 0.7]]]).unwrap();
    let most = a.put([5i64]).unwrap();
    let overlap = a.put([0.5f32]).unwrap();
    let chosen = boxes.non_max_suppression(&scores, Some(&most), Some(&overlap), None, None);
    check(chosen, dim(array![[0i64, 0, 1], [0, 0, 2]])).await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn layers_run_over_sequences() {
    let (cluster, a, _) = cluster().await;
    let x = a.put(array![[[1f32]], [[-2.]], [[3.]]]).unwrap();
    let (w, r) = (
        a.put(array![[[1f32]]]).unwrap(),
        a.put(array![[[2f32]]]).unwrap(),
    );
    let with = options::RNN {
        activations: vec!["Relu".into()],
        ..Default::default()
    };
    let (y, last) = x.rnn(&w, &r, None, None, None, with).unwrap();
    // 1, then 2 - 2, then 0 + 3.
    check(Ok(y), dim(array![[[[1f32]]], [[[0.]]], [[[3.]]]])).await;
    check(Ok(last), dim(array![[[3f32]]])).await;
    check(
        a.put(array![[2f32, 1.], [4., 5.]]).unwrap().det(),
        ndarray::arr0(6f32).into_dyn(),
    )
    .await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn operators_issue_ops() {
    let (cluster, a, b) = cluster().await;
    let (m, x, y) = (grid(), a.put(grid()).unwrap(), b.put(grid()).unwrap());
    check(&x + &y, dim(&m + &m)).await;
    check(&x * 2.0, dim(&m * 2.)).await;
    check(1 - &x, dim(1. - &m)).await;
    check(-&x, dim(-&m)).await;
    let chain = || ((&x + &y)? * 2f32)? - (&x / 4)?;
    check(chain(), dim((&m + &m) * 2. - &m / 4.)).await;
    let n = a.put([7i32, -7]).unwrap();
    check(&n / 2, dim(array![3i32, -3])).await;
    check(&n % 4, dim(array![3i32, -3])).await;
    check(n.mod_(4, None), dim(array![3i32, 1])).await;
    check(&n & 3, dim(array![3i32, 1])).await;
    check(!&n, dim(array![-8i32, 6])).await;
    let both = || n.greater(0)? & (!n.greater(10)?)?;
    let both: Vec<u8> = both().unwrap().fetch().await.unwrap();
    assert_eq!(both, [1, 0]);
    cluster.shutdown().await;
}

#[tokio::test]
async fn dtypes_are_brought_together_as_numpys_are() {
    let (cluster, a, b) = cluster().await;
    let (i, f) = (a.put([1i32, 2]).unwrap(), b.put([0.5f32, 0.25]).unwrap());
    check(i.add(&f), dim(array![1.5f64, 2.25])).await;
    check(&f + &i, dim(array![1.5f64, 2.25])).await;
    check(&i + 1, dim(array![2i32, 3])).await;
    check(&i * 0.5, dim(array![0.5f64, 1.])).await;
    check(&f * 2i64, dim(array![1f32, 0.5])).await;
    let small = a.put([1i8, 2]).unwrap();
    let wide = a.put([200u8, 1]).unwrap();
    check(small.add(&wide), dim(array![201i16, 3])).await;
    check(wide.sum(None), ndarray::arr0(201u64).into_dyn()).await;
    check(i.mean(None), ndarray::arr0(1.5f64).into_dyn()).await;
    let yes = i.equal(1).unwrap();
    check(&yes + 1, dim(array![2i64, 1])).await;
    check(
        Tensor::concat(&[&i, &f], 0),
        dim(array![1f64, 2., 0.5, 0.25]),
    )
    .await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn indices_take_parts() {
    let (cluster, a, _) = cluster().await;
    let m = ArrayD::from_shape_fn(vec![2, 3, 6], |at| {
        (at[0] * 100 + at[1] * 10 + at[2]) as i64
    });
    let x = a.put(m.clone()).unwrap();
    check(x.i((1, .., 2..5)), dim(m.slice(s![1, .., 2..5]).to_owned())).await;
    check(x.i(-1), dim(m.slice(s![-1, .., ..]).to_owned())).await;
    check(
        x.i((.., 1..=1, ..-4)),
        dim(m.slice(s![.., 1..2, ..-4]).to_owned()),
    )
    .await;
    check(
        x.i((Index::Ellipsis, 5)),
        dim(m.slice(s![.., .., 5]).to_owned()),
    )
    .await;
    check(x.i((0, 0, Index::between(1, -2))), dim(array![1i64, 2, 3])).await;
    let backwards = Index::from(..).step(-2);
    check(x.i((0, 0, backwards)), dim(array![5i64, 3, 1])).await;
    let new = x.i((0, Index::NewAxis, 1, Index::Ellipsis, Index::NewAxis));
    assert_eq!(new.unwrap().shape(), Some(&[1, 6, 1][..]));
    let at = a.put(array![[2i64, 0]]).unwrap();
    let taken = m.select(Axis(1), &[2, 0]).index_axis_move(Axis(0), 1);
    let taken = taken.to_shape((1, 2, 6)).unwrap().to_owned();
    let got = x.i((1, &at, Index::Ellipsis, Index::NewAxis)).unwrap();
    assert_eq!(got.shape(), Some(&[1, 2, 6, 1][..]));
    check(got.squeeze(-1), dim(taken)).await;
    let mask = a.put([1i64, 0, 1]).unwrap().cast(DType::Bool).unwrap();
    check(x.i((0, &mask, 0)), dim(array![0i64, 20])).await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn devices_make_tensors() {
    let (cluster, a, b) = cluster().await;
    check(a.zeros([2, 1], DType::I64), dim(array![[0i64], [0]])).await;
    check(a.full([2], 2.5, DType::F32), dim(array![2.5f32, 2.5])).await;
    check(a.arange(3), dim(array![0i64, 1, 2])).await;
    check(a.range(0.0, 1.0, 0.5), dim(array![0f32, 0.5])).await;
    let eye = with_device(&a, || b.eye(2, DType::F64));
    assert_eq!(eye.as_ref().unwrap().device(), Some(b.clone()));
    check(eye, dim(array![[1f64, 0.], [0., 1.]])).await;
    let drawn = |d: &Device, seed: u64| d.random_normal([3, 5], DType::F32, seed).unwrap();
    let one: Vec<f32> = drawn(&a, 7).fetch().await.unwrap();
    assert_eq!(one, drawn(&b, 7).fetch::<Vec<f32>>().await.unwrap());
    assert_ne!(one, drawn(&a, 8).fetch::<Vec<f32>>().await.unwrap());
    let uniform = a.random_uniform([100], DType::F64, (7, 1)).unwrap();
    let uniform: Vec<f64> = uniform.fetch().await.unwrap();
    assert!(uniform.iter().all(|v| (0. ..1.).contains(v)));
    cluster.shutdown().await;
}

#[tokio::test]
async fn previews_show_what_display_shows() {
    let (cluster, a, b) = cluster().await;
    for shape in [&[][..], &[3], &[2, 9], &[10, 2, 20], &[0, 4]] {
        let x = a.random_normal(shape, DType::F32, 1).unwrap();
        let whole: convoke::HostTensor = x.fetch().await.unwrap();
        let shown = b.scope(x.preview()).await.unwrap();
        assert_eq!(shown, display(&whole).to_string());
    }
    let x = a.put(array![[1f32, 0.5], [-2., 0.25]]).unwrap();
    let text = "[[ 1.00,  0.50],\n [-2.00,  0.25]]";
    assert_eq!(x.preview().await.unwrap(), text);
    assert_eq!(format!("{x:?}"), format!("f32[2, 2] on w0/{}", device()));
    cluster.shutdown().await;
}

/// Checks that a call failed at once: its op, operands and line.
#[track_caller]
fn refused<T: std::fmt::Debug>(got: Result<T>, op: &str, operands: &[&str], says: &str) {
    let line = std::panic::Location::caller().line();
    let e = got.unwrap_err();
    let site = e.site.clone().unwrap();
    assert_eq!(site.op.as_deref(), Some(op), "{e}");
    assert_eq!(site.operands, operands, "{e}");
    // The call is an argument, which may be on a line below.
    let here = |line| site.origin == Some(format!("{}:{line}", file!()));
    assert!((line..line + 3).any(here), "{e} at {line}");
    assert!(e.message.contains(says), "{e}");
    assert!(matches!(e.code, Code::InvalidInput | Code::InvalidArgument));
}

#[tokio::test]
async fn what_is_wrong_is_said_at_the_line_of_the_call() {
    let (cluster, a, _) = cluster().await;
    let x = a.put(array![[1f32, 2.], [3., 4.]]).unwrap();
    let (n, r) = (a.put([1i32, 2, 3]).unwrap(), a.put([1f32, 2., 3.]).unwrap());
    let (both, both_x) = (&["f32[2, 2]", "f32[3]"], &["f32[2, 2]", "f32[2, 2]"]);
    refused(x.add(&r), "Add", both, "broadcast");
    refused(&x + &r, "Add", both, "broadcast");
    refused(x.clone() * &r, "Mul", both, "broadcast");
    refused(x.maximum(&r), "Max", both, "broadcast");
    refused(x.matmul(&r), "MatMul", both, "inner dimensions");
    refused(
        x.matmul(&n),
        "MatMul",
        &["f32[2, 2]", "i32[3]"],
        "differ in dtype",
    );
    // The cast that comes first is not an op of the caller's, so the error names the addition.
    refused(&x + &n, "Add", &["f64[2, 2]", "f64[3]"], "broadcast");
    refused(!&x, "BitwiseNot", &["f32[2, 2]"], "must be one of");
    let small = n.cast(DType::I8).unwrap();
    refused(
        small.add(1000),
        "Add",
        &["i8[3]"],
        "1000 is not a value of i8",
    );
    refused(
        1000 - &small,
        "Sub",
        &["i8[3]"],
        "1000 is not a value of i8",
    );
    refused(
        x.i((0, 2)),
        "Index",
        &["f32[2, 2]"],
        "index 2 is out of range for axis 1",
    );
    refused(x.i((.., &x)), "Gather", both_x, "operand 'indices' is f32");
    refused(
        x.sum(2),
        "ReduceSum",
        &["f32[2, 2]", "i64[1]"],
        "axis 2 is outside rank 2",
    );
    refused(
        r.mean([0, 0]),
        "ReduceMean",
        &["f32[3]", "i64[2]"],
        "named twice",
    );
    refused(x.swap_axes(0, 2), "Transpose", &["f32[2, 2]"], "perm");
    refused(
        x.reshape([3, -1]),
        "Reshape",
        &["f32[2, 2]", "i64[2]"],
        "cannot be reshaped",
    );
    refused(x.argmax(5), "ArgMax", &["f32[2, 2]"], "axis 5");
    refused(
        Tensor::stack(&[&x, &r], 0),
        "Concat",
        &["f32[1, 2, 2]", "f32[1, 3]"],
        "rank",
    );
    refused(
        x.one_hot(-1, DType::F32),
        "OneHot",
        &["f32[2, 2]", "i64[1]", "f32[2]"],
        "",
    );
    refused(
        a.full([2], 300, DType::U8),
        "ConstantOfShape",
        &[],
        "300 is not a value of u8",
    );
    refused(
        a.range(0, 5, 0),
        "Range",
        &["i64[1]", "i64[1]", "i64[1]"],
        "'delta' is zero",
    );
    refused(
        a.random_normal([2], DType::I32, 1),
        "PhiloxNormal",
        &["i64[1]", "i64[2]"],
        "must be a float",
    );
    refused(
        a.zeros([usize::MAX], DType::F32),
        "ConstantOfShape",
        &["i64[1]"],
        "",
    );
    cluster.shutdown().await;
}
