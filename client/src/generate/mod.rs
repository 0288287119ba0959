//! Generation with a language model: tokens in, new tokens out one by one, caches on the workers.
//!
//! ```text
//! Model ── Layout ── graph::of_steps ──> Placement: a plan, and the homes of the caches
//!                                            │
//! Generation: tokens so far ── new ids ── step ── caches after it, on their workers
//!                  ^                         │
//!                  └─ Sampling ── logits of the last token
//! ```
//!
//! Invariants
//! 1. The calls of a sequence depend on its tokens alone: first the prompt, in chunks of a size that the model decides,
//!    then each new token by itself. A sequence that is computed again, since a worker was lost, runs the same calls.
//!    So it has the same bits even with a model that computes several tokens at once otherwise than one by one, as
//!    those do that quantise by the largest number of a call.
//! 2. A step takes the caches. Where it fails, or its future is dropped, the next one begins with the first token.
//! 3. Only the logits of the last token leave their worker.

mod graph;
mod layout;
mod placement;
mod sampling;

use std::sync::Arc;

use convoke_common::error::{Code, Error, Result};
use convoke_common::rpc::PlanSummary;
use convoke_graph::Tensor as HostTensor;
use convoke_graph::graph::Function;

pub use self::sampling::Sampling;

use self::layout::Layout;
use self::placement::{AttemptFailure, Placement, Room};
use crate::calls::attempts::{RERUNS, concluded, is_loss};
use crate::calls::options::Retry;
use crate::calls::rerun::Rerun;
use crate::calls::worker_process::WorkerProcess;
use crate::cluster::callbacks::Progress;
use crate::model::Model;
use crate::model::phase::Phase;
use crate::tensor::Tensor;

/// Plans are made for a multiple of this many tokens, so that a longer prompt seldom plans anew.
const ROUNDING: usize = 32;

/// A language model that generates tokens, made by [`Model::decoder`]. Its clones share it, and its sequences share its
/// plan and weights. Sequences that run at once take turns beyond [`crate::ModelBuilder::in_flight`] of them.
#[derive(Clone)]
pub struct Decoder(Arc<Shared>);

struct Shared {
    model: Model,
    layout: Layout,
    /// The function of a step.
    steps: Arc<Function>,
    /// The most tokens that one call may take, where the model or its bounds say it.
    chunk: Option<usize>,
    /// The most tokens that may be fed for one sequence, where the model's bounds say it.
    longest: Option<usize>,
    /// The placement that new sequences use.
    current: tokio::sync::Mutex<Option<Arc<Placement>>>,
}

/// The options of a generation: sampling, and when it ends.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens that are generated.
    pub max_new_tokens: usize,
    /// Tokens that end the sequence. The token that ends the sequence is not a part of it.
    pub stop: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// What happens when a worker is lost. With [`Retry::On`] the sequence is computed again on the workers that are
    /// left, twice at most before the next token comes, and goes on with the tokens that it would have had. With
    /// [`Retry::Off`] the loss is the error of [`Generation::next`].
    pub retry: Retry,
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions {
            max_new_tokens: 128,
            stop: vec![],
            sampling: Sampling::default(),
            retry: Retry::On,
        }
    }
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// This stop token came.
    Stop(u32),
    /// It has as many new tokens as were asked for.
    MaxTokens,
    /// It is as long as the bounds of the model's axes let it become.
    Full,
}

/// A sequence that grows, made by [`Decoder::generate`]. Dropping it frees its caches.
pub struct Generation {
    decoder: Decoder,
    options: GenerateOptions,
    /// The prompt and the tokens after it.
    tokens: Vec<u32>,
    /// How many of the tokens are the prompt.
    prompt: usize,
    /// The most tokens that there may be.
    most: usize,
    room: Room,
    /// How far the tokens are computed; nothing before the first step, and after one that failed or was given up.
    position: Option<Position>,
    /// Worker processes that were lost meanwhile.
    avoid: Vec<WorkerProcess>,
    /// A loss that the next placement makes up for: the number of the attempt, and the cause.
    lost: Option<(u32, Error)>,
    ended: Option<EndReason>,
}

