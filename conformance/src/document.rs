//! Writes docs/OPERATORS.md: which operators of ONNX a model may use, and what becomes of them.
//!
//! What the document says follows from the cases: each is imported, and the nodes that it became show whether the operator has a
//! kernel of its own. That the results of the cases are right is what running them shows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use convoke_graph::DType;
use convoke_graph::ops::{self, AttrKind, ConvOp, MatMulOp, Op, OpDef};
use convoke_worker::cpu::{ChainRole, chain_role};

use crate::case::Case;
use crate::product;

/// An operator of the table that list_operators.py writes.
struct Operator {
    domain: String,
    name: String,
    versions: String,
}

/// What the cases of one operator show.
#[derive(Default)]
struct Evidence {
    cases: usize,
    imported: usize,
    /// The ops of the nodes that the operator's own cases became.
    parts: BTreeSet<String>,
    /// How many cases of several operators, of which this is one, are imported.
    among_others: usize,
}

/// The document, from the table at `operators` and from `cases`.
pub fn document(operators: &Path, cases: &[Case], cache: &Path) -> Result<String, String> {
    let table = std::fs::read_to_string(operators)
        .map_err(|e| format!("cannot read {}: {e}", operators.display()))?;
    let (version, rows) = table.split_once('\n').unwrap_or((&table, ""));
    let mut operators = rows.lines().map(row).collect::<Result<Vec<_>, _>>()?;
    let evidence = evidence(cases, cache)?;
    let known: BTreeSet<String> = operators.iter().map(|o| o.name.clone()).collect();
    let of_runtime = evidence.keys().filter_map(|full| {
        // A few of ONNX Runtime's ops are in the domain of ONNX. Cases of several ops have no name of one.
        let (domain, name) = match full.strip_prefix("com.microsoft.") {
            Some(name) => ("com.microsoft", name),
            None if full.contains(['.', '(']) || known.contains(full) => return None,
            None => ("ai.onnx", full.as_str()),
        };
        Some(Operator {
            domain: domain.into(),
            name: name.into(),
            versions: "1".into(),
        })
    });
    operators.extend(of_runtime);
    operators.sort_by(|a, b| (&a.domain, &a.name).cmp(&(&b.domain, &b.name)));
    let mut domains: Vec<&str> = operators.iter().map(|o| &*o.domain).collect();
    domains.dedup();
    let mut out = format!(
        "{HEAD}\nThe operators are those of `onnx` {version}, and those of ONNX Runtime that cases have.\n"
    );
    for domain in domains {
        let _ = write!(
            out,
            "\n## `{domain}`\n\n| operator | versions | becomes | dtypes of the first operand | fused | cases | among others |\n|---|---|---|---|---|---|---|\n"
        );
        for operator in operators.iter().filter(|o| o.domain == domain) {
            let _ = writeln!(out, "{}", line(operator, &evidence));
        }
    }
    Ok(out)
}

const HEAD: &str = "\
# Operators

<!-- `convoke-conformance --document` writes this file; `.ci/oracles` says how, and fails where it is not current. -->

Models may use these operators, in all versions of the operator set from the first one on, unless `convoke check MODEL` says
otherwise of a form. A model is split between its nodes: no operator is split itself, and every one may run on any worker. Only
the bodies of `If`, `Loop` and `Scan` are divided among workers themselves, where no worker can hold one.

- **versions**: those of the operator set in which the definition changed.
- **becomes**: `kernel` where the operator has a kernel of its own; else the operators that the importer expresses it by. `at load`
  means that the importer resolves it, so that nothing of it runs. `control flow` runs its bodies. `with others` is an operator that
  no case has by itself, `no case` one that none has at all; `convoke check` tells of those.
- **dtypes**: what the kernel computes. *Numbers* are integers of 8 to 64 bits, `f16`, `bf16`, `f32` and `f64`; *all* adds `bool`;
  *stored* adds integers of 2 and 4 bits and floats of 4 and 8 bits.
- **fused**: the neighbours that the kernel can be fused with. `chain`: with other functions of single floats, before it and behind it. `chain end`:
  with a chain behind it or in front of it. `what follows`: with the bias, the addition and the activation behind it; `MatMul` only
  with a constant matrix. No fusion changes a bit.
- **cases**: how many test cases of the operator by itself run, of those that there are: ONNX's own suite, and cases of random shapes
  and attributes. **among others**: how many cases of several operators, of which it is one, run. `.ci/oracles --whole` runs all of them, on
  one worker and between two others, one for operands and one for results, with right results and equal bits.

An input `x` of the type map(K, V) is given as two inputs, the list `x.keys` and the list `x.values` of the same length, whose keys are
distinct. `CastMap` and `DictVectorizer` read it, and nothing else does. The result of a `ZipMap` is the matrix of scores, whose columns
`convoke check` names, up to 16.
";

