//! `convoke plan`: shows how a model would be split over workers, without loading it.

use convoke::{
    Annotated, BodyPartSummary, BodySummary, CutEdge, PartSummary, PinSummary, PlanSummary,
    Signature, StageSummary,
};
use convoke_common::device_spec::device_name;
use serde::Serialize;

use crate::args::{ModelArgs, PlanArgs};
use crate::commands::cluster::{exactly, with_cluster};
use crate::commands::model::{Arrays, builder, fitted, pinned};
use crate::text::failure::Failure;
use crate::text::output;
use crate::text::progress::Progress;
use crate::text::values::{bytes, nanos};

/// The largest number of cut edges, and of pins, that are listed for people; `--json` lists all.
const LISTED: usize = 20;

/// The most characters of a node's name that the table shows.
const NAME: usize = 32;

/// The number of bytes that cross between workers in a step.
pub fn cut_bytes(cuts: &[CutEdge]) -> u64 {
    let sizes = cuts.iter().map(|e| e.bytes);
    sizes.fold(0, u64::saturating_add)
}

#[derive(Serialize)]
struct Report<'a> {
    model: String,
    #[serde(flatten)]
    summary: &'a PlanSummary,
    cut_bytes: u64,
}

/// Plans the model without loading weights, and prints the plan.
pub async fn plan(args: PlanArgs, json: bool) -> Result<(), Failure> {
    let arrays = Arrays::open(&args.model.inputs)?;
    let summary = with_cluster(&args.cluster, json, async |cluster| {
        let progress = Progress::new();
        let told = progress.clone();
        let ModelArgs {
            load, in_flight, ..
        } = &args.model;
        let b = builder(cluster, load, *in_flight, arrays.shapes())?;
        let mut b = pinned(b, load);
        if let Some(n) = exactly(&args.cluster) {
            b = b.workers(n);
        }
        let b = b.on_progress(move |phase| told.phase(phase));
        let (mut inputs, noted) = (arrays.inputs(), progress.clone());
        let fit = move |wanted: &[Signature]| {
            let (_, notes) = fitted(&mut inputs, wanted);
            notes.iter().for_each(|note| noted.note(note));
            inputs
        };
        let Some(file) = &args.save_annotated else {
            return Ok(b.explain_with(fit).await?);
        };
        let (summary, annotated) = b.save_annotated_with(fit, file).await?;
        progress.note(&saved(&file.display().to_string(), annotated));
        Ok(summary)
    })
    .await?;
    let model = args.model.load.model.display().to_string();
    if json {
        let cut_bytes = cut_bytes(&summary.cut_edges);
        let summary = &summary;
        return output::json(&Report {
            model,
            summary,
            cut_bytes,
        });
    }
    output::print(&text(&model, &summary))
}

/// Shortens a long node name in the middle: a fused node's name is that of all nodes in it.
fn short(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= NAME {
        return name.to_owned();
    }
    let half = NAME / 2;
    let (start, end) = (&chars[..half], &chars[chars.len() - half + 1..]);
    format!("{}…{}", String::from_iter(start), String::from_iter(end))
}

/// Describes where the nodes of a pin were placed.
fn of_pin(pin: &PinSummary) -> String {
    let parts = pin.parts.iter().map(|p| match p.nodes {
        1 => format!("1 node on {}", p.worker),
        n => format!("{n} nodes on {}", p.worker),
    });
    let parts: Vec<String> = parts.collect();
    let parts = match parts.is_empty() {
        true => "no node that runs in a step".to_owned(),
        false => parts.join(", "),
    };
    format!("{} on {}: {parts}", short(&pin.pattern), pin.devices)
}

/// Says what was written to a file.
fn saved(file: &str, annotated: Annotated) -> String {
    let divided = match annotated.divided {
        0 => String::new(),
        n => format!(
            "; {n} of them run in parts on several workers, and are written as of the one with the most"
        ),
    };
    let nodes = match annotated.nodes {
        1 => "1 node".to_owned(),
        n => format!("{n} nodes"),
    };
    format!("{file} has the plan as annotations of {nodes}{divided}")
}