/// How far a sequence is computed, and where.
struct Position {
    placement: Arc<Placement>,
    caches: Vec<Tensor>,
    /// How many tokens the caches hold.
    fed: usize,
}

impl Model {
    /// Makes a decoder of a language model: of one that was exported with caches of keys and values, or without any.
    ///
    /// The model's inputs are known by their names: `input_ids`, and where it has them `attention_mask`, `position_ids`, and
    /// `num_logits_to_keep` or `logits_to_keep`, which is given the number 1. Each other input that begins with `past` is
    /// a cache, which goes on in the output of the same name with `present` for `past` or `past_key_values`. An input
    /// `use_cache_branch` is whether the caches hold anything: some exports have two branches, one for the first step and
    /// one for the others, and choose by it. The output `logits`, or the only one that is no cache, has a row for each
    /// token. Batches are of one sequence.
    ///
    /// A model without caches computes the whole sequence for each new token.
    ///
    /// The bounds that the model was loaded with hold for its sequences: [`crate::ModelBuilder::dim`] on the axis of
    /// the past or of all tokens bounds their length, and on the axis of new tokens it bounds how much of a prompt one
    /// call takes, and so the memory for it. Other options of the builder hold as well; values have the bits of the
    /// model's own calls.
    ///
    /// # Errors
    /// Fails with `InvalidModel` where the model is no decoder; the message names everything that does not fit.
    pub fn decoder(&self) -> Result<Decoder> {
        let model = &self.inner.function;
        let layout = Layout::of(model)?;
        let steps = Arc::new(graph::of_steps(model, &layout)?);
        let (chunk, longest) = layout.limits(model, &self.inner.bounds);
        Ok(Decoder(Arc::new(Shared {
            model: self.clone(),
            layout,
            steps,
            chunk,
            longest,
            current: tokio::sync::Mutex::default(),
        })))
    }
}

impl Decoder {
    /// The number of tokens that the model knows: ids are below it. `None` where the model does not say.
    pub fn vocabulary(&self) -> Option<usize> {
        self.0.layout.vocabulary
    }

    /// The most tokens that a sequence may have, where the bounds of the model's axes say it.
    pub fn longest(&self) -> Option<usize> {
        // The last token is not fed.
        self.0.longest.map(|fed| fed.saturating_add(1))
    }

    /// The plan by which the last sequence ran, if one has begun.
    pub async fn plan(&self) -> Option<PlanSummary> {
        let current = self.0.current.lock().await;
        current.as_ref().and_then(|p| p.plan())
    }

