//! Integers of every width, axes of no elements and parts of axes: as numpy and torch have them.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use convoke::{Cluster, DType, Device, Embedded, HostTensor, Result, Tensor, with_device};

async fn cluster() -> (Cluster, Device) {
    let cluster = Embedded::new(1).threads(1).start().await.unwrap();
    let device = cluster.device("w0").unwrap();
    (cluster, device)
}

/// The counterparts of numpy's operations on `a`, `b`, `at` and `exponents`, by their names in fixtures/integers.npz.
fn operations([a, b, at, exponents]: [&Tensor; 4]) -> Vec<(&'static str, Result<Tensor>)> {
    let bt = b.t().unwrap();
    let square = b.i((.., ..3)).unwrap();
    vec![
        ("add", a + b),
        ("sub", a - b),
        ("mul", a * b),
        ("div", a / b),
        ("mod", a.mod_(b, None)),
        ("fmod", a % b),
        ("pow", a.pow(exponents)),
        ("prelu", a.prelu(b)),
        ("neg", -a),
        ("abs", a.abs()),
        ("sign", a.sign()),
        ("relu", a.relu()),
        ("clip", a.clip(3, 100)),
        ("maximum", a.maximum(b)),
        ("minimum", a.minimum(b)),
        ("less", a.less(b)),
        ("greater_equal", a.greater_or_equal(b)),
        ("equal", a.equal(b)),
        ("where", a.less(b).and_then(|c| c.where_(a, b))),
        ("sum", a.sum(0)),
        ("prod", a.prod(1)),
        ("mean", a.mean(None)),
        ("max", a.max(0)),
        ("min", a.min(1)),
        ("argmax", a.argmax(1)),
        ("argmin", a.argmin(None)),
        ("cumsum", a.cumsum(1)),
        ("reduce_sum", a.reduce_sum(1, false, None)),
        ("reduce_prod", a.reduce_prod(0, false, None)),
        ("reduce_l1", a.reduce_l1(1, false, None)),
        ("reduce_sum_square", a.reduce_sum_square(0, false, None)),
        ("cum_sum", a.cum_sum(0, None, None)),
        ("sum_op", Tensor::sum_op(&[a, b, a])),
        ("matmul", a.matmul(&bt)),
        ("gemm", a.gemm(&bt, Some(&square), None)),
        ("top_k", a.top_k(2, None, None).map(|(values, _)| values)),
        ("index", a.i(at)),
        ("cast_i16", a.cast(DType::I16)),
        ("cast_u32", a.cast(DType::U32)),
    ]
}

const INTEGERS: [(&str, DType); 8] = [
    ("int8", DType::I8),
    ("int16", DType::I16),
    ("int32", DType::I32),
    ("int64", DType::I64),
    ("uint8", DType::U8),
    ("uint16", DType::U16),
    ("uint32", DType::U32),
    ("uint64", DType::U64),
];