/// Describes a partitioned body.
fn of_body(body: &BodySummary) -> String {
    let part = |p: &BodyPartSummary| {
        let nodes = match p.nodes {
            1 => "1 node".to_owned(),
            n => format!("{n} nodes"),
        };
        format!(
            "  {}: {nodes}, {} of weights, {} … {}\n",
            p.worker,
            bytes(p.weights_bytes),
            short(&p.first_node),
            short(&p.last_node)
        )
    };
    let (function, node) = (short(&body.function), short(&body.node));
    let (owner, step) = (&body.owner, nanos(body.step_ns));
    let parts: String = body.parts.iter().map(part).collect();
    let cuts = of_cuts(&body.cut_edges, "run");
    format!("{function} of {node}, driven by {owner}, {step} a run:\n{parts}{cuts}")
}

/// Lists the tensors that cross between workers in each step of a plan, or in each run of a body.
fn of_cuts(cuts: &[CutEdge], each: &str) -> String {
    if cuts.is_empty() {
        return String::new();
    }
    let (count, size) = (cuts.len(), bytes(cut_bytes(cuts)));
    let row = |e: &CutEdge| {
        let way = format!("{} -> {}", e.from, e.to);
        vec![e.tensor.clone(), way, bytes(e.bytes)]
    };
    let rows: Vec<Vec<String>> = cuts.iter().take(LISTED).map(row).collect();
    let table = output::table(&["TENSOR", "WAY", "BYTES"], &[2], &rows);
    let more = match count.saturating_sub(LISTED) {
        0 => String::new(),
        more => format!("  and {more} more\n"),
    };
    format!("cut edges: {count}, {size} per {each}\n{table}{more}")
}

/// Describes a stage of the model's file.
fn of_stage(number: usize, stage: &StageSummary) -> String {
    let device = short(stage.device.as_deref().unwrap_or("no device"));
    let nodes = match stage.nodes {
        1 => "1 node".to_owned(),
        n => format!("{n} nodes"),
    };
    format!(
        "{number} of the model's file ({device}): {nodes} on {}",
        stage.worker
    )
}

/// Lists the parts of the workers. The memory of devices has a column where a device has memory of its own.
fn of_parts(parts: &[PartSummary]) -> String {
    let devices = parts.iter().any(|p| !p.device.is_cpu());
    let needs = |needed, all| format!("{} of {}", bytes(needed), bytes(all));
    let row = |p: &PartSummary| {
        let mut row = vec![
            p.name.clone(),
            p.nodes.to_string(),
            bytes(p.weights_bytes),
            bytes(p.activation_bytes),
            needs(p.needed_bytes, p.memory),
        ];
        match p.device.is_cpu() {
            _ if !devices => {}
            true => row.push("-".to_owned()),
            false => row.push(needs(p.device_needed_bytes, p.device_memory)),
        }
        row.extend([
            bytes(p.peak_bytes),
            nanos(p.step_ns),
            format!("{} … {}", short(&p.first_node), short(&p.last_node)),
        ]);
        row
    };
    let rows: Vec<Vec<String>> = parts.iter().map(row).collect();
    let mut head = vec!["WORKER", "NODES", "WEIGHTS", "ACTIVATIONS", "NEEDS"];
    head.extend(devices.then_some("ON DEVICE"));
    head.extend(["PEAK MEMORY", "STEP", "FIRST … LAST NODE"]);
    let numbers: Vec<usize> = (1..head.len() - 1).collect();
    output::table(&head, &numbers, &rows)
}

