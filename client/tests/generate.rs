//! Generation with language models on embedded clusters, against the tokens that ONNX Runtime generates.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use convoke::graph::Function;
use convoke::{
    Cluster, Code, DType, Decoder, Dim, Embedded, EndReason, GenerateOptions, Phase, Sampling,
    TensorType,
};

const MODELS: [&str; 5] = ["cached", "grouped", "merged", "whole", "windowed"];

fn fixture(model: &str, name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures/language")
        .join(model)
        .join(name)
}

/// Prompts, and the tokens that ONNX Runtime generates after them.
fn references(model: &str) -> Vec<(Vec<u32>, Vec<u32>)> {
    let text = std::fs::read(fixture(model, "tokens.json")).unwrap();
    let runs: Vec<serde_json::Value> = serde_json::from_slice(&text).unwrap();
    let ids = |v: &serde_json::Value| serde_json::from_value(v.clone()).unwrap();
    let run = |r: &serde_json::Value| (ids(&r["prompt"]), ids(&r["tokens"]));
    runs.iter().map(run).collect()
}

async fn cluster(workers: usize) -> Cluster {
    Embedded::new(workers).threads(1).start().await.unwrap()
}

async fn decoder(cluster: &Cluster, model: &str, workers: usize) -> Decoder {
    let path = fixture(model, "model.onnx");
    let model = cluster.load(path).workers(workers as u32).await.unwrap();
    model.decoder().unwrap()
}

fn greedy(count: usize) -> GenerateOptions {
    GenerateOptions {
        max_new_tokens: count,
        ..GenerateOptions::default()
    }
}

async fn generated(
    decoder: &Decoder,
    prompt: &[u32],
    options: GenerateOptions,
) -> (Vec<u32>, Option<EndReason>) {
    let mut generation = decoder.generate(prompt, options).unwrap();
    let mut tokens = vec![];
    while let Some(token) = generation.next().await.unwrap() {
        tokens.push(token);
    }
    assert_eq!(generation.tokens(), [prompt, &tokens].concat());
    (tokens, generation.ended())
}

#[tokio::test]
async fn the_tokens_are_those_of_onnx_runtime_on_any_number_of_workers() {
    for workers in [1, 2, 3, 5] {
        let cluster = cluster(workers).await;
        for model in MODELS {
            let decoder = decoder(&cluster, model, workers).await;
            for (prompt, expected) in references(model) {
                let (tokens, ended) = generated(&decoder, &prompt, greedy(expected.len())).await;
                assert_eq!(tokens, expected, "{model} on {workers} workers");
                assert_eq!(ended, Some(EndReason::MaxTokens));
            }
            let plan = decoder.plan().await.unwrap();
            // A branch runs on one worker.
            assert!(plan.parts.len() == workers || model == "merged", "{model}");
            assert!(plan.parts.iter().all(|p| p.nodes > 0), "{model}");
        }
        cluster.shutdown().await;
    }
}

#[tokio::test]
async fn a_seed_gives_the_same_tokens_on_any_number_of_workers() {
    let drawn = |seed| GenerateOptions {
        sampling: Sampling {
            temperature: 1.5,
            top_k: 50,
            top_p: 0.9,
            seed,
        },
        ..greedy(20)
    };
    let mut all = vec![];
    for workers in [1, 2, 3, 5] {
        let cluster = cluster(workers).await;
        for model in MODELS {
            let decoder = decoder(&cluster, model, workers).await;
            let (one, _) = generated(&decoder, &[65, 66], drawn(1)).await;
            let (again, _) = generated(&decoder, &[65, 66], drawn(1)).await;
            let (other, _) = generated(&decoder, &[65, 66], drawn(2)).await;
            assert_eq!(one, again);
            assert_ne!(one, other);
            all.push(one);
        }
        cluster.shutdown().await;
    }
    for others in all.chunks(MODELS.len()) {
        assert_eq!(others, &all[..MODELS.len()]);
    }
}

