//! `convoke run`: loads a model, runs steps of it and prints the outputs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use convoke::numpy::{check_writable, write_npz, written_as};
use convoke::{
    CallOptions, Cluster, Code, Error, HostTensor as Tensor, Model, Outputs, Phase, PlanSummary,
    Rerun, Retry,
};
use convoke_graph::{Printable, printable};
use futures::StreamExt;
use serde::Serialize;
use tokio::time::Instant;

use crate::args::{ModelArgs, RetryWhen, RunArgs};
use crate::commands::cluster::{exactly, with_cluster};
use crate::commands::model::{Arrays, builder, check_bounds, check_given, pinned};
use crate::commands::plan;
use crate::commands::verify::{Verdict, comparable, compare, differing, preview};
use crate::text::failure::Failure;
use crate::text::output;
use crate::text::progress::Progress;
use crate::text::values::{bytes, millis};

/// The most values that are shown of an output.
const SHOWN: usize = 8;

/// The output of `run --json`.
#[derive(Serialize)]
struct Report {
    model: String,
    workers: Vec<Worker>,
    cut_edges: usize,
    cut_bytes: u64,
    /// The cut edges of branches and loops that run on several workers, and their bytes. `plan --json` lists them.
    #[serde(skip)]
    within: (usize, u64),
    warnings: Vec<String>,
    outputs: Vec<Output>,
    /// With `--partial`: the outputs that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<Vec<FailedOutput>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verify: Option<Verdict>,
    load_ms: f64,
    steps: u64,
    step_ms: Quantiles,
    /// Loads and steps that were run again, and why.
    attempts: Vec<Attempt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Error>,
}

#[derive(Serialize)]
struct Worker {
    name: String,
    nodes: u32,
    weights_bytes: u64,
    /// Peak memory that the planner predicts, in bytes.
    peak_bytes: u64,
    threads: u32,
}

/// A load, a step or a sequence that was run again.
#[derive(Serialize)]
pub(crate) struct Attempt {
    attempt: u32,
    of: u32,
    workers: Vec<String>,
    cause: Error,
}

impl From<Rerun> for Attempt {
    fn from(r: Rerun) -> Attempt {
        Attempt {
            attempt: r.attempt,
            of: r.of,
            workers: r.workers,
            cause: r.cause,
        }
    }
}

#[derive(Serialize)]
struct Output {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    digest: String,
}

/// An output that failed, and why.
#[derive(Serialize)]
struct FailedOutput {
    name: String,
    error: Error,
}

#[derive(Serialize)]
struct Quantiles {
    p50: f64,
    p99: f64,
}

impl Quantiles {
    fn of(mut times: Vec<Duration>) -> Quantiles {
        times.sort();
        // The shortest time that this fraction of all steps does not exceed.
        let at = |part: f64| {
            let rank = (times.len() as f64 * part).ceil() as usize;
            let time = times.get(rank.max(1) - 1).copied().unwrap_or_default();
            time.as_secs_f64() * 1e3
        };
        Quantiles {
            p50: at(0.5),
            p99: at(0.99),
        }
    }
}

/// The results of a step.
struct StepOutput {
    outputs: Outputs,
    /// With `--partial`, the outputs that failed.
    failed: Vec<FailedOutput>,
}

/// The results of a finished run.
struct FinishedRun {
    given: StepOutput,
    summary: PlanSummary,
    load: Duration,
    times: Vec<Duration>,
    reruns: Vec<Rerun>,
}

/// The loads, steps and sequences that were run again so far.
#[derive(Clone, Default)]
pub(crate) struct Reruns(Arc<Mutex<Vec<Rerun>>>);

impl Reruns {
    pub fn all(&self) -> std::sync::MutexGuard<'_, Vec<Rerun>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunArgs {
    fn call(&self) -> CallOptions {
        CallOptions {
            deadline: self.timeout,
            retry: self.retry.into(),
        }
    }
}

impl From<RetryWhen> for Retry {
    fn from(when: RetryWhen) -> Retry {
        match when {
            RetryWhen::On => Retry::On,
            RetryWhen::Off => Retry::Off,
        }
    }
}