#[tokio::test]
async fn integers_of_every_width_compute_as_numpys() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/integers.npz");
    let arrays = convoke::numpy::read_npz(path).unwrap();
    let arrays: HashMap<String, HostTensor> = arrays.into_iter().collect();
    let (cluster, w) = cluster().await;
    let mut wrong = Vec::new();
    for (name, dtype) in INTEGERS {
        let array = |of: &str| &arrays[&format!("{name}/{of}")];
        let given = ["a", "b", "at", "exponents"].map(|of| w.put(array(of)).unwrap());
        assert_eq!(given[0].dtype(), dtype);
        let mut made = operations(given.each_ref());
        let one = |v: i64| {
            let one = HostTensor::scalar(v);
            with_device(&w, || w.put(one)?.cast(dtype))
        };
        let [start, limit, delta] = [1, 100, 33].map(|v| one(v).unwrap());
        made.push(("range", w.range(&start, &limit, &delta)));
        for (operation, made) in made {
            let want = array(operation);
            match made {
                Err(e) => wrong.push(format!("{name}/{operation}: {e}")),
                Ok(made) => {
                    let got: HostTensor = made.fetch().await.unwrap();
                    if got != *want {
                        wrong.push(format!("{name}/{operation}: {got:?}, not {want:?}"));
                    }
                }
            }
        }
        // The same operations run in one function.
        let f = cluster.function(|t| {
            let made = operations([&t[0], &t[1], &t[2], &t[3]]);
            made.into_iter().map(|(_, made)| made).collect()
        });
        match f.call(&given).await {
            Err(e) => wrong.push(format!("{name}: {e}")),
            Ok(called) => {
                let names = operations(given.each_ref())
                    .into_iter()
                    .map(|(name, _)| name);
                for (operation, t) in names.zip(&called) {
                    let got: HostTensor = t.fetch().await.unwrap();
                    if got != *array(operation) {
                        wrong.push(format!("{name}/{operation} in a function: {got:?}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    cluster.shutdown().await;
}

/// Checks the message of an op that is refused, and that the error names the op and its line.
#[track_caller]
fn refused(got: Result<impl std::fmt::Debug>, op: &str, says: &str) {
    let line = std::panic::Location::caller().line();
    let e = got.unwrap_err();
    let site = e.site.clone().unwrap();
    assert_eq!(site.op.as_deref(), Some(op), "{e}");
    let here = |line| site.origin == Some(format!("{}:{line}", file!()));
    assert!((line..line + 3).any(here), "{e} at {line}");
    assert!(e.to_string().contains(says), "{e}");
}

/// The dtypes that ops compute with.
fn plain() -> impl Iterator<Item = DType> {
    let plain = |d: &DType| !d.is_narrow() && *d != DType::Str;
    DType::ALL.into_iter().filter(plain)
}

#[tokio::test]
async fn what_has_no_value_of_no_elements_is_refused() {
    let (cluster, w) = cluster().await;
    for dtype in plain() {
        let x = w.zeros([0, 3], dtype).unwrap();
        refused(
            x.max(0),
            "ReduceMax",
            "axis 0 is empty: no elements have no maximum",
        );
        refused(
            x.min([1, 0]),
            "ReduceMin",
            "axis 0 is empty: no elements have no minimum",
        );
        refused(x.max(None), "ReduceMax", "axis 0 is empty");
        for made in [x.max(1), x.min(-1)] {
            assert_eq!(made.unwrap().shape(), Some(&[0][..]));
        }
        assert_eq!(x.max(vec![]).unwrap().shape(), Some(&[0, 3][..]));
        if dtype != DType::Bool {
            refused(x.argmax(0), "ArgMax", "axis 0 is empty");
            refused(x.argmin(None), "ArgMin", "axis 0 is empty");
        }
        if dtype.is_int() && dtype.width() > 2 {
            let says = "axis 0 is empty: the mean of no elements is no integer";
            refused(x.reduce_mean(0, None, None), "ReduceMean", says);
        }
    }
    // ONNX's own ops have a value for an empty axis.
    let x = w.zeros([0, 2], DType::F32).unwrap();
    let least: Vec<f32> = x.reduce_max(0, None, None).unwrap().fetch().await.unwrap();
    assert_eq!(least, [f32::NEG_INFINITY; 2]);
    let x = w.zeros([2, 0], DType::I16).unwrap();
    let (least, greatest) = (x.reduce_max(1, None, None), x.reduce_min(1, None, None));
    assert_eq!(
        least.unwrap().fetch::<Vec<i16>>().await.unwrap(),
        [i16::MIN; 2]
    );
    assert_eq!(
        greatest.unwrap().fetch::<Vec<i16>>().await.unwrap(),
        [i16::MAX; 2]
    );
    let x = w.zeros([2, 0], DType::Bool).unwrap();
    let (least, greatest) = (x.reduce_max(1, None, None), x.reduce_min(1, None, None));
    assert_eq!(least.unwrap().fetch::<Vec<u8>>().await.unwrap(), [0; 2]);
    assert_eq!(greatest.unwrap().fetch::<Vec<u8>>().await.unwrap(), [1; 2]);
    cluster.shutdown().await;
}

#[tokio::test]
async fn sums_products_and_means_of_no_elements_are_numpys() {
    let (cluster, w) = cluster().await;
    for dtype in plain().filter(|d| *d != DType::Bool) {
        let x = w.zeros([0, 2], dtype).unwrap();
        let f64s = async |t: Result<Tensor>| -> Vec<f64> {
            let t = t.unwrap().cast(DType::F64).unwrap();
            t.fetch().await.unwrap()
        };
        assert_eq!(f64s(x.sum(0)).await, [0.; 2], "{dtype}");
        assert_eq!(f64s(x.prod(0)).await, [1.; 2], "{dtype}");
        let mean = x.mean(0).unwrap();
        assert!(mean.dtype().is_float());
        assert!(f64s(Ok(mean)).await.iter().all(|v| v.is_nan()), "{dtype}");
        assert_eq!(x.cumsum(0).unwrap().shape(), Some(&[0, 2][..]));
        assert!(f64s(x.cumsum(1)).await.is_empty());
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn an_axis_that_turns_out_empty_is_refused_when_it_does() {
    let cluster = Embedded::new(2).threads(1).start().await.unwrap();
    let (w, far) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    let x = w.put(vec![1f32, 2., 3.]).unwrap();
    // Only data decides how many elements there are, and the data is not here yet.
    let above = |bound: f32| {
        let bound = far.put(vec![bound; 3]).unwrap();
        let late = with_device(&w, || x.i(&x.greater(&bound)?)).unwrap();
        assert_eq!(late.shape(), None);
        late
    };
    let most: f32 = above(1.5).max(0).unwrap().fetch().await.unwrap();
    assert_eq!(most, 3.);
    let (none, line) = (above(5.).max(0).unwrap(), line!());
    let e = none.fetch::<f32>().await.unwrap_err().to_string();
    assert!(e.contains("axis 0 is empty"), "{e}");
    assert!(e.contains("op ReduceMax(f32[0], i64[1])"), "{e}");
    assert!(e.contains(&format!("{}:{line}", file!())), "{e}");
    let (f, line) = (cluster.function(|t| Ok(vec![t[0].max(0)?])), line!());
    let f = f.dynamic(0, 0, "n").unwrap();
    let e = f
        .call(&[w.zeros([0], DType::F32).unwrap()])
        .await
        .unwrap_err();
    assert!(e.to_string().contains("axis 0 is empty"), "{e}");
    let at = format!("{}:{line}", file!());
    assert!(e.to_string().contains(&at), "{e}");
    assert_eq!(
        f.call(&[x]).await.unwrap()[0].fetch::<f32>().await.unwrap(),
        3.
    );
    cluster.shutdown().await;
}

#[tokio::test]
async fn chunks_are_torchs() {
    let (cluster, w) = cluster().await;
    // The expected lengths are those of torch.arange(length).chunk(parts).
    for (length, parts, want) in [
        (6, 3, &[2, 2, 2][..]),
        (5, 2, &[3, 2]),
        (5, 4, &[2, 2, 1]),
        (7, 5, &[2, 2, 2, 1]),
        (9, 4, &[3, 3, 3]),
        (2, 300, &[1, 1]),
        (4, 1, &[4]),
        (0, 3, &[0, 0, 0]),
    ] {
        let x = w.arange(length).unwrap();
        let chunks = x.chunk(parts, -1).unwrap();
        let mut at = 0;
        let mut lengths = Vec::new();
        for chunk in &chunks {
            let got: Vec<i64> = chunk.fetch().await.unwrap();
            assert_eq!(got, (at..at + got.len() as i64).collect::<Vec<_>>());
            at += got.len() as i64;
            lengths.push(got.len());
        }
        assert_eq!(lengths, want, "{length} in {parts}");
    }
    let x = w.zeros([2, 5], DType::U8).unwrap();
    assert_eq!(x.chunk(3, 1).unwrap()[2].shape(), Some(&[2, 1][..]));
    refused(x.chunk(0, 1), "Split", "0 parts");
    refused(x.chunk(2, 2), "Split", "axis 2 is outside rank 2");
    refused(
        w.zeros([], DType::F32).unwrap().chunk(2, 0),
        "Split",
        "rank 0",
    );
    refused(
        w.arange(300).unwrap().chunk(300, 0),
        "Split",
        "at most 255 outputs",
    );
    let long = w.arange(300).unwrap();
    let operands = [convoke::Operand::Tensor(&long)];
    refused(
        convoke::issue("Split", Default::default(), &operands, 300),
        "Split",
        "at most 255 outputs, not 300",
    );
    refused(
        x.split(None, 1, 4),
        "Split",
        "5 elements of axis 1 are no 4 parts of 2",
    );
    refused(x.split(None, 1, 0), "Split", "1 or more outputs");
    // A trace for any length has the same number of parts in every call; a length that does not come out so is an
    // error.
    let f = cluster
        .function(|t| t[0].chunk(4, 0))
        .dynamic(0, 0, "n")
        .unwrap();
    let called = f.call(&[w.arange(7).unwrap()]).await.unwrap();
    assert_eq!(called[3].fetch::<Vec<i64>>().await.unwrap(), [6]);
    let e = f.call(&[w.arange(5).unwrap()]).await.unwrap_err();
    assert!(e.to_string().contains("are no 4 parts of 2"), "{e}");
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_refused_dtype_is_told_what_to_be_cast_to() {
    let (cluster, w) = cluster().await;
    let x = w.zeros([2, 2], DType::U8).unwrap();
    refused(
        x.sqrt(),
        "Sqrt",
        "operand 'X' is u8; it must be one of f32, f64, f16, bf16",
    );
    refused(x.exp(), "Exp", "cast");
    refused(x.reduce_mean(0, None, None), "ReduceMean", "cast");
    let e = x.matmul(&x.cast(DType::I8).unwrap()).unwrap_err();
    assert!(e.to_string().contains("cast"), "{e}");
    cluster.shutdown().await;
}

#[tokio::test]
async fn narrow_dtypes_travel_convert_and_change_shape() {
    let (cluster, w) = cluster().await;
    let ones = HostTensor::from_slice(&[3, 5], &[1f32; 15]).unwrap();
    for dtype in DType::ALL.into_iter().filter(|d| d.is_narrow()) {
        let narrow = w.put(ones.clone()).unwrap().cast(dtype).unwrap();
        let fetched: HostTensor = narrow.fetch().await.unwrap();
        assert_eq!((fetched.dtype(), fetched.shape()), (dtype, &[3, 5][..]));
        assert_eq!(Some(fetched.byte_len()), dtype.bytes_for(15), "{dtype}");
        let turned = w.put(fetched).unwrap().t().unwrap();
        let back: Vec<f32> = turned.cast(DType::F32).unwrap().fetch().await.unwrap();
        assert_eq!(back, [1.; 15], "{dtype}");
    }
    let odd = HostTensor::from_bytes(DType::I4, &[3], &[0x8f, 0x07]).unwrap();
    let shown = convoke::display(&odd).to_string();
    assert!(
        shown.contains("-1") && shown.contains("-8") && shown.contains('7'),
        "{shown}"
    );
    cluster.shutdown().await;
}
