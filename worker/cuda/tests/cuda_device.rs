//! The device: its queue and its kernels, beside the kernels of the CPU. Without a GPU, g++ compiles the sources.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "the emulated streams are threads"
)]

mod emulated;
mod products;
mod queue;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::time::Duration;

use convoke_common::error::Code;
use convoke_common::ids::LeaseId;
use convoke_common::memory::{Ledger, Pool, Purpose};
use convoke_common::world::{AccountId, Share};
use convoke_cuda::device::CudaDevice;
use convoke_cuda::driver::real::CudaDriver;
use convoke_cuda::kernels::listing;
use convoke_graph::graph::{Attr, Attrs};
use convoke_graph::ops::{self, ConcreteOperand, ConcreteOutputs, Memory};
use convoke_graph::{DType, Tensor};
use convoke_kernels::Exec;
use convoke_worker::cpu::{self, Inputs, Operands};
use convoke_worker::device::suite::{self, Comparison};
use convoke_worker::device::{
    Device, DeviceFailure, DeviceLaunch, DeviceOp, DeviceOperand, DeviceQueue, DeviceStep,
    KernelWatch,
};
use emulated::Emulated;

/// The device over the emulated driver, or over NVIDIA's where `CONVOKE_TEST_GPU` is the number of a GPU.
fn device(name: &str) -> CudaDevice {
    match std::env::var("CONVOKE_TEST_GPU") {
        Ok(number) => {
            let driver = CudaDriver::open(number.parse().unwrap()).unwrap();
            CudaDevice::new(Arc::new(driver))
        }
        Err(_) => CudaDevice::new(Arc::new(Emulated::new(name))),
    }
}

struct NoWatch;

impl KernelWatch for NoWatch {
    fn around(&self, _: u32, run: &mut dyn FnMut()) {
        run();
    }
}

fn step() -> Arc<DeviceStep> {
    Arc::new(DeviceStep::new(
        Arc::new(AtomicBool::new(false)),
        Arc::new(NoWatch),
    ))
}

fn queue(device: &CudaDevice) -> Arc<dyn DeviceQueue> {
    let share = Share::new(AccountId::named("test"), LeaseId(1));
    let ledger = Ledger::new("device", 1 << 30);
    device.open(&share, &ledger, Purpose::Leases, 0).unwrap()
}

#[test]
fn the_device_passes_the_suite() {
    let device = device("suite");
    let report = suite::check(&device, Comparison::Within(2e-6)).unwrap();
    for op in [
        "Add", "Exp", "MatMul", "Softmax", "Erf", "Tanh", "Log", "Gelu", "Pow",
    ] {
        assert!(report.ops.contains(&op), "{op} in {:?}", report.ops);
    }
}

/// The results of an op on these operands, by the CPU's kernel.
fn on_cpu(op: &str, attrs: &Attrs, given: &[Tensor], outputs: usize) -> Vec<Tensor> {
    let dtypes: Vec<Option<DType>> = given.iter().map(|t| Some(t.dtype())).collect();
    let kernel = cpu::resolve(op, attrs, &dtypes, outputs).ok().unwrap();
    let mut inputs: Inputs = given.iter().cloned().map(Some).collect();
    let cancel = AtomicBool::new(false);
    let pool = Pool::new(&Ledger::new("host", 1 << 30), Purpose::Leases, 0).unwrap();
    let made = kernel.launch(&mut cpu::Launch {
        inputs: Operands::given(&mut inputs),
        sizes: None,
        exec: Exec::single(&cancel),
        pool: &pool,
    });
    made.ok().unwrap().into_iter().collect()
}

type Copied = Result<Tensor, Arc<DeviceFailure>>;

/// The device's results of an op, copied to the host; `None` where the device has no kernel for it.
fn on_device(
    device: &CudaDevice,
    op: &str,
    attrs: &Attrs,
    given: &[Tensor],
    outputs: usize,
) -> Option<Vec<Copied>> {
    on_queue(device, &*queue(device), op, attrs, given, outputs)
}