/// Runs a model and reports the results.
pub async fn run(args: RunArgs, json: bool) -> Result<(), Failure> {
    let mut arrays = Arrays::open(&args.model.inputs)?;
    // This is checked first, so that minutes of computing are not lost because the folder is not writable.
    if let Some(path) = &args.outputs {
        check_writable(path)?;
    }
    let (done, verdict) = with_cluster(&args.cluster, json, async |cluster| {
        let (done, inputs) = run_split(cluster, &args, &mut arrays).await?;
        let verdict = match args.verify {
            true => Some(verify(cluster, &args, &inputs, &done).await?),
            false => None,
        };
        Ok((done, verdict))
    })
    .await?;
    if let Some(path) = &args.outputs {
        // A model may list an output twice, which is the same tensor.
        let mut names = BTreeSet::new();
        let outputs = done.given.outputs.0.iter();
        let outputs = outputs.filter(|(name, _)| names.insert(name.clone()));
        let outputs: Vec<(String, Tensor)> = outputs.cloned().collect();
        write_npz(path, &outputs)?;
        for (name, tensor) in &outputs {
            let (dtype, written) = (tensor.dtype(), written_as(tensor.dtype()));
            if written != dtype {
                let name = Printable(name);
                Progress::new().note(&format!("output '{name}' is {dtype}, written as {written}"));
            }
        }
    }
    let verdict = match verdict {
        Some(v) => {
            let StepOutput { outputs, failed } = &done.given;
            let mut expected =
                arrays.read_expected(|name, want| comparable(outputs, name, want))?;
            // The errors of failed outputs are reported apart from the comparison.
            expected.retain(|(name, _)| !failed.iter().any(|f| f.name == *name));
            let expected = compare(outputs, &expected);
            Some(Verdict { expected, ..v })
        }
        None => None,
    };
    report(&args, done, verdict, json)
}

/// The error of a model that was not loaded within `bound`.
fn not_loaded(bound: Duration) -> Error {
    let msg = format!("the model was still planned and loaded after {bound:?}");
    Error::new(Code::DeadlineExceeded, msg)
        .advise("`convoke status` says what the workers are busy with, and for whom")
}

/// Waits for a model that is loaded, at most `bound`.
async fn in_time<T>(
    bound: Option<Duration>,
    loading: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let Some(bound) = bound else {
        return loading.await;
    };
    // Dropping the future gives up what was planned and installed.
    let loaded = tokio::time::timeout(bound, loading).await;
    loaded.unwrap_or_else(|_| Err(not_loaded(bound).into()))
}

async fn run_split(
    cluster: &Cluster,
    args: &RunArgs,
    arrays: &mut Arrays,
) -> Result<(FinishedRun, Vec<(String, Tensor)>), Failure> {
    let progress = Progress::new();
    let ModelArgs {
        load: of,
        in_flight,
        ..
    } = &args.model;
    let b = builder(cluster, of, *in_flight, arrays.shapes())?;
    let mut b = pinned(b, of).retry(args.retry.into());
    if let Some(n) = exactly(&args.cluster) {
        b = b.workers(n);
    }
    if let Some(most) = args.wait {
        b = b.wait(most);
    }
    let (start, reruns) = (Instant::now(), Reruns::default());
    let loading = load(b, &args.model, arrays, &progress, &reruns);
    let (model, summary) = in_time(args.timeout, loading).await?;
    let load = start.elapsed();
    // Values are read only after their dtypes and shapes were checked against the model.
    let inputs = arrays.read_inputs()?;
    let (given, times) = steps(&model, args, &inputs, &progress).await?;
    // If a worker was lost meanwhile, the plan in use is another than the first one.
    let summary = model.plan().await.unwrap_or(summary);
    model.unload().await?;
    let done = FinishedRun {
        given,
        summary,
        load,
        times,
        reruns: std::mem::take(&mut *reruns.all()),
    };
    Ok((done, inputs))
}

async fn load(
    b: convoke::ModelBuilder,
    args: &ModelArgs,
    arrays: &mut Arrays,
    progress: &Progress,
    reruns: &Reruns,
) -> Result<(Model, PlanSummary), Failure> {
    let (told, reruns) = (progress.clone(), reruns.clone());
    let tell = move |phase: Phase| {
        if let Phase::Rerun(rerun) = &phase {
            reruns.all().push(rerun.clone());
        }
        told.phase(phase);
    };
    let model = b.on_progress(tell).await?;
    let notes = arrays.fit(&model.inputs());
    notes.iter().for_each(|note| progress.note(note));
    let inputs = arrays.inputs();
    check_given(&inputs, &model.inputs())?;
    check_bounds(&args.load.dim, &inputs, &model.inputs())?;
    let summary = model.prepare(inputs).await?;
    for w in &summary.warnings {
        progress.note(&format!("warning: {w}"));
    }
    Ok((model, summary))
}

