//! `convoke generate`, and a sequence whose workers are killed while it grows.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use crate::common;

use std::io::Write;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use common::cluster::Processes;
use common::{Scratch, convoke, finish, fixture, run};
use convoke::{GenerateOptions, Phase};
use serde_json::Value;

/// The prompts of a model, and what ONNX Runtime generates after them.
fn references(model: &str) -> Vec<Value> {
    let path = fixture(&format!("language/{model}/tokens.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The arguments that generate with a model.
fn arguments(model: &str, more: &[&str]) -> Vec<String> {
    let path = fixture(&format!("language/{model}/model.onnx"));
    let tokenizer = fixture("language/tokenizer.json");
    let mut all: Vec<String> = vec![
        "generate".into(),
        path.display().to_string(),
        "--tokenizer".into(),
        tokenizer.display().to_string(),
    ];
    all.extend(more.iter().map(|a| (*a).to_owned()));
    all
}

#[test]
fn the_text_is_that_of_onnx_runtime() {
    for (model, local) in [("cached", "2"), ("grouped", "1"), ("whole", "3")] {
        for reference in references(model) {
            let prompt = reference["text"].as_str().unwrap();
            let flags = ["--prompt", prompt, "--max-tokens", "24", "--local", local];
            let args = arguments(model, &flags);
            let printed = run(args.iter().map(String::as_str).chain(["--json"])).expect(0);
            let printed = printed.json();
            assert_eq!(printed["tokens"], reference["tokens"]);
            assert_eq!(printed["text"], reference["generated"]);
            assert_eq!(printed["ended"], "max_tokens");
            let text = reference["generated"].as_str().unwrap();
            let shown = run(&args).expect(0);
            // No terminal obeys what is in it.
            assert_eq!(shown.stdout, format!("{text}\n"));
            assert!(
                shown.stderr.contains("24 tokens after "),
                "{}",
                shown.stderr
            );
        }
    }
}

#[test]
fn stop_tokens_come_from_the_flags_and_from_beside_the_model() {
    let scratch = Scratch::new("stops");
    let folder = scratch.path("model/onnx");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["cached/model.onnx", "tokenizer.json"] {
        let to = folder.join(name.rsplit('/').next().unwrap());
        std::fs::copy(fixture("language").join(name), to).unwrap();
    }
    let reference = references("cached").remove(1);
    let tokens = ids(&reference["tokens"]);
    // The configuration of the whole lies above the folder `onnx`.
    let config = format!("{{\"model\": {{\"eos_token_id\": [9, {}]}}}}", tokens[8]);
    std::fs::write(scratch.path("model/genai_config.json"), config).unwrap();
    let model = folder.join("model.onnx").display().to_string();
    let ends = |more: &[&str], at: usize| {
        let mut child = convoke(
            ["generate", &*model, "--prompt-file", "-", "--json"]
                .iter()
                .chain(more),
        )
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
        let mut prompt = child.stdin.take().unwrap();
        let text = reference["text"].as_str().unwrap();
        prompt.write_all(text.as_bytes()).unwrap();
        drop(prompt);
        let printed = finish(child).expect(0).json();
        assert_eq!(ids(&printed["tokens"]), tokens[..at]);
        assert_eq!(printed["ended"], "stop");
    };
    ends(&[], 8);
    ends(&["--stop", &tokens[3].to_string()], 3);
    // This is the text of the third token.
    ends(&["--stop", "A"], 2);
}

#[test]
fn a_text_ends_where_the_model_knows_no_more_positions() {
    let scratch = Scratch::new("positions");
    for name in ["cached/model.onnx", "tokenizer.json"] {
        let to = scratch.path(name.rsplit('/').next().unwrap());
        std::fs::copy(fixture("language").join(name), to).unwrap();
    }
    let model = scratch.path("model.onnx").display().to_string();
    let args = |prompt: &str| {
        let fixed = [
            "generate",
            &model,
            "--max-tokens",
            "900",
            "--json",
            "--prompt",
            prompt,
        ];
        fixed.map(str::to_owned)
    };
    // The fixture knows 64.
    let failed = run(args("The devices")).expect(1);
    assert!(
        failed
            .stderr
            .contains("the model may know no more positions"),
        "{}",
        failed.stderr
    );
    let text = "The devices of many machines. ".repeat(9);
    let long = run(args(&text)).expect(1);
    assert!(
        long.stderr.contains("the model may know fewer positions"),
        "{}",
        long.stderr
    );
    std::fs::write(scratch.path("config.json"), "{\"n_positions\": 64}").unwrap();
    let printed = run(args("The devices")).expect(0).json();
    assert_eq!(printed["ended"], "positions");
    let all = printed["prompt_tokens"].as_u64().unwrap() as usize + ids(&printed["tokens"]).len();
    assert_eq!(all, 65);
    let long = run(args(&text)).expect(1);
    assert!(
        long.stderr.contains("and the model knows 64 positions"),
        "{}",
        long.stderr
    );
}

#[test]
fn what_makes_no_sense_is_one_error() {
    let digits = fixture("digits/model.onnx").display().to_string();
    let tokenizer = fixture("language/tokenizer.json").display().to_string();
    let model = fixture("language/cached/model.onnx").display().to_string();
    for (args, code, message) in [
        (
            arguments("cached", &[]),
            2,
            "one of --prompt TEXT and --prompt-file FILE",
        ),
        (
            arguments("cached", &["--prompt", "a", "--prompt-file", "b"]),
            2,
            "one of --prompt TEXT and --prompt-file FILE",
        ),
        (
            arguments("cached", &["--prompt", "a", "--stop", "no such token"]),
            1,
            "--stop 'no such token' is no token of the tokenizer",
        ),
        (
            arguments("cached", &["--prompt", ""]),
            1,
            "the prompt has no tokens",
        ),
        (
            arguments("cached", &["--prompt", "a", "--top-p", "0"]),
            1,
            "top_p is 0, expected more than 0 and at most 1",
        ),
        (
            arguments("cached", &["--prompt", "a", "--temperature", "-1"]),
            1,
            "a temperature of -1 makes no sense",
        ),
        (
            arguments(
                "cached",
                &["--prompt", "abcd", "--dim", "past_sequence_length=2"],
            ),
            1,
            "the prompt has 4 tokens, but 'decoder' is loaded for 3 at most",
        ),
        (
            [
                "generate",
                &digits,
                "--tokenizer",
                &tokenizer,
                "--prompt",
                "a",
            ]
            .map(String::from)
            .into(),
            1,
            "is no decoder: input 'image' (f32[batch, 1, 8, 8]) is unknown",
        ),
        (
            ["generate", &model, "--tokenizer", &model, "--prompt", "a"]
                .map(String::from)
                .into(),
            1,
            "model.onnx is no tokenizer: ",
        ),
        (
            ["generate", &model, "--prompt", "a"]
                .map(String::from)
                .into(),
            1,
            "there is no tokenizer.json beside ",
        ),
    ] {
        let failed = run(args).expect(code);
        let errors = failed.stderr.lines().filter(|l| l.starts_with("error: "));
        assert_eq!(errors.count(), 1, "{failed:?}");
        assert!(failed.stderr.contains(message), "{failed:?}");
        assert_eq!(failed.stdout, "");
    }
}

#[tokio::test]
async fn a_sequence_whose_workers_are_killed_has_the_same_tokens() {
    for model in ["cached", "grouped", "whole", "windowed"] {
        let mut processes = Processes::start(&format!("generate-{model}"), 3, "1GiB");
        let cluster = processes.connect().await;
        let reruns = Arc::new(Mutex::new(vec![]));
        let told = reruns.clone();
        let path = fixture(&format!("language/{model}/model.onnx"));
        let load = cluster.load(path).workers(3).on_progress(move |phase| {
            if let Phase::Rerun(rerun) = phase {
                told.lock().unwrap().push(rerun);
            }
        });
        let decoder = load.await.unwrap().decoder().unwrap();
        let reference = references(model).remove(0);
        let (prompt, expected) = (ids(&reference["prompt"]), ids(&reference["tokens"]));
        let options = GenerateOptions {
            max_new_tokens: expected.len(),
            ..GenerateOptions::default()
        };
        let mut generation = decoder.generate(&prompt, options).unwrap();
        let mut tokens = vec![];
        while let Some(token) = generation.next().await.unwrap() {
            tokens.push(token);
            if [5, 10].contains(&tokens.len()) {
                // A worker that holds a cache is killed, where there are any.
                let held = cluster.memory().await.unwrap();
                let device = held.first().map(|h| h.device.clone());
                let plan = decoder.plan().await.unwrap();
                let named = |w: &String| device.as_ref().is_none_or(|d| d.starts_with(w));
                let mut names = plan.parts.into_iter().map(|p| p.name);
                let name = names.find(named).unwrap();
                processes.kill_worker(name[1..].parse().unwrap());
            }
        }
        assert_eq!(tokens, expected, "{model}");
        let reruns = std::mem::take(&mut *reruns.lock().unwrap());
        // A loss that is noticed before the next step begins has nothing run again.
        let left: Vec<usize> = reruns.iter().map(|r| r.workers.len()).collect();
        assert!(left.is_sorted_by(|a, b| a > b), "{reruns:#?}");
        assert!(left.iter().all(|workers| *workers < 3), "{reruns:#?}");
        assert_eq!(decoder.plan().await.unwrap().parts.len(), 1);
        cluster.shutdown().await;
    }
}

#[test]
fn text_comes_from_a_cluster() {
    let processes = Processes::start("generate-connect", 2, "1GiB");
    let reference = references("grouped").remove(2);
    let token = processes.client_token();
    let prompt = reference["text"].as_str().unwrap();
    let flags = [
        "--prompt",
        prompt,
        "--max-tokens",
        "24",
        "--workers",
        "2",
        "--json",
    ];
    let at = ["--connect", &processes.address, "--token-file", &token];
    let args = arguments("grouped", &[&flags[..], &at[..]].concat());
    let printed = run(args).expect(0).json();
    assert_eq!(printed["text"], reference["generated"]);
    assert_eq!(printed["workers"], serde_json::json!(["w0", "w1"]));
}
