//! `convoke generate`: goes on from a text with a language model, and prints the new text as it comes.

mod words;

use std::time::Duration;

use convoke::{Cluster, Code, EndReason, Error, GenerateOptions, Phase, Sampling};
use serde::Serialize;
use tokio::time::Instant;

use crate::args::GenerateArgs;
use crate::commands::cluster::{exactly, with_cluster};
use crate::commands::model::{builder, pinned};
use crate::commands::run::{Attempt, Reruns};
use crate::text::failure::Failure;
use crate::text::output;
use crate::text::progress::Progress;
use crate::text::values::millis;

use words::GrowingText;

/// The output of `generate --json`.
#[derive(Serialize)]
struct Report {
    model: String,
    /// The new text.
    text: String,
    /// The ids of the new tokens.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Why the text ended.
    ended: &'static str,
    /// The names of the workers.
    workers: Vec<String>,
    /// The time from the start of the generation, which plans and loads the model, to the first token; 0 if there is
    /// none.
    first_token_ms: f64,
    /// The rate of the tokens after the first; 0 if there are none.
    tokens_per_second: f64,
    /// How often the text was computed again, and why.
    attempts: Vec<Attempt>,
}

/// The prompt and the options of one generation.
struct Request {
    prompt: Vec<u32>,
    options: GenerateOptions,
    /// Whether fewer tokens are asked for than the flags do, since the model knows no more positions.
    cut_short: bool,
}

/// Generates text and reports how.
pub async fn generate(args: GenerateArgs, json: bool) -> Result<(), Failure> {
    let text = words::prompt(&args)?;
    let tokenizer = words::tokenizer(&args)?;
    let prompt = words::encoded(&tokenizer, &text)?;
    let asked = args.max_tokens as usize;
    let room = match words::positions(&args.load.model)? {
        Some(positions) if prompt.len() > positions => {
            let given = prompt.len();
            let msg =
                format!("the prompt has {given} tokens, and the model knows {positions} positions");
            let advice =
                "shorten the prompt; the number is that of the configuration beside the model";
            return Err(Error::new(Code::InvalidInput, msg).advise(advice).into());
        }
        // The last token is not fed.
        Some(positions) => (positions - prompt.len()).saturating_add(1),
        None => usize::MAX,
    };
    let request = Request {
        prompt,
        cut_short: room < asked,
        options: GenerateOptions {
            max_new_tokens: asked.min(room),
            stop: words::stops(&args, &tokenizer)?,
            sampling: Sampling {
                temperature: args.temperature,
                top_k: args.top_k as usize,
                top_p: args.top_p,
                seed: args.seed,
            },
            retry: args.retry.into(),
        },
    };
    let text = GrowingText::after(&tokenizer, &request.prompt);
    let report = with_cluster(&args.cluster, json, async |cluster| {
        run(cluster, &args, request, text, json).await
    })
    .await?;
    if json {
        return output::json(&report);
    }
    output::note(&summary(&report));
    Ok(())
}

async fn run(
    cluster: &Cluster,
    args: &GenerateArgs,
    request: Request,
    mut text: GrowingText<'_>,
    json: bool,
) -> Result<Report, Failure> {
    let (progress, reruns) = (Progress::new(), Reruns::default());
    let b = builder(cluster, &args.load, 1, std::iter::empty())?;
    let mut b = pinned(b, &args.load).retry(args.retry.into());
    if let Some(n) = exactly(&args.cluster) {
        b = b.workers(n);
    }
    let (told, noted) = (progress.clone(), reruns.clone());
    let model = b.on_progress(move |phase: Phase| {
        if let Phase::Rerun(rerun) = &phase {
            noted.all().push(rerun.clone());
        }
        told.phase(phase);
    });
    let decoder = model.await?.decoder()?;
    let cut_short = request.cut_short;
    let prompt_tokens = request.prompt.len();
    let mut generation = decoder.generate(&request.prompt, request.options)?;
    let (start, mut whole) = (Instant::now(), String::new());
    let mut show = |part: String| -> Result<(), Failure> {
        progress.clear();
        whole.push_str(&part);
        match json || part.is_empty() {
            true => Ok(()),
            false => output::stream(&part),
        }
    };
    let (mut tokens, mut first, mut last) = (Vec::new(), Duration::ZERO, Duration::ZERO);
    let ended = loop {
        match generation.next().await {
            Ok(Some(token)) => {
                last = start.elapsed();
                if tokens.is_empty() {
                    first = last;
                }
                tokens.push(token);
                show(text.push(token)?)?;
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    // Print the rest of the text before any error is reported.
    show(text.rest()?)?;
    if !json && !whole.is_empty() && !whole.ends_with('\n') {
        output::stream("\n")?;
    }
    ended?;
    let plan = decoder.plan().await;
    let parts = plan.iter().flat_map(|p| &p.parts);
    let later = last.saturating_sub(first).as_secs_f64();
    let attempts = std::mem::take(&mut *reruns.all());
    Ok(Report {
        model: args.load.model.display().to_string(),
        text: whole,
        prompt_tokens,
        ended: match generation.ended() {
            Some(EndReason::Stop(_)) => "stop",
            Some(EndReason::Full) => "full",
            Some(EndReason::MaxTokens) if cut_short => "positions",
            Some(EndReason::MaxTokens) | None => "max_tokens",
        },
        workers: parts.map(|p| p.name.clone()).collect(),
        first_token_ms: first.as_secs_f64() * 1e3,
        tokens_per_second: match later > 0. {
            true => tokens.len().saturating_sub(1) as f64 / later,
            false => 0.,
        },
        tokens,
        attempts: attempts.into_iter().map(Attempt::from).collect(),
    })
}

/// The line that tells how the text was generated.
fn summary(r: &Report) -> String {
    let why = match r.ended {
        "stop" => "a stop token came",
        "full" => "the bounds of the model's axes are reached; a larger --dim lets it go on",
        "positions" => "the model knows no more positions, as the configuration beside it says",
        _ => "that many were asked for; --max-tokens N sets how many",
    };
    let (count, s) = (r.tokens.len(), if r.tokens.len() == 1 { "" } else { "s" });
    let mut line = format!("{count} token{s} after {} of the prompt", r.prompt_tokens);
    if count > 0 {
        line.push_str(&format!(": the first in {}", millis(r.first_token_ms)));
    }
    if count > 1 {
        line.push_str(&format!(", then {:.1} per second", r.tokens_per_second));
    }
    if !r.workers.is_empty() {
        line.push_str(&format!(", on {}", r.workers.join(", ")));
    }
    format!("{line} ({why})")
}