/// The results as [`on_device`] has them, by a queue of the device that is open.
fn on_queue(
    device: &CudaDevice,
    queue: &dyn DeviceQueue,
    op: &str,
    attrs: &Attrs,
    given: &[Tensor],
    outputs: usize,
) -> Option<Vec<Copied>> {
    let def = ops::lookup(op).unwrap();
    let dtypes: Vec<Option<DType>> = given.iter().map(|t| Some(t.dtype())).collect();
    let kernel = device.resolve(&DeviceOp {
        def,
        attrs,
        operands: &dtypes,
        outputs,
    })?;
    let is_host = |i: usize| {
        def.operands
            .get(i)
            .is_some_and(|o| o.memory == Memory::Host)
    };
    let concrete = given.iter().enumerate().map(|(i, t)| {
        Some(ConcreteOperand {
            dtype: t.dtype(),
            shape: t.shape(),
            host: is_host(i).then_some(t),
        })
    });
    let concrete: Vec<_> = concrete.collect();
    let types: ConcreteOutputs = ops::infer_concrete(def, attrs, &concrete, outputs).unwrap();
    let step = step();
    let operands = given.iter().enumerate().map(|(i, t)| match is_host(i) {
        true => DeviceOperand::Host(t.clone()),
        false => DeviceOperand::Device(queue.copy_in(&step, 0, t.clone())),
    });
    let made = queue.launch(DeviceLaunch {
        kernel: &kernel,
        step: &step,
        node: 3,
        operands: operands.collect(),
        outputs: &types,
    });
    let pool = Pool::new(&Ledger::new("host", 1 << 30), Purpose::Leases, 0).unwrap();
    let (told, copied) = channel();
    for tensor in made {
        let told = told.clone();
        let then = move |copy| drop(told.send(copy));
        queue.copy_out(&step, 4, tensor, &pool, Box::new(then));
    }
    let all = (0..outputs).map(|_| copied.recv_timeout(Duration::from_secs(60)).unwrap());
    Some(all.collect())
}

/// Floats of any width, as f64; elements of other dtypes as their integers.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    let halves = |f: fn(u16) -> f32| {
        let pairs = tensor.bytes().chunks_exact(2);
        pairs
            .map(|b| f(u16::from_le_bytes([b[0], b[1]])).into())
            .collect()
    };
    match tensor.dtype() {
        DType::F32 => tensor
            .as_slice::<f32>()
            .unwrap()
            .iter()
            .map(|x| (*x).into())
            .collect(),
        DType::F16 => halves(|x| half::f16::from_bits(x).to_f32()),
        DType::BF16 => halves(|x| half::bf16::from_bits(x).to_f32()),
        DType::F64 => tensor.as_slice::<f64>().unwrap().to_vec(),
        DType::Bool => tensor.bytes().iter().map(|b| (*b).into()).collect(),
        _ => tensor
            .to_i64s()
            .unwrap()
            .iter()
            .map(|x| *x as f64)
            .collect(),
    }
}

/// Checks that the device's results are the CPU's, within a part of each element, or bit by bit where it is 0.
#[track_caller]
fn check(
    device: &CudaDevice,
    op: &str,
    attrs: &Attrs,
    given: &[Tensor],
    outputs: usize,
    within: f64,
) {
    let want = on_cpu(op, attrs, given, outputs);
    let made = on_device(device, op, attrs, given, outputs);
    let made = made.unwrap_or_else(|| panic!("the device has no kernel for {op} of {given:?}"));
    for (made, want) in made.into_iter().zip(want) {
        let made = made.unwrap();
        assert_eq!(made.signature(), want.signature(), "{op}");
        for (i, (x, y)) in numbers(&made).iter().zip(numbers(&want)).enumerate() {
            let close = (x - y).abs() <= within * y.abs().max(1.0);
            let same = *x == y || (x.is_nan() && y.is_nan()) || close;
            assert!(same, "{op} of {given:?}: element {i} is {x}, not {y}");
        }
    }
}

/// Pseudo-random elements between -2 and 2, and a few special ones.
fn floats(dtype: DType, shape: &[usize], seed: u32) -> Tensor {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 22) as f32 - 2.0
    };
    let elements: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    of_floats(dtype, shape, &elements)
}