    /// Begins a sequence after these tokens. Nothing is computed until the first [`Generation::next`].
    ///
    /// # Errors
    /// Fails where the prompt is empty or longer than the model's bounds allow, where a token is outside of the
    /// vocabulary, and where the sampling makes no sense.
    pub fn generate(&self, prompt: &[u32], options: GenerateOptions) -> Result<Generation> {
        options.sampling.check()?;
        let invalid = |msg: String| Error::new(Code::InvalidInput, msg);
        if prompt.is_empty() {
            return Err(invalid("the prompt has no tokens".into())
                .advise("begin with the token that the model begins texts with"));
        }
        let size = self.0.layout.vocabulary.unwrap_or(usize::MAX);
        if let Some(at) = prompt.iter().position(|id| *id as usize >= size) {
            let id = prompt[at];
            let msg = format!(
                "token {at} of the prompt is {id}, but the model knows {size} tokens, 0..{size}"
            );
            return Err(invalid(msg).advise("use the tokenizer that belongs to the model"));
        }
        let longest = self.0.longest.unwrap_or(usize::MAX);
        if prompt.len() > longest {
            let (given, of) = (prompt.len(), &self.0.model.inner.function.name);
            let msg = format!(
                "the prompt has {given} tokens, but '{of}' is loaded for {longest} at most"
            );
            return Err(invalid(msg).advise(
                "shorten the prompt, or raise the bounds of the model's axes (`dim` of the load, --dim)",
            ));
        }
        // The last token is not fed.
        let asked = prompt.len().saturating_add(options.max_new_tokens);
        let most = asked.min(longest.saturating_add(1));
        let fed = most.saturating_sub(1).max(prompt.len());
        let rounded = |n: usize| n.checked_next_multiple_of(ROUNDING).unwrap_or(n);
        let all = rounded(fed).min(longest);
        let chunk = match self.0.layout.caches.is_empty() {
            true => all,
            false => rounded(prompt.len()).min(all),
        };
        let room = Room {
            chunk: self.0.chunk.map_or(chunk, |c| c.min(chunk)),
            all,
        };
        Ok(Generation {
            decoder: self.clone(),
            tokens: prompt.to_vec(),
            prompt: prompt.len(),
            most,
            room,
            position: None,
            avoid: vec![],
            lost: None,
            ended: None,
            options,
        })
    }

    /// Returns a placement with this much room; makes a new one where the current one is too small or lost a worker.
    async fn placement(
        &self,
        room: Room,
        avoid: &[WorkerProcess],
    ) -> Result<Arc<Placement>, AttemptFailure> {
        let shared = &*self.0;
        let mut current = shared.current.lock().await;
        if let Some(placed) = current
            .as_ref()
            .filter(|p| p.room.holds(room) && p.serves())
        {
            return Ok(placed.clone());
        }
        // The memory of a plan by which no sequence runs is free for the next plan.
        if let Some(unused) = current.take().and_then(Arc::into_inner) {
            unused.release(&shared.model.cluster).await;
        }
        let (layout, steps) = (&shared.layout, &shared.steps);
        let made = Placement::make(&shared.model, layout, steps, room, avoid.to_vec());
        let made = Arc::new(made.await?);
        *current = Some(made.clone());
        Ok(made)
    }
}

impl Generation {
    /// The prompt and the tokens that were generated so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Why the sequence ended, once [`Generation::next`] has returned `None`.
    pub fn ended(&self) -> Option<EndReason> {
        self.ended
    }