fn text(model: &str, s: &PlanSummary) -> String {
    let mut text = format!("{model}\n{}", of_parts(&s.parts));
    for body in s.bodies.iter().take(LISTED) {
        text.push_str(&of_body(body));
    }
    if s.bodies.len() > LISTED {
        let more = s.bodies.len() - LISTED;
        text.push_str(&format!("  and {more} more bodies on several workers\n"));
    }
    for p in s.parts.iter().filter(|p| !p.device.is_cpu()) {
        let (device, profile) = (device_name(&p.name, &p.device), &p.profile);
        text.push_str(&format!("device: {device}, numerics profile {profile}\n"));
    }
    if s.parts.iter().any(|p| p.peak_bytes > p.needed_bytes) {
        text.push_str("PEAK MEMORY counts more than NEEDS: buffers in which weights arrive, and tensors on their way\n");
    }
    text.push_str(&of_cuts(&s.cut_edges, "step"));
    let single = match s.single_ns {
        Some(ns) => nanos(ns),
        None => "too large for any".into(),
    };
    let step = nanos(s.step_ns);
    text.push_str(&format!(
        "predicted step: {step}; on the fastest worker alone: {single}\n"
    ));
    let n = s.parts.len();
    if n > 1 && s.single_ns.is_some_and(|single| single < s.step_ns) {
        text.push_str(&format!(
            "warning: a step on {n} workers is predicted to be slower than on one\n"
        ));
    }
    for pin in s.pins.iter().take(LISTED) {
        text.push_str(&format!("pin: {}\n", of_pin(pin)));
    }
    if s.pins.len() > LISTED {
        text.push_str(&format!("  and {} more pins\n", s.pins.len() - LISTED));
    }
    for (number, stage) in s.stages.iter().enumerate().take(LISTED) {
        text.push_str(&format!("stage: {}\n", of_stage(number, stage)));
    }
    if s.stages.len() > LISTED {
        text.push_str(&format!("  and {} more stages\n", s.stages.len() - LISTED));
    }
    for p in &s.passes {
        text.push_str(&format!("pass: {p}\n"));
    }
    for w in &s.warnings {
        text.push_str(&format!("warning: {w}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_device_have_a_column_each_where_they_differ() {
        let part = |name: &str, device: &str| PartSummary {
            name: name.into(),
            address: String::new(),
            device: device.parse().unwrap(),
            profile: String::new(),
            threads: 1,
            nodes: 1,
            first_node: "a".into(),
            last_node: "b".into(),
            weights_bytes: 1 << 20,
            artifact_bytes: 1 << 20,
            activation_bytes: 1 << 20,
            needed_bytes: 3 << 20,
            memory: 64 << 20,
            free: 64 << 20,
            device_needed_bytes: 2 << 20,
            device_memory: 8 << 20,
            device_free: 8 << 20,
            peak_bytes: 3 << 20,
            step_ns: 1000,
        };
        let check = |parts: &[PartSummary], rows: &[&str]| {
            let text = of_parts(parts);
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            let lines: Vec<String> = text.to_lowercase().lines().map(words).collect();
            let has = |row: &&str| lines.iter().any(|line| line.contains(row));
            assert!(rows.iter().all(has), "{text}");
        };
        let (cpu, gpu) = (part("w0", "cpu:0"), part("w1", "simgpu:0"));
        check(
            std::slice::from_ref(&cpu),
            &["activations needs peak memory"],
        );
        check(
            &[cpu, gpu],
            &[
                "activations needs on device",
                "w0 1 1.0 mib 1.0 mib 3.0 mib of 64.0 mib -",
                "w1 1 1.0 mib 1.0 mib 3.0 mib of 64.0 mib 2.0 mib of 8.0 mib",
            ],
        );
    }

    #[test]
    fn a_partitioned_body_is_shown_with_its_parts() {
        let part = |worker: &str, nodes, last: &str| BodyPartSummary {
            worker: worker.into(),
            nodes,
            first_node: "row".into(),
            last_node: last.into(),
            weights_bytes: 3 << 20,
        };
        let body = BodySummary {
            node: "repeat".into(),
            function: "body".into(),
            owner: "w1".into(),
            parts: vec![part("w0", 1, "row"), part("w2", 3, "layer")],
            cut_edges: vec![CutEdge {
                tensor: "hidden".into(),
                from: "w0".into(),
                to: "w2".into(),
                bytes: 4 << 10,
            }],
            step_ns: 2_000_000,
        };
        let text = of_body(&body);
        let lines: Vec<&str> = text.lines().collect();
        let first = "body of repeat, driven by w1, ";
        assert!(
            lines[0].starts_with(first) && lines[0].ends_with(" a run:"),
            "{text}"
        );
        assert!(
            lines[1].starts_with("  w0: 1 node, 3.0 MiB of weights, row … row"),
            "{text}"
        );
        assert!(
            lines[2].starts_with("  w2: 3 nodes, 3.0 MiB of weights, row … layer"),
            "{text}"
        );
        assert_eq!(lines[3], "cut edges: 1, 4.0 KiB per run", "{text}");
        assert!(lines[5].contains("hidden  w0 -> w2  4.0 KiB"), "{text}");
    }
}