fn of_floats(dtype: DType, shape: &[usize], elements: &[f32]) -> Tensor {
    match dtype {
        DType::F32 => Tensor::from_slice(shape, elements).unwrap(),
        _ => {
            let f32s = Tensor::from_slice(shape, elements).unwrap();
            let to = Attrs::default().with("to", Attr::DType(dtype));
            on_cpu("Cast", &to, &[f32s], 1).remove(0)
        }
    }
}

fn ints(elements: &[i64]) -> Tensor {
    Tensor::from_slice(&[elements.len()], elements).unwrap()
}

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn int(name: &str, value: i64) -> Attrs {
    Attrs::default().with(name, Attr::Int(value))
}

#[test]
fn elementwise_functions_have_the_bits_of_the_cpu() {
    let device = device("elementwise");
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1e-45,
        -1e-39,
        88.9,
        -104.0,
        0.5,
        1.5,
        2.5,
        f32::MAX,
        f32::MIN_POSITIVE,
    ];
    for dtype in FLOATS {
        let xs = [
            floats(dtype, &[5, 67], 1),
            of_floats(dtype, &[16], &special),
        ];
        for op in [
            "Abs",
            "Neg",
            "Sign",
            "Relu",
            "Reciprocal",
            "Floor",
            "Ceil",
            "Round",
            "Sqrt",
            "Exp",
            "Log",
            "Tanh",
            "Erf",
            "Sigmoid",
            "Softplus",
            "Softsign",
            "Mish",
            "Gelu",
            "HardSwish",
            "HardSigmoid",
            "LeakyRelu",
            "ThresholdedRelu",
            "Elu",
            "Selu",
            "Celu",
            "Swish",
            "IsNaN",
        ] {
            for x in &xs {
                check(
                    &device,
                    op,
                    &Attrs::default(),
                    std::slice::from_ref(x),
                    1,
                    0.0,
                );
            }
        }
    }
}

#[test]
fn operands_are_broadcast_and_cast() {
    let device = device("broadcast");
    for (a, b) in [
        (&[2, 3, 4][..], &[3, 1][..]),
        (&[4], &[5, 4]),
        (&[], &[2, 2]),
        (&[0, 3], &[3]),
    ] {
        for op in [
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Pow",
            "Min",
            "Max",
            "PRelu",
            "Less",
            "Equal",
            "GreaterOrEqual",
        ] {
            // The slope of PRelu is broadcast to the operand, never the other way round.
            if op == "PRelu" && (a.len() < b.len() || a.contains(&0)) {
                continue;
            }
            let given = [floats(DType::F32, a, 2), floats(DType::F32, b, 3)];
            check(&device, op, &Attrs::default(), &given, 1, 0.0);
        }
    }
    let wide = [ints(&[i64::MAX, -7, 3]), ints(&[2, 3, -4])];
    for op in ["Add", "Sub", "Mul", "Max", "Less"] {
        check(&device, op, &Attrs::default(), &wide, 1, 0.0);
    }
    let values = [
        1.5,
        -1.5,
        0.0,
        3e9,
        -3e9,
        f32::NAN,
        f32::INFINITY,
        1e30,
        65520.0,
    ];
    for from in FLOATS {
        for to in [
            DType::F32,
            DType::F16,
            DType::BF16,
            DType::I32,
            DType::I64,
            DType::Bool,
            DType::F64,
        ] {
            let to = Attrs::default().with("to", Attr::DType(to));
            check(
                &device,
                "Cast",
                &to,
                &[of_floats(from, &[9], &values)],
                1,
                0.0,
            );
        }
    }
    let condition = Tensor::from_bools(&[2, 1], &[true, false]).unwrap();
    let given = [
        condition,
        floats(DType::F16, &[3], 4),
        floats(DType::F16, &[2, 3], 5),
    ];
    check(&device, "Where", &Attrs::default(), &given, 1, 0.0);
}

