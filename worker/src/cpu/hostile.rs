//! Every op with random operands and attributes that no sensible model has: none may cause a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;

use convoke_common::memory::{Ledger, Pool, Purpose};
use convoke_graph::graph::{Attr, Attrs, Function, TensorType};
use convoke_graph::ops::{self, AttrKind, OpDef, OperandDef};
use convoke_graph::{DType, Tensor};
use convoke_kernels::Exec;

use super::kernel::{Launch, Operands};
use super::resolution::resolve;

/// A generator of random numbers, xorshift64*, which gives the same sequence everywhere.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    fn int(&mut self) -> i64 {
        *self.pick(&[
            -2,
            -1,
            -1,
            0,
            0,
            1,
            1,
            1,
            2,
            2,
            3,
            4,
            7,
            i64::MIN,
            i64::MAX,
            1 << 31,
        ])
    }

    fn ints(&mut self) -> Vec<i64> {
        (0..self.below(5)).map(|_| self.int()).collect()
    }

    fn shape(&mut self) -> Vec<usize> {
        (0..self.below(5))
            .map(|_| *self.pick(&[0, 1, 1, 2, 2, 2, 3, 4]))
            .collect()
    }

    fn attr(&mut self, kind: AttrKind) -> Attr {
        let words = [
            "none",
            "add",
            "max",
            "reflect",
            "edge",
            "wrap",
            "LEFT",
            "SAME_UPPER",
            "VALID",
            "CRD",
            "Relu",
            "nearest",
            "?",
        ];
        match kind {
            AttrKind::Int => Attr::Int(self.int()),
            AttrKind::Float => Attr::Float(*self.pick(&[0.0, 1.0, -1.0, f32::NAN, f32::INFINITY])),
            AttrKind::Str => Attr::Str((*self.pick(&words)).into()),
            AttrKind::Ints => Attr::Ints(self.ints()),
            AttrKind::Floats => Attr::Floats(vec![1.0]),
            AttrKind::Strs => Attr::Strs(vec![(*self.pick(&words)).into()]),
            AttrKind::Tensor => Attr::Tensor(self.tensor(DType::F32, &[1])),
            AttrKind::DType => Attr::DType(*self.pick(&DType::ALL)),
            AttrKind::Function => Attr::Function(self.function().into()),
        }
    }

    /// A function of random parameters that returns them, or some of them.
    fn function(&mut self) -> Function {
        let mut f = Function::default();
        for i in 0..self.below(5) {
            let dtype = *self.pick(&[DType::Bool, DType::I64, DType::F32]);
            let ty = TensorType::fixed(dtype, &[self.below(3)]);
            let id = f.add_value(format!("p{i}"), ty);
            f.params.push(id);
            if self.below(4) > 0 {
                f.results.push((format!("r{i}"), id));
            }
        }
        f
    }

    fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        if dtype == DType::Str {
            let texts = [
                "", "a", "B c", "1", "-7.5", "1e400", "NaN", "é", "日本", "a,,b", "(", "a*",
            ];
            let count = shape.iter().product();
            let strings: Vec<&str> = (0..count).map(|_| *self.pick(&texts)).collect();
            return Tensor::from_strings(shape, &strings).unwrap();
        }
        let mut t = Tensor::zeros(dtype, shape).unwrap();
        let size = dtype.width();
        let padding = convoke_graph::packed::padding(dtype.bits(), t.elements());
        for element in t.bytes_mut().unwrap().chunks_mut(size) {
            let bytes = match dtype {
                DType::F32 => (self.int() as f32).to_le_bytes().to_vec(),
                DType::Bool => vec![self.below(2) as u8],
                _ => self.int().to_le_bytes().to_vec(),
            };
            element.copy_from_slice(&bytes[..size]);
        }
        if let Some(last) = t.bytes_mut().and_then(|b| b.last_mut()) {
            *last &= !padding;
        }
        t
    }

    fn operand(&mut self, o: &OperandDef, dtype: DType, like: &[usize], habit: usize) -> Tensor {
        // Shapes that resemble others get past the shape rules more often than unrelated ones.
        let shape = match if self.below(4) == 0 {
            self.below(6)
        } else {
            habit
        } {
            0 => self.shape(),
            1 => vec![self.below(5)],
            2 | 3 => like.to_vec(),
            // The shape has one value per channel.
            4 => vec![like.get(1).copied().unwrap_or(1)],
            _ => like[self.below(like.len() + 1)..].to_vec(),
        };
        let host = o.memory == ops::Memory::Host;
        let shape = if host && self.below(2) == 0 {
            vec![self.below(5)]
        } else {
            shape
        };
        self.tensor(dtype, &shape)
    }

    fn attrs(&mut self, def: &OpDef) -> Attrs {
        def.attrs.iter().fold(Attrs::default(), |attrs, a| {
            if a.required || self.below(3) == 0 {
                attrs.with(a.name, self.attr(a.kind))
            } else {
                attrs
            }
        })
    }

    /// Shapes that fit together, for ops whose operands hardly ever do by chance.
    fn fitting(&mut self, op: &str) -> Option<Vec<Vec<usize>>> {
        let [a, b, c, d] = [3; 4].map(|n| self.below(n));
        Some(match op {
            "GRU" | "LSTM" | "RNN" => {
                let gates = match op {
                    "GRU" => 3,
                    "LSTM" => 4,
                    _ => 1,
                };
                let rows = gates * d;
                vec![
                    vec![a, b, c],
                    vec![1, rows, c],
                    vec![1, rows, d],
                    vec![1, 2 * rows],
                    vec![b],
                    vec![1, b, d],
                    vec![1, b, d],
                    vec![1, 3 * d],
                ]
            }
            "DeformConv" => match b {
                0 => vec![
                    vec![a, 2, 4],
                    vec![2, 2, 2],
                    vec![a, 2, 3],
                    vec![2],
                    vec![a, 2, 3],
                ],
                1 => vec![
                    vec![a, 2, 3, 4],
                    vec![2, 2, 2, 2],
                    vec![a, 8, 2, 3],
                    vec![2],
                    vec![a, 4, 2, 3],
                ],
                _ => vec![
                    vec![a, 2, 2, 2, 2],
                    vec![2, 2, 1, 1, 2],
                    vec![a, 6, 2, 2, 1],
                    vec![2],
                    vec![a, 2, 2, 2, 1],
                ],
            },
            "GridSample" => match b {
                0 => vec![vec![a, c, 2], vec![a, d, 1]],
                1 => vec![vec![a, c, 2, 2], vec![a, d, 2, 2]],
                _ => vec![vec![a, c, 1, 2, 1, 2, 1], vec![a, 1, 2, 1, d, 1, 5]],
            },
            "MatMulNBits" => vec![vec![a, 3], vec![2, 2, 1], vec![4], vec![2], vec![2]],
            "MatMulNBitsInt8" => vec![vec![a, 3], vec![2, 1, 8], vec![2], vec![2], vec![2]],
            "PackCodes" => vec![vec![2, a]],
            "QLinearConv" => vec![
                vec![a, 2, b + 2, 3],
                vec![],
                vec![],
                vec![c + 1, 2, 2, 2],
                vec![c + 1],
                vec![c + 1],
                vec![],
                vec![],
                vec![c + 1],
            ],
            "QLinearMatMul" => vec![
                vec![a, b, c],
                vec![b],
                vec![b],
                vec![c, d],
                vec![d],
                vec![d],
                vec![],
                vec![],
                vec![d],
            ],
            "MaxRoiPool" => vec![vec![a + 1, b, c, d], vec![2, 5]],
            "MaxUnpool" => vec![vec![a, b, c], vec![a, b, c]],
            "NonMaxSuppression" => vec![vec![a, b, 4], vec![a, c, b], vec![1], vec![], vec![1]],
            "TfIdfVectorizer" => vec![vec![a, b], vec![0], vec![0], vec![0]],
            // Where there are no roots, no node is ever looked at.
            "TreeEnsemble" => vec![
                vec![a, b],
                vec![c],
                vec![c],
                vec![c],
                vec![c, 2],
                vec![d],
                vec![2],
                vec![2],
                vec![2],
            ],
            "RotaryEmbedding" => vec![vec![a, b, c, 2 * d], vec![3, d], vec![3, d], vec![a, c]],
            "RoiAlign" => vec![vec![a + 1, b, c, d], vec![2, 4], vec![2]],
            _ => return None,
        })
    }

    fn operands(&mut self, def: &OpDef) -> Vec<Option<Tensor>> {
        let given = self.fitting(def.name);
        let fitting = given.filter(|_| self.below(2) == 0);
        let (like, habit) = (self.shape(), self.below(6));
        let mut classes: Vec<(u8, DType)> = Vec::new();
        let count = match def.operands.last() {
            Some(o) if o.variadic => def.operands.len() + self.below(3),
            _ => def.operands.len(),
        };
        let mut out: Vec<Option<Tensor>> = Vec::new();
        for i in 0..count {
            let o = &def.operands[i.min(def.operands.len() - 1)];
            if o.optional && self.below(2) == 0 {
                out.push(None);
                continue;
            }
            let agreed = classes
                .iter()
                .find(|(class, _)| *class != 0 && *class == o.class);
            let dtype = agreed.map_or_else(|| *self.pick(o.dtypes), |(_, dtype)| *dtype);
            classes.push((o.class, dtype));
            if let Some(shape) = fitting.as_ref().and_then(|shapes| shapes.get(i)) {
                out.push(Some(self.tensor(dtype, shape)));
                continue;
            }
            out.push(Some(if i == 0 {
                self.tensor(dtype, &like)
            } else {
                self.operand(o, dtype, &like, habit)
            }));
        }
        out
    }
}

