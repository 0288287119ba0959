//! Greedy decoding with a LLaMA-style model of random weights: RMSNorm, rotary embedding, grouped-query attention,
//! SwiGLU. Two workers have half of the layers each, and keep those layers' keys and values:
//! `cargo run --release -p convoke --example decoder`
//!
//! To use a running cluster, such as one that `convoke up` has started: `... --example decoder -- HOST:PORT TOKEN_FILE`

mod common;

use std::sync::Arc;

use convoke::{Cluster, DType, Device, HostTensor, Result, Tensor, with_device};

const LAYERS: u64 = 4;
const WIDTH: usize = 64;
const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD: usize = WIDTH / HEADS;
const FFN: usize = 160;
const VOCABULARY: usize = 256;
/// How many positions the cache has room for.
const LONGEST: i64 = 128;

#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<()> {
    let cluster = common::cluster(2).await?;
    run(&cluster).await?;
    cluster.shutdown().await;
    Ok(())
}

/// Random weights for products with rows of length `rows`; another `stream` gives other weights.
fn weights(device: &Device, rows: usize, columns: usize, stream: u64) -> Result<Tensor> {
    let normal = device.random_normal([rows, columns], DType::F32, (42, stream))?;
    normal * (rows as f64).powf(-0.5)
}

struct Layer {
    device: Device,
    /// Positions, [LONGEST], and the cosines and sines of their angles, [LONGEST, HEAD / 2].
    positions: Tensor,
    rotation: [Tensor; 2],
    norms: [Tensor; 2],
    /// Query, key, value, output.
    attention: [Tensor; 4],
    /// Gate, up, down.
    ffn: [Tensor; 3],
}

impl Layer {
    fn new(device: &Device, layer: u64) -> Result<Layer> {
        let w = |rows, columns, i| weights(device, rows, columns, layer * 10 + i);
        let positions = device.arange(LONGEST)?;
        let rates = (device.arange(HEAD as i64 / 2)?.cast(DType::F32)? * (-2. / HEAD as f32))?;
        let rates = device.full([1], 10_000, DType::F32)?.pow(&rates)?;
        let angles = (positions.cast(DType::F32)?.unsqueeze(1)? * &rates)?;
        let ones = device.ones([WIDTH], DType::F32)?;
        let kv = KV_HEADS * HEAD;
        Ok(Layer {
            device: device.clone(),
            positions,
            rotation: [angles.cos()?, angles.sin()?],
            norms: [ones.clone(), ones],
            attention: [
                w(WIDTH, WIDTH, 0)?,
                w(WIDTH, kv, 1)?,
                w(WIDTH, kv, 2)?,
                w(WIDTH, WIDTH, 3)?,
            ],
            ffn: [w(WIDTH, FFN, 4)?, w(WIDTH, FFN, 5)?, w(FFN, WIDTH, 6)?],
        })
    }

    /// Rotates pairs of `x`, [heads, HEAD], by the position's angles.
    fn rotate(&self, x: &Tensor, position: &Tensor) -> Result<Tensor> {
        let half = HEAD as i64 / 2;
        let (x, y) = (x.i((.., ..half))?, x.i((.., half..))?);
        let cos = self.rotation[0].gather(position, 0)?;
        let sin = self.rotation[1].gather(position, 0)?;
        let turned = [
            ((&x * &cos)? - (&y * &sin)?)?,
            ((&x * &sin)? + (&y * &cos)?)?,
        ];
        Tensor::concat(&[&turned[0], &turned[1]], 1)
    }

    /// Returns the hidden state, [1, WIDTH], after the layer, and the layer's cache with this position.
    fn forward(&self, x: &Tensor, position: &Tensor, cache: &[Tensor]) -> Result<[Tensor; 3]> {
        let (heads, kv, head) = (HEADS as i64, KV_HEADS as i64, HEAD as i64);
        let [wq, wk, wv, wo] = &self.attention;
        let h = x.rms_normalization(&self.norms[0], None, None)?;
        let q = self.rotate(&h.matmul(wq)?.reshape([heads, head])?, position)?;
        let k = self.rotate(&h.matmul(wk)?.reshape([kv, head])?, position)?;
        let v = h.matmul(wv)?.reshape([kv, 1, head])?;

        let at = position.reshape([1, 1, 1])?.expand([kv, 1, head])?;
        let keys = cache[0].scatter_elements(&at, &k.unsqueeze(1)?, 1, None)?;
        let values = cache[1].scatter_elements(&at, &v, 1, None)?;

        // Queries of one group share keys and values.
        let q = q.reshape([kv, heads / kv, head])?;
        let scores = (q.matmul(&keys.swap_axes(1, 2)?)? * (HEAD as f64).powf(-0.5))?;
        let past = self.positions.less_or_equal(position)?;
        let scores = past.where_(&scores, f32::NEG_INFINITY)?;
        let mixed = scores.softmax(-1)?.matmul(&values)?.reshape([1, -1])?;
        let x = (x + mixed.matmul(wo)?)?;

        let [gate, up, down] = &self.ffn;
        let h = x.rms_normalization(&self.norms[1], None, None)?;
        let h = (h.matmul(gate)?.swish(None)? * h.matmul(up)?)?;
        Ok([(x + h.matmul(down)?)?, keys, values])
    }
}