/// A NaN of each sign, with and without bits beside the quiet one, goes through as on the CPU.
#[test]
fn casts_and_signs_keep_the_bits_of_nan() {
    let device = device("nan");
    let nans = [0x7fc0_0000, 0xffc0_0000, 0x7fc0_6000, 0xffd5_4000].map(f32::from_bits);
    let check = |op: &str, attrs: &Attrs, given: &Tensor| {
        let given = std::slice::from_ref(given);
        let want = on_cpu(op, attrs, given, 1).remove(0);
        let made = on_device(&device, op, attrs, given, 1).unwrap().remove(0);
        assert_eq!(
            made.unwrap().bytes(),
            want.bytes(),
            "{op} {attrs:?} of {given:?}"
        );
    };
    for from in FLOATS {
        let x = of_floats(from, &[4], &nans);
        check("Neg", &Attrs::default(), &x);
        check("Abs", &Attrs::default(), &x);
        for to in [DType::F32, DType::F16, DType::BF16, DType::F64] {
            check("Cast", &Attrs::default().with("to", Attr::DType(to)), &x);
        }
    }
    let to = |dtype| Attrs::default().with("to", Attr::DType(dtype));
    let wide = on_cpu(
        "Cast",
        &to(DType::F64),
        &[of_floats(DType::F32, &[4], &nans)],
        1,
    )
    .remove(0);
    check("Cast", &to(DType::F32), &wide);
}

#[test]
fn rows_are_close_to_the_cpu() {
    let device = device("rows");
    for (dtype, within) in [(DType::F32, 2e-6), (DType::F16, 2e-3), (DType::BF16, 2e-2)] {
        for (shape, axis) in [
            (&[4, 300][..], -1),
            (&[3, 5, 2], 1),
            (&[7], 0),
            (&[0, 3], 1),
        ] {
            let x = [floats(dtype, shape, 14)];
            check(&device, "Softmax", &int("axis", axis), &x, 1, within);
            check(&device, "LogSoftmax", &int("axis", axis), &x, 1, within);
        }
        let x = floats(dtype, &[3, 5, 40], 15);
        for op in [
            "ReduceSum",
            "ReduceMean",
            "ReduceMax",
            "ReduceMin",
            "ReduceL2",
            "ReduceSumSquare",
            "ReduceL1",
        ] {
            for axes in [&[-1][..], &[0, 2], &[1], &[]] {
                let part = if op == "ReduceMax" { 0.0 } else { within * 4.0 };
                check(
                    &device,
                    op,
                    &int("keepdims", 0),
                    &[x.clone(), ints(axes)],
                    1,
                    part,
                );
            }
        }
        let (scale, bias) = (floats(dtype, &[40], 16), floats(dtype, &[40], 17));
        let given = [x.clone(), scale.clone(), bias];
        check(
            &device,
            "LayerNormalization",
            &Attrs::default(),
            &given,
            1,
            within * 4.0,
        );
        check(
            &device,
            "RMSNormalization",
            &Attrs::default(),
            &[x, scale],
            1,
            within * 4.0,
        );
    }
}

#[test]
fn heads_are_rotated() {
    let device = device("rotary");
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let (cos, sin) = (floats(dtype, &[9, 3], 18), floats(dtype, &[9, 3], 19));
        let places = Tensor::from_slice(&[2, 4], &[0i64, 8, -9, 3, 7, -1, 2, 2]).unwrap();
        let by_heads = floats(dtype, &[2, 5, 4, 8], 20);
        let columns = floats(dtype, &[2, 4, 40], 20);
        for interleaved in [0, 1] {
            let attrs = int("rotary_embedding_dim", 6).with("interleaved", Attr::Int(interleaved));
            let given = [by_heads.clone(), cos.clone(), sin.clone(), places.clone()];
            check(&device, "RotaryEmbedding", &attrs, &given, 1, 0.0);
            let heads = attrs.with("num_heads", Attr::Int(5));
            let rows = [floats(dtype, &[1, 4, 3], 21), floats(dtype, &[1, 4, 3], 22)];
            let [own_cos, own_sin] = rows;
            let given = [columns.clone(), own_cos, own_sin];
            check(&device, "RotaryEmbedding", &heads, &given, 1, 0.0);
        }
    }
}