#[tokio::test]
async fn a_prompt_in_chunks_gives_the_same_tokens() {
    let cluster = cluster(2).await;
    for model in ["cached", "grouped", "windowed"] {
        let load = cluster.load(fixture(model, "model.onnx")).workers(2);
        let decoder = load.dim("sequence_length", 4).await.unwrap().decoder();
        let decoder = decoder.unwrap();
        for (prompt, expected) in references(model) {
            let (tokens, _) = generated(&decoder, &prompt, greedy(expected.len())).await;
            assert_eq!(tokens, expected, "{model}");
        }
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn sequences_share_a_plan_and_leave_nothing_behind() {
    let cluster = cluster(2).await;
    let plans = Arc::new(AtomicUsize::new(0));
    let counted = plans.clone();
    let load = cluster.load(fixture("cached", "model.onnx")).workers(2);
    let load = load.on_progress(move |phase| {
        counted.fetch_add((phase == Phase::Planning).into(), Relaxed);
    });
    let decoder = load.await.unwrap().decoder().unwrap();
    let all = references("cached");
    let mut running: Vec<_> = all
        .iter()
        .map(|(prompt, expected)| decoder.generate(prompt, greedy(expected.len())).unwrap())
        .collect();
    for i in 0..all[0].1.len() {
        for (generation, (_, expected)) in running.iter_mut().zip(&all) {
            assert_eq!(generation.next().await.unwrap(), Some(expected[i]));
        }
    }
    // One plan says where the caches are computed, the other one runs.
    assert!(plans.load(Relaxed) <= 2);
    assert!(!cluster.memory().await.unwrap().is_empty());
    drop(running);
    assert_eq!(cluster.memory().await.unwrap(), []);
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_longer_sequence_plans_anew() {
    let cluster = cluster(2).await;
    for model in MODELS {
        let decoder = decoder(&cluster, model, 2).await;
        let mut all = references(model);
        // The shortest prompt comes first, and few tokens after it.
        all.reverse();
        for ((prompt, expected), count) in all.iter().zip([4, 24, 24]) {
            let (tokens, _) = generated(&decoder, prompt, greedy(count)).await;
            assert_eq!(tokens, expected[..count], "{model}");
        }
    }
    cluster.shutdown().await;
}

/// Begins a sequence of at most this many tokens, and returns what its plan needs.
async fn needed(decoder: &Decoder, tokens: usize) -> convoke::Result<u64> {
    let mut generation = decoder.generate(&[1, 2], greedy(tokens))?;
    generation.next().await?;
    let parts = decoder.plan().await.unwrap().parts;
    Ok(parts.iter().map(|p| p.needed_bytes).sum())
}

#[tokio::test]
async fn a_plan_that_no_sequence_uses_makes_room_for_the_next() {
    let roomy = cluster(1).await;
    let sequences = decoder(&roomy, "whole", 1).await;
    let most = needed(&sequences, 5000).await.unwrap();
    assert!(most > 512 << 20, "{most}");
    roomy.shutdown().await;
    // The plan fits once, but not twice.
    let small = Embedded::new(1).threads(1).memory(most + most / 2);
    let small = small.start().await.unwrap();
    let sequences = decoder(&small, "whole", 1).await;
    for tokens in [4400, 4700, 5000] {
        needed(&sequences, tokens).await.unwrap();
    }
    small.shutdown().await;
}

#[tokio::test]
async fn a_sequence_ends_at_a_stop_token_and_at_the_bounds() {
    let cluster = cluster(1).await;
    let (prompt, expected) = references("cached").remove(0);
    let whole = decoder(&cluster, "cached", 1).await;
    let stop = GenerateOptions {
        stop: vec![9999, expected[5]],
        ..greedy(24)
    };
    let end = expected.iter().position(|t| *t == expected[5]).unwrap();
    let (tokens, ended) = generated(&whole, &prompt, stop).await;
    assert_eq!(
        (tokens, ended),
        (expected[..end].to_vec(), Some(EndReason::Stop(expected[5])))
    );
    assert!(generated(&whole, &prompt, greedy(0)).await.0.is_empty());

    // All tokens of a sequence but the last have been fed.
    for (model, axis, bound) in [
        ("cached", "past_sequence_length + sequence_length", 34),
        ("cached", "past_sequence_length", 33),
        ("whole", "sequence_length", 34),
    ] {
        let (prompt, expected) = references(model).remove(0);
        let load = cluster.load(fixture(model, "model.onnx")).dim(axis, bound);
        let bounded = load.await.unwrap().decoder().unwrap();
        assert_eq!(bounded.longest(), Some(35));
        let (tokens, ended) = generated(&bounded, &prompt, greedy(24)).await;
        assert_eq!(
            (&tokens[..], ended),
            (&expected[..5], Some(EndReason::Full))
        );
        let e = bounded.generate(&[1; 35], greedy(1)).err().unwrap();
        assert_eq!(e.code, Code::InvalidInput);
        assert!(
            e.message.starts_with("the prompt has 35 tokens, but "),
            "{e}"
        );
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_dropped_call_leaves_the_sequence_as_it_was() {
    let cluster = cluster(2).await;
    let decoder = decoder(&cluster, "cached", 2).await;
    let (prompt, expected) = references("cached").remove(1);
    let mut generation = decoder.generate(&prompt, greedy(6)).unwrap();
    let mut tokens = vec![];
    for _ in 0..6 {
        // The future is polled once, and given up unless it is ready by then.
        let next = futures::FutureExt::now_or_never(generation.next());
        tokens.push(match next {
            Some(token) => token.unwrap().unwrap(),
            None => generation.next().await.unwrap().unwrap(),
        });
    }
    assert_eq!(tokens, expected[..6]);
    cluster.shutdown().await;
}

#[tokio::test]
async fn prompts_that_do_not_fit_are_refused() {
    let cluster = cluster(1).await;
    let decoder = decoder(&cluster, "grouped", 1).await;
    assert_eq!(decoder.vocabulary(), Some(272));
    let cold = Sampling {
        temperature: -1.,
        ..Sampling::default()
    };
    let bad = GenerateOptions {
        sampling: cold,
        ..greedy(1)
    };
    for (prompt, options, code, message) in [
        (
            &[][..],
            greedy(1),
            Code::InvalidInput,
            "the prompt has no tokens",
        ),
        (
            &[1, 272],
            greedy(1),
            Code::InvalidInput,
            "token 1 of the prompt is 272, but the model knows 272 tokens, 0..272",
        ),
        (
            &[1],
            bad,
            Code::InvalidArgument,
            "a temperature of -1 makes no sense",
        ),
    ] {
        let e = decoder.generate(prompt, options).err().unwrap();
        assert_eq!((e.code, &*e.message), (code, message));
    }
    cluster.shutdown().await;
}

/// A function with these parameters, of which each result is one.
fn of(params: &[(&str, DType, &[&str])], results: &[(&str, usize)]) -> Function {
    let mut f = Function {
        name: "made".into(),
        ..Function::default()
    };
    for (name, dtype, dims) in params {
        let dim = |d: &&str| d.parse::<i64>().map_or_else(|_| Dim::sym(d), Dim::from);
        let ty = TensorType::new(*dtype, dims.iter().map(dim).collect());
        let value = f.add_value(*name, ty);
        f.params.push(value);
    }
    let result = |(name, param): &(&str, usize)| ((*name).to_owned(), f.params[*param]);
    f.results = results.iter().map(result).collect();
    f
}

#[tokio::test]
async fn what_is_no_decoder_is_refused_with_all_reasons() {
    use DType::{F32, I64};
    let cluster = cluster(1).await;
    let logits: (&str, DType, &[&str]) = ("past_x", F32, &["b", "s", "9"]);
    let refused = async |params: &[(&str, DType, &[&str])], results: &[(&str, usize)]| {
        let made = cluster.load_function(of(params, results), vec![]).await;
        let e = made.unwrap().decoder().err().unwrap();
        assert_eq!(e.code, Code::InvalidModel);
        e.message
    };
    let message = refused(
        &[
            ("input_ids", F32, &["b", "s"]),
            ("attention_mask", I64, &["b", "16"]),
            ("token_type_ids", I64, &["b", "s"]),
            ("past.0.key", F32, &["b", "2", "p", "8"]),
        ],
        &[("y", 1), ("z", 2)],
    );
    assert_eq!(
        message.await,
        "model 'made' is no decoder: input 'input_ids' is f32[b, s], expected i64 or i32 [1, tokens]; input \
         'token_type_ids' (i64[b, s]) is unknown; input 'past.0.key' (f32[b, 2, p, 8]) has no output 'present.0.key'; \
         input 'attention_mask' always has 16 tokens; there is no output 'logits'"
    );
    let message = refused(&[logits], &[("present_x", 0), ("logits", 0)]).await;
    assert_eq!(
        message,
        "model 'made' is no decoder: there is no input 'input_ids'"
    );
    let path = fixture("../digits", "model.onnx");
    let e = cluster.load(path).await.unwrap().decoder().err().unwrap();
    assert!(
        e.message
            .contains("input 'image' (f32[batch, 1, 8, 8]) is unknown"),
        "{e}"
    );
    assert!(e.advice.contains("past_key_values.N.key"), "{e}");
    cluster.shutdown().await;
}