#[test]
fn nothing_given_to_an_op_causes_a_panic() {
    let cancel = AtomicBool::new(false);
    let pool = Pool::new(&Ledger::new("test", 1 << 24), Purpose::Handles, 0).unwrap();
    let mut never = Vec::new();
    for def in ops::all() {
        // The operands of an op's trial depend on its name alone, so that a new op changes no other trial.
        let seed = def.name.bytes().fold(7u64, |seed, b| {
            seed.wrapping_mul(0x0100_0000_01b3) ^ u64::from(b)
        });
        let (mut dice, mut ran) = (Dice(seed), 0);
        for _ in 0..1500 {
            let (mut attrs, mut inputs) = (dice.attrs(def), dice.operands(def));
            // Where an op has the weight's shape as an attribute, the true one is given.
            if let (Some(_), Some(Some(w))) = (attrs.get("w_shape"), inputs.get(1)) {
                let dims = w.shape().iter().map(|d| *d as i64).collect();
                attrs = attrs.with("w_shape", Attr::Ints(dims));
            }
            // Nor are random numbers ever the sizes of weights that fit.
            let fits = match def.name {
                "MatMulNBits" | "MatMulNBitsInt8" | "PackCodes" => dice.below(4),
                _ => 4,
            };
            if fits < 2 {
                let block = if def.name == "MatMulNBits" { 2 } else { 16 };
                let all = [("N", 2), ("bits", 4), ("K", 3), ("block_size", block)];
                let sizes = if def.name == "PackCodes" {
                    &all[..2]
                } else {
                    &all
                };
                attrs = sizes
                    .iter()
                    .fold(attrs, |all, (name, v)| all.with(name, Attr::Int(*v)));
                if let ("MatMulNBits" | "MatMulNBitsInt8", [_, Some(codes), ..]) =
                    (def.name, &mut inputs[..])
                    && fits == 0
                {
                    attrs = attrs.with("packed", Attr::Int(1));
                    // Four bits for 64 columns, in two blocks of two rows, or in one.
                    let packed = vec![0x93u8; if block == 2 { 128 } else { 512 }];
                    *codes = Tensor::from_slice(&[packed.len()], &packed).unwrap();
                }
            }
            // Random columns are never all positions of a random block: those of a block of one element are given.
            if let ("Col2Im", [Some(x), Some(image), Some(block)]) = (def.name, &mut inputs[..])
                && dice.below(4) == 0
                && let [_, _, columns] = *x.shape()
            {
                attrs = Attrs::default();
                *image = Tensor::from_slice(&[1], &[columns as i64]).unwrap();
                *block = Tensor::from_slice(&[1], &[1i64]).unwrap();
            }
            // Random bytes are no image file.
            if let ("ImageDecoder", [Some(file)]) = (def.name, &mut inputs[..])
                && dice.below(4) == 0
            {
                attrs = Attrs::default();
                *file = Tensor::from_slice(&[12], b"P5 1 1 255 a").unwrap();
            }
            let outputs = def.outputs.0 + dice.below(2).min(def.outputs.1 - def.outputs.0);
            let dtypes: Vec<_> = inputs
                .iter()
                .map(|t| t.as_ref().map(Tensor::dtype))
                .collect();
            let said = format!("{} {attrs:?} {inputs:?}", def.name);
            let run = AssertUnwindSafe(|| {
                let mut inputs = inputs;
                let kernel = resolve(def.name, &attrs, &dtypes, outputs).ok()?;
                let mut launch = Launch {
                    inputs: Operands::given(&mut inputs),
                    sizes: None,
                    exec: Exec::single(&cancel),
                    pool: &pool,
                };
                kernel.launch(&mut launch).ok()
            });
            match catch_unwind(run) {
                Ok(result) => ran += usize::from(result.is_some()),
                Err(_) => panic!("{said}"),
            }
        }
        if ran == 0 {
            never.push(def.name);
        }
    }
    // Random functions seldom fit their operands. The other ops need the caller's session: the executor runs them.
    never.retain(|op| !["If", "Loop", "Scan"].contains(op));
    assert_eq!(never, ["HandleIn", "HandleOut"]);
}