#[test]
fn elements_are_moved() {
    let device = device("moved");
    for dtype in [DType::F32, DType::F16, DType::I64, DType::Bool] {
        let count: Vec<f32> = (0..120)
            .map(|i| {
                if dtype == DType::Bool {
                    (i % 3 == 0).into()
                } else {
                    i as f32
                }
            })
            .collect();
        let x = of_floats(dtype, &[4, 5, 6], &count);
        let perm = Attrs::default().with("perm", Attr::Ints(vec![2, 0, 1]));
        check(
            &device,
            "Transpose",
            &perm,
            std::slice::from_ref(&x),
            1,
            0.0,
        );
        let slice = [
            x.clone(),
            ints(&[-1, 1]),
            ints(&[i64::MIN, 4]),
            ints(&[0, 1]),
            ints(&[-2, 2]),
        ];
        check(&device, "Slice", &Attrs::default(), &slice, 1, 0.0);
        check(
            &device,
            "Expand",
            &Attrs::default(),
            &[x.clone(), ints(&[2, 1, 1, 1])],
            1,
            0.0,
        );
        check(
            &device,
            "Reshape",
            &Attrs::default(),
            &[x.clone(), ints(&[-1, 8])],
            1,
            0.0,
        );
        check(
            &device,
            "Split",
            &int("axis", 1),
            &[x.clone(), ints(&[1, 4])],
            2,
            0.0,
        );
        let parts = on_cpu("Split", &int("axis", 2), &[x.clone(), ints(&[1, 0, 5])], 3);
        check(&device, "Concat", &int("axis", 2), &parts, 1, 0.0);
        check(
            &device,
            "Gather",
            &int("axis", 1),
            &[x.clone(), ints(&[4, -5, 0])],
            1,
            0.0,
        );
    }
}

#[test]
fn an_index_beyond_its_axis_is_found_late() {
    let device = device("faults");
    let given = [floats(DType::F32, &[3, 2], 18), ints(&[0, 3])];
    let made = on_device(&device, "Gather", &Attrs::default(), &given, 1)
        .unwrap()
        .remove(0);
    let failure = made.unwrap_err();
    let error = failure.error.as_ref().unwrap();
    assert_eq!(
        (failure.node, error.code),
        (3, Code::KernelFailed),
        "{error}"
    );
}

#[test]
fn a_lost_context_fails_everything() {
    let driver = Arc::new(Emulated::new("lost"));
    let device = CudaDevice::new(driver.clone());
    let x = [floats(DType::F32, &[8], 19)];
    on_device(&device, "Neg", &Attrs::default(), &x, 1)
        .unwrap()
        .remove(0)
        .unwrap();
    // Once the loss is noticed, by work of the first step even, no queue opens.
    let queue = queue(&device);
    driver.lose();
    let made = on_queue(&device, &*queue, "Neg", &Attrs::default(), &x, 1)
        .unwrap()
        .remove(0);
    let failure = made.unwrap_err();
    let error = failure.error.as_ref().unwrap();
    assert_eq!(error.code, Code::Wedged);
    assert!(error.message.contains("ILLEGAL_ADDRESS"), "{error}");
    assert!(is_wedged(&device));
}

fn is_wedged(device: &CudaDevice) -> bool {
    let share = Share::new(AccountId::named("test"), LeaseId(1));
    let refused = device.open(&share, &Ledger::new("device", 64), Purpose::Leases, 0);
    refused.is_err_and(|e| e.code == Code::Wedged)
}

/// The table of ops with kernels in `docs/accelerators.md`; `CONVOKE_WRITE_OPS=1` writes it.
#[test]
fn the_documented_table_is_true() {
    let at = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/accelerators.md");
    let text = std::fs::read_to_string(&at).unwrap();
    let (start, end) = ("<!-- table of kernels -->\n", "<!-- end -->");
    let (before, rest) = text.split_once(start).unwrap();
    let (table, after) = rest.split_once(end).unwrap();
    let want = listing::table();
    if std::env::var_os("CONVOKE_WRITE_OPS").is_some() {
        std::fs::write(&at, format!("{before}{start}{want}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(table, want, "run with CONVOKE_WRITE_OPS=1");
}