fn row(line: &str) -> Result<Operator, String> {
    let mut fields = line.split('\t').map(str::to_owned);
    match (fields.next(), fields.next(), fields.next()) {
        (Some(domain), Some(name), Some(versions)) => Ok(Operator {
            domain,
            name,
            versions: versions.replace(',', ", "),
        }),
        _ => Err(format!("'{line}' is no row of the table of operators")),
    }
}

/// Imports every case, and gathers what it became by the operator that it tests.
fn evidence(cases: &[Case], cache: &Path) -> Result<BTreeMap<String, Evidence>, String> {
    let mut all: BTreeMap<String, Evidence> = BTreeMap::new();
    for case in cases {
        let row = all.entry(case.op.clone()).or_default();
        row.cases += 1;
        let imported = case
            .is_supported()
            .then(|| product::import(&case.model, cache, case.held()?).map_err(|e| e.to_string()));
        if let Some(Ok(model)) = imported {
            row.imported += 1;
            let nodes = model.function.nodes.iter();
            row.parts.extend(nodes.map(|n| n.op.to_string()));
            for op in case.ops.iter().filter(|op| **op != case.op) {
                all.entry(op.clone()).or_default().among_others += 1;
            }
        }
    }
    Ok(all)
}

fn line(operator: &Operator, evidence: &BTreeMap<String, Evidence>) -> String {
    let Operator {
        domain,
        name,
        versions,
    } = operator;
    let full = match &**domain {
        "ai.onnx" => name.clone(),
        _ => format!("{domain}.{name}"),
    };
    let none = Evidence::default();
    let found = evidence.get(&full).unwrap_or(&none);
    let runs = found.imported + found.among_others > 0;
    let kernel = ops::lookup(&full).filter(|_| runs);
    let (becomes, dtypes) = match kernel {
        Some(def) if def.attrs.iter().any(|a| a.kind == AttrKind::Function) => {
            ("control flow".into(), String::new())
        }
        Some(def) if found.parts.contains(&full) || found.parts.is_empty() => {
            ("kernel".into(), dtypes(def))
        }
        _ if !runs && found.cases == 0 => ("no case".into(), String::new()),
        _ if !runs => ("not supported".into(), String::new()),
        _ if found.imported == 0 => ("with others".into(), String::new()),
        _ => (parts(&found.parts), String::new()),
    };
    let fused = match kernel.filter(|_| becomes == "kernel") {
        Some(def) => fused(def),
        None => "",
    };
    let Evidence {
        cases,
        imported,
        among_others,
        ..
    } = found;
    format!(
        "| `{name}` | {versions} | {becomes} | {dtypes} | {fused} | {imported} of {cases} | {among_others} |"
    )
}

/// The neighbours that an op's kernel can be fused with.
fn fused(def: &OpDef) -> &'static str {
    match (chain_role(def.op), def.op) {
        (Some(ChainRole::Function), _) => "chain",
        (Some(ChainRole::End), _) => "chain end",
        (None, Op::Conv(ConvOp::Conv) | Op::MatMul(MatMulOp::Gemm | MatMulOp::MatMul)) => {
            "what follows"
        }
        (None, _) => "",
    }
}

/// The ops that an operator is expressed by.
fn parts(parts: &BTreeSet<String>) -> String {
    const LISTED: usize = 6;
    let mut listed: Vec<String> = parts
        .iter()
        .take(LISTED)
        .map(|p| format!("`{p}`"))
        .collect();
    match parts.len() {
        0 => return "at load".into(),
        n if n > LISTED => listed.push("others".into()),
        _ => {}
    }
    listed.join(", ")
}

/// The dtypes of the first operand, in short.
fn dtypes(def: &OpDef) -> String {
    let Some(first) = def.operands.first() else {
        return String::new();
    };
    let has = |d: &DType| first.dtypes.contains(d);
    let all = |kind: fn(&DType) -> bool| DType::ALL.iter().filter(|d| kind(d)).all(has);
    let mut kinds = match (all(is_number), has(&DType::Bool)) {
        (true, true) if all(|d| d.is_narrow()) => "stored".to_owned(),
        (true, true) => "all".into(),
        (true, false) => "numbers".into(),
        _ => {
            let named = DType::ALL.iter().filter(|d| has(d)).map(|d| d.name());
            return named.collect::<Vec<_>>().join(", ");
        }
    };
    if has(&DType::Str) {
        kinds += ", string";
    }
    kinds
}

/// Whether a dtype is one of numbers that ops compute with.
fn is_number(dtype: &DType) -> bool {
    !dtype.is_narrow() && !matches!(dtype, DType::Bool | DType::Str)
}