/// Runs one step.
async fn call(
    model: &Model,
    args: &RunArgs,
    inputs: &[(String, Tensor)],
) -> convoke::Result<StepOutput> {
    let inputs = inputs.iter().cloned();
    let mut failed = vec![];
    if !args.partial {
        let outputs = model.call_with(inputs, args.call()).await?;
        return Ok(StepOutput { outputs, failed });
    }
    let mut outputs = Outputs(vec![]);
    for (name, result) in model.partial().call_with(inputs, args.call()).await?.0 {
        match result {
            Ok(tensor) => outputs.0.push((name, tensor)),
            Err(error) => failed.push(FailedOutput { name, error }),
        }
    }
    Ok(StepOutput { outputs, failed })
}

/// Runs all steps, `--in-flight` at a time, and returns the results of the first. Fails if a step gives other bits.
async fn steps(
    model: &Model,
    args: &RunArgs,
    inputs: &[(String, Tensor)],
    progress: &Progress,
) -> Result<(StepOutput, Vec<Duration>), Failure> {
    let step = async |_: u64| {
        let start = Instant::now();
        let given = call(model, args, inputs).await?;
        Ok::<_, Error>((given, start.elapsed()))
    };
    progress.steps(0, args.steps);
    let (mut first, time) = step(0).await?;
    let mut times = vec![time];
    if args.steps > 1 {
        // The results of a worker in this process lie in the memory of its steps. They are copied, so that each later step
        // finds the memory as the first one did.
        for (_, tensor) in &mut first.outputs.0 {
            let copied = Tensor::from_bytes(tensor.dtype(), tensor.shape(), tensor.bytes());
            *tensor = copied.map_err(Error::from)?;
        }
    }
    let mut rest = futures::stream::iter(1..args.steps)
        .map(step)
        .buffer_unordered(args.model.in_flight as usize);
    while let Some(done) = rest.next().await {
        let (given, time) = done?;
        if given.outputs != first.outputs {
            let msg = format!("step {} gave other bits than the first", times.len());
            return Err(Error::internal(msg).into());
        }
        times.push(time);
        progress.steps(times.len() as u64, args.steps);
    }
    Ok((first, times))
}

/// Runs the model on exactly one worker, whichever of the same numerics profile has room, and compares the bits. Pins
/// are left out: they do not change values, and could name several workers.
async fn verify(
    cluster: &Cluster,
    args: &RunArgs,
    inputs: &[(String, Tensor)],
    done: &FinishedRun,
) -> Result<Verdict, Failure> {
    let mut verdict = Verdict {
        bits_equal: None,
        expected: vec![],
        differing: vec![],
        not_compared: None,
    };
    let mut profiles = done.summary.parts.iter().map(|part| part.profile.as_str());
    let profile = profiles.next();
    if profiles.any(|other| Some(other) != profile) {
        verdict.not_compared = Some("devices of several numerics profiles computed it".into());
        return Ok(verdict);
    }
    match run_single(cluster, args, inputs, profile).await {
        Ok(single) => {
            verdict.differing = differing(&done.given.outputs, &single);
            verdict.bits_equal = Some(verdict.differing.is_empty());
        }
        Err(Failure::Error(e)) if e.code == Code::ClusterTooSmall => {
            verdict.not_compared = Some("no worker alone can hold the model".into());
        }
        Err(e) => return Err(e),
    }
    Ok(verdict)
}

async fn run_single(
    cluster: &Cluster,
    args: &RunArgs,
    inputs: &[(String, Tensor)],
    profile: Option<&str>,
) -> Result<Outputs, Failure> {
    let progress = Progress::new();
    let told = progress.clone();
    let shapes = inputs.iter().map(|(name, t)| (name.as_str(), t.shape()));
    let ModelArgs {
        load, in_flight, ..
    } = &args.model;
    let b = builder(cluster, load, *in_flight, shapes)?;
    let mut b = b.workers(1).retry(args.retry.into());
    if let Some(profile) = profile {
        b = b.profile(profile);
    }
    if let Some(most) = args.wait {
        b = b.wait(most);
    }
    let tell = move |phase| match phase {
        // The load of the same file that was split has said so.
        Phase::Remark(_) => {}
        phase => told.phase(phase),
    };
    let loading = async {
        let model = b.on_progress(tell).await?;
        // The model is prepared first, because the deadline of the call is meant for the step alone.
        model.prepare(inputs.iter().cloned()).await?;
        Ok::<_, Failure>(model)
    };
    let model = in_time(args.timeout, loading).await?;
    let given = call(&model, args, inputs).await?;
    model.unload().await?;
    Ok(given.outputs)
}