    /// Computes the next token. Returns `None` once the sequence has ended. Where the future is dropped, the sequence
    /// is as before, and the next call computes its caches again.
    ///
    /// Where a worker is lost, the sequence is computed again on others (see [`GenerateOptions::retry`]); the model's
    /// `on_progress` is told of that by [`Phase::Rerun`].
    ///
    /// # Errors
    /// Fails where no plan can be made, where the model fails, and where workers are lost more often than the options
    /// allow. Calling it again tries again.
    #[allow(
        clippy::should_implement_trait,
        reason = "an iterator cannot be awaited"
    )]
    pub async fn next(&mut self) -> Result<Option<u32>> {
        if self.ended.is_none() && self.tokens.len() >= self.most {
            let asked = self.tokens.len() - self.prompt >= self.options.max_new_tokens;
            self.ended = Some(match asked {
                true => EndReason::MaxTokens,
                false => EndReason::Full,
            });
            self.position = None;
        }
        if self.ended.is_some() {
            return Ok(None);
        }
        let model = &self.decoder.0.model;
        let (progress, net) = (model.inner.progress.clone(), model.cluster.net.clone());
        let logits = progress.awaiting(&net, self.logits(&progress)).await?;
        let place = (self.tokens.len() - self.prompt) as u64;
        let chosen = self.options.sampling.choose(&logits, place);
        // Without a token, the same logits are needed once more.
        let token = chosen.inspect_err(|_| self.position = None)?;
        if self.options.stop.contains(&token) {
            self.ended = Some(EndReason::Stop(token));
            self.position = None;
            return Ok(None);
        }
        self.tokens.push(token);
        Ok(Some(token))
    }

    /// The logits of the last token. Begins again where a worker is lost.
    async fn logits(&mut self, progress: &Progress) -> Result<HostTensor> {
        let mut losses = Vec::new();
        loop {
            let failed = match self.advanced(progress).await {
                Ok(logits) => return Ok(logits),
                Err(failed) => failed,
            };
            let code = failed.error.code;
            let lost = is_loss(code) || matches!(code, Code::StateLost | Code::Unreachable);
            if !lost || self.options.retry == Retry::Off || losses.len() == RERUNS {
                self.lost = None;
                let mut error = concluded(losses, failed.error);
                let tokens = self.tokens.len();
                if code == Code::KernelFailed && tokens > 1 {
                    let length = match tokens > self.prompt {
                        true => format!(
                            "it has {tokens} tokens, and the model may know no more positions: ask for fewer tokens, or give a shorter prompt"
                        ),
                        false => format!(
                            "the prompt has {tokens} tokens, and the model may know fewer positions: give a shorter prompt"
                        ),
                    };
                    error.advice = match error.advice.is_empty() {
                        true => length,
                        false => format!("{length}; {}", error.advice),
                    };
                }
                return Err(error);
            }
            losses.push(failed.error.clone());
            self.avoid.extend(failed.unusable);
            self.lost = Some((losses.len() as u32 + 1, failed.error));
        }
    }

    /// Feeds the tokens that are not fed yet, and returns the logits of the last one.
    async fn advanced(&mut self, progress: &Progress) -> Result<HostTensor, AttemptFailure> {
        let shared = self.decoder.0.clone();
        let (model, layout) = (&*shared.model.inner.function, &shared.layout);
        let mut at = match self.position.take() {
            Some(position) => position,
            None => {
                let placement = self.decoder.placement(self.room, &self.avoid).await?;
                if let Some((attempt, cause)) = self.lost.take() {
                    let rerun = Rerun {
                        attempt,
                        of: RERUNS as u32 + 1,
                        cause,
                        workers: placement.workers(),
                    };
                    tracing::warn!(target: "convoke::rerun", "{rerun}");
                    progress.note(Phase::Rerun(rerun));
                }
                Position {
                    caches: placement
                        .caches(model, layout)
                        .map_err(|e| placement.blamed(e))?,
                    placement,
                    fed: 0,
                }
            }
        };
        loop {
            let (from, to) = self.next_call(at.fed);
            let new = &self.tokens[from..to];
            let mut shapes = Vec::new();
            for cache in &at.caches {
                if cache.shape().is_none() {
                    let known = cache.ready().await;
                    known.map_err(|e| at.placement.blamed(e))?;
                }
                shapes.push(cache.shape().unwrap_or_default().to_vec());
            }
            let sizes = layout.sizes(model, from, new.len(), shapes)?;
            let feeds = layout.fed.iter();
            let feeds = feeds.map(|input| Layout::feed(model, *input, from, new));
            let feeds = feeds.collect::<Result<_>>()?;
            let cluster = &shared.model.cluster;
            let step = at.placement.step(cluster, at.caches, feeds, sizes);
            let (logits, caches) = step.await?;
            at = Position {
                placement: at.placement,
                caches,
                fed: to,
            };
            if to == self.tokens.len() {
                self.position = Some(at);
                return Ok(logits);
            }
        }
    }

    /// The tokens of the call after `fed` tokens were fed.
    fn next_call(&self, fed: usize) -> (usize, usize) {
        if self.decoder.0.layout.caches.is_empty() {
            return (0, self.tokens.len());
        }
        match fed < self.prompt {
            true => {
                let chunk = self.decoder.0.chunk.unwrap_or(self.prompt);
                (fed, self.prompt.min(fed + chunk))
            }
            false => (fed, fed + 1),
        }
    }
}