struct Model {
    first: Device,
    last: Device,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
}

impl Model {
    fn new(a: &Device, b: &Device) -> Result<Model> {
        let half = |i| if i < LAYERS / 2 { a } else { b };
        let layers: Result<_> = (0..LAYERS).map(|i| Layer::new(half(i), i)).collect();
        Ok(Model {
            first: a.clone(),
            last: b.clone(),
            embedding: weights(a, VOCABULARY, WIDTH, 1000)?,
            layers: layers?,
            norm: b.ones([WIDTH], DType::F32)?,
            head: weights(b, WIDTH, VOCABULARY, 1001)?,
        })
    }

    /// The state before the first token: token, position, then keys and values of each layer.
    fn start(&self) -> Result<Vec<Tensor>> {
        let mut state = vec![self.last.put([1i64])?, self.first.put([0i64])?];
        for layer in &self.layers {
            for _ in 0..2 {
                let shape = [KV_HEADS, LONGEST as usize, HEAD];
                state.push(layer.device.zeros(shape, DType::F32)?);
            }
        }
        Ok(state)
    }

    /// Returns the state after one more token. It runs eagerly and traced alike.
    fn step(&self, state: &[Tensor]) -> Result<Vec<Tensor>> {
        let (token, position) = (&state[0], &state[1]);
        let mut caches = Vec::new();
        let mut x = with_device(&self.first, || self.embedding.gather(token, 0))?;
        let next = with_device(&self.first, || position + 1)?;
        for (layer, cache) in self.layers.iter().zip(state[2..].chunks(2)) {
            let out = with_device(&layer.device, || layer.forward(&x, position, cache));
            let [after, keys, values] = out?;
            x = after;
            caches.extend([keys, values]);
        }
        let token = with_device(&self.last, || {
            let h = x.rms_normalization(&self.norm, None, None)?;
            h.matmul(&self.head)?.argmax(-1)
        })?;
        Ok([vec![token, next], caches].concat())
    }
}

async fn values(state: &[Tensor]) -> Result<Vec<HostTensor>> {
    let mut values = Vec::new();
    for tensor in state {
        values.push(tensor.fetch().await?);
    }
    Ok(values)
}

pub async fn run(cluster: &Cluster) -> Result<()> {
    let devices = common::devices(cluster, 2).await?;
    let (a, b) = (&devices[0], &devices[1]);
    let model = Arc::new(Model::new(a, b)?);

    // The first tokens are computed op by op, to compare with.
    let mut state = model.start()?;
    let mut eager = Vec::new();
    for _ in 0..8 {
        state = model.step(&state)?;
        eager.push(values(&state).await?);
    }

    // The same runs as one function, which may reuse the buffers of all its operands.
    let body = model.clone();
    let mut step = cluster.function(move |state| body.step(state));
    state = model.start()?;
    for operand in 0..state.len() {
        step = step.donate(operand)?;
    }
    for part in step.plan(&state).await?.parts {
        println!("{} runs {} nodes", part.name, part.nodes);
    }
    let (mut tokens, mut held) = (vec![], vec![]);
    for i in 0..100 {
        state = step.call(&state).await?;
        if let Some(eager) = eager.get(i) {
            let traced = values(&state).await?;
            assert!(traced == *eager, "step {i} has other bits than its ops");
        }
        tokens.extend(state[0].fetch::<Vec<i64>>().await?);
        held.push(cluster.memory().await?.iter().map(|h| h.bytes).sum::<u64>());
    }
    println!("tokens: {tokens:?}");
    println!("{} KiB held after each step", held[0] >> 10);
    assert!(held.iter().all(|bytes| *bytes == held[0]), "{held:?}");
    assert_eq!(step.traces(), 1);
    Ok(())
}