/// The error that lists the failed outputs; `None` if none failed.
fn incomplete(given: &StepOutput) -> Option<Error> {
    let first = given.failed.first()?;
    let (failed, all) = (
        given.failed.len(),
        given.outputs.0.len() + given.failed.len(),
    );
    let names = printable::list(given.failed.iter().map(|f| f.name.as_str()));
    let msg = format!("{failed} of {all} outputs failed: {names}");
    Some(Error::new(first.error.code, msg))
}

fn report(
    args: &RunArgs,
    done: FinishedRun,
    verdict: Option<Verdict>,
    json: bool,
) -> Result<(), Failure> {
    let problem = verdict.as_ref().and_then(Verdict::problem);
    let error = problem
        .map(|p| Error::new(Code::VerifyFailed, p))
        .or_else(|| incomplete(&done.given));
    let StepOutput { outputs, failed } = done.given;
    let steps = done.times.len() as u64;
    let output = |(name, t): &(String, Tensor)| Output {
        name: name.clone(),
        dtype: t.dtype().to_string(),
        shape: t.shape().to_vec(),
        digest: t.digest(),
    };
    let worker = |p: &convoke::PartSummary| Worker {
        name: p.name.clone(),
        nodes: p.nodes,
        weights_bytes: p.weights_bytes,
        peak_bytes: p.peak_bytes,
        threads: p.threads,
    };
    let report = Report {
        model: args.model.load.model.display().to_string(),
        workers: done.summary.parts.iter().map(worker).collect(),
        cut_edges: done.summary.cut_edges.len(),
        cut_bytes: plan::cut_bytes(&done.summary.cut_edges),
        within: done.summary.bodies.iter().fold((0, 0), |(n, sum), b| {
            (n + b.cut_edges.len(), sum + plan::cut_bytes(&b.cut_edges))
        }),
        warnings: done.summary.warnings,
        outputs: outputs.0.iter().map(output).collect(),
        failed: args.partial.then_some(failed),
        verify: verdict,
        load_ms: done.load.as_secs_f64() * 1e3,
        steps,
        step_ms: Quantiles::of(done.times),
        attempts: done.reruns.into_iter().map(Attempt::from).collect(),
        error,
    };
    let told = match json {
        true => output::json(&report),
        false => output::print(&text(&report, &outputs)),
    };
    // A wrong result is the failure that counts, also if the report could not be written.
    match report.error {
        Some(e) if json => Err(Failure::Reported(e)),
        Some(e) => Err(e.into()),
        None => told,
    }
}

fn text(r: &Report, outputs: &Outputs) -> String {
    let mut text = format!("{}\n", r.model);
    let row = |w: &Worker| {
        vec![
            w.name.clone(),
            w.nodes.to_string(),
            bytes(w.weights_bytes),
            w.threads.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = r.workers.iter().map(row).collect();
    let head = ["WORKER", "NODES", "WEIGHTS", "THREADS"];
    text.push_str(&output::table(&head, &[1, 2, 3], &rows));
    if r.workers.len() > 1 {
        let (edges, size) = (r.cut_edges, bytes(r.cut_bytes));
        text.push_str(&format!("  cut edges: {edges}, {size} per step\n"));
        if let (edges @ 1.., size) = r.within {
            let size = bytes(size);
            text.push_str(&format!(
                "  within branches and loops: {edges}, {size} per run of each\n"
            ));
        }
    }
    text.push_str("outputs\n");
    for (name, t) in &outputs.0 {
        let (signature, values) = (t.signature(), preview(t, SHOWN));
        let name = Printable(name);
        text.push_str(&format!("  {name}: {signature}  {values}\n"));
    }
    let failed = r.failed.as_deref().unwrap_or_default();
    if !failed.is_empty() {
        text.push_str("failed\n");
    }
    for FailedOutput { name, error } in failed {
        text.push_str(&format!("  {}: {error}\n", Printable(name)));
    }
    if let Some(v) = &r.verify {
        text.push_str(&v.text());
    }
    let load = millis(r.load_ms);
    text.push_str(&match r.steps {
        1 => format!("loaded in {load}, ran in {}\n", millis(r.step_ms.p50)),
        n => format!(
            "loaded in {load}, ran {n} steps: median {}, 99th percentile {}\n",
            millis(r.step_ms.p50),
            millis(r.step_ms.p99)
        ),
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_times_of_real_steps() {
        let times = |n: u64| (1..=n).rev().map(Duration::from_millis).collect();
        let q = Quantiles::of(times(100));
        assert_eq!((q.p50, q.p99), (50., 99.));
        let q = Quantiles::of(times(1));
        assert_eq!((q.p50, q.p99), (1., 1.));
        let q = Quantiles::of(vec![]);
        assert_eq!((q.p50, q.p99), (0., 0.));
    }
}
