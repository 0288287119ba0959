//! The text of the methods, from the registry.

use std::fmt::Write;

use convoke_graph::DType;
use convoke_graph::ops::{self, AttrDef, AttrKind, Memory, OpDef, OperandDef};

use super::words::*;

const HEAD: &str =
    "Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

";

/// How many optional attributes a method takes as parameters; more of them are fields of a struct.
const MOST_PLAIN: usize = 2;

/// One parameter of a method.
struct Param {
    name: String,
    ty: String,
    doc: String,
}

/// Where a method's first operand is.
#[derive(PartialEq)]
enum Receiver {
    /// `self` is the operand of this index.
    Tensor(usize),
    /// The first operand repeats: the op is an associated function of `Tensor`.
    List,
    /// No operand is on a device: the op is a method of `Device`.
    Device,
}

fn receiver(op: &OpDef) -> Receiver {
    let data = |o: &&OperandDef| o.memory == Memory::Device || HOST_DATA.contains(&op.name);
    match op.operands.iter().find(data) {
        None => Receiver::Device,
        Some(o) if o.variadic => Receiver::List,
        Some(first) => {
            let at = op.operands.iter().position(|o| o.name == first.name);
            Receiver::Tensor(at.unwrap())
        }
    }
}

/// The attributes that a method takes: the required ones, and the optional ones.
fn attributes(op: &OpDef) -> (Vec<&AttrDef>, Vec<&AttrDef>) {
    let left_out = |a: &AttrDef| {
        let mut left_out = WITHOUT_EFFECT.iter().chain(BY_NUMPYS_NAMES);
        left_out.any(|of| *of == (op.name, a.name))
    };
    op.attrs
        .iter()
        .filter(|a| !left_out(a))
        .partition(|a| a.required)
}

/// Dtypes in words.
fn dtypes(of: &[DType]) -> String {
    let mut rest: Vec<DType> = of.to_vec();
    let mut words = Vec::new();
    let plain = || DType::ALL.into_iter().filter(|d| !d.is_narrow());
    if rest.len() >= plain().count() {
        return match rest.len() == DType::ALL.len() {
            true => "any dtype, narrow ones too".into(),
            false => "any dtype".into(),
        };
    }
    for (word, is) in [
        ("numbers", DType::is_number as fn(DType) -> bool),
        ("floats", DType::is_float),
        ("integers", DType::is_int),
    ] {
        let all = plain().filter(|d| is(*d));
        if all.clone().all(|d| rest.contains(&d)) {
            rest.retain(|d| !is(*d));
            words.push(word.to_owned());
        }
    }
    words.extend(rest.iter().map(|d| d.to_string()));
    words.join(", ")
}

/// Escapes text, so that rustdoc shows it as it is.
fn escaped(text: &str) -> String {
    text.replace('[', "\\[").replace(']', "\\]")
}

/// Doc comment lines of at most 110 columns.
fn doc(out: &mut String, indent: &str, text: &str) {
    let mut line = String::new();
    let item = if text.starts_with("- ") { "  " } else { "" };
    for word in text.split(' ') {
        if line.len() + word.len() > 100 {
            writeln!(out, "{indent}/// {line}").unwrap();
            line = item.to_owned();
        } else if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(out, "{indent}/// {line}").unwrap();
}

/// Returns an operand as a parameter, and the expression that passes it on.
fn operand(def: &OperandDef, joint: bool) -> (Param, String) {
    let name = snake(def.name);
    let (ty, pass) = match (def.memory, def.variadic, joint, def.optional) {
        (Memory::Host, _, _, false) => ("impl Into<HostArg<'a>>", format!("call::host({name})?")),
        (Memory::Host, _, _, true) => (
            "impl Into<OptHostArg<'a>>",
            format!("call::optional_host({name})?"),
        ),
        (_, true, _, _) => ("&[&Tensor]", String::new()),
        (_, _, true, false) => ("impl Into<Arg<'a>>", format!("call::joint({name})")),
        (_, _, true, true) => (
            "impl Into<OptArg<'a>>",
            format!("call::optional_joint({name})"),
        ),
        (_, _, false, false) => ("&Tensor", format!("call::strict({name})")),
        (_, _, false, true) => ("Option<&Tensor>", format!("call::optional({name})")),
    };
    let doc = format!("- `{name}`: {}", operand_doc(def));
    (
        Param {
            name,
            ty: ty.into(),
            doc,
        },
        pass,
    )
}

fn operand_doc(def: &OperandDef) -> String {
    let optional = if def.optional {
        ", may be left out"
    } else {
        ""
    };
    format!("operand {}, {}{optional}", def.name, dtypes(def.dtypes))
}

/// Returns an attribute as a parameter, and the expression that passes it on.
fn attribute(op: &str, def: &AttrDef) -> (Param, String) {
    let name = snake(def.name);
    let (ty, helper) = match def.kind {
        AttrKind::Int if is_flag(def.name) => ("bool", "flag"),
        AttrKind::Int => ("i64", "int"),
        AttrKind::Float => ("f32", "float"),
        AttrKind::Str => ("&'a str", "text"),
        AttrKind::Ints => ("Vec<i64>", "ints"),
        AttrKind::Strs => ("Vec<String>", "texts"),
        AttrKind::Tensor => ("HostTensor", "value"),
        AttrKind::DType => ("DType", "dtype"),
        kind => panic!("attribute {} of {op} is {kind:?}", def.name),
    };
    let (ty, helper) = match (def.required, def.kind) {
        (true, AttrKind::Ints) => ("impl Into<Vec<i64>>".to_owned(), helper),
        (true, AttrKind::Str) => ("&str".to_owned(), helper),
        (true, _) => (ty.to_owned(), helper),
        (false, AttrKind::Ints) => ("impl Into<Axes>".to_owned(), "axes"),
        // An empty list stands for none.
        (false, AttrKind::Strs) => (ty.to_owned(), helper),
        (false, _) => (format!("impl Into<Option<{ty}>>"), helper),
    };
    let doc = format!("- `{name}`: {}", attribute_doc(op, def));
    let pass = format!("(\"{}\", call::{helper}({name}))", def.name);
    (Param { name, ty, doc }, pass)
}

fn attribute_doc(op: &str, def: &AttrDef) -> String {
    match def.required {
        true => meaning(op, def.name).to_owned(),
        false => format!(
            "{}; by default {}",
            meaning(op, def.name),
            default(op, def.name)
        ),
    }
}

/// Returns the type of a field of an options struct, and the expression that passes it on.
fn field(def: &AttrDef) -> (&'static str, String) {
    let name = snake(def.name);
    match def.kind {
        AttrKind::Int if is_flag(def.name) => ("Option<bool>", format!("call::flag(with.{name})")),
        AttrKind::Int => ("Option<i64>", format!("call::int(with.{name})")),
        AttrKind::Float => ("Option<f32>", format!("call::float(with.{name})")),
        AttrKind::Str => (
            "Option<String>",
            format!("call::text(with.{name}.as_deref())"),
        ),
        AttrKind::Ints => ("Vec<i64>", format!("call::list(with.{name})")),
        AttrKind::Floats => ("Vec<f32>", format!("call::floats(with.{name})")),
        AttrKind::Strs => ("Vec<String>", format!("call::texts(with.{name})")),
        AttrKind::DType => ("Option<DType>", format!("call::dtype(with.{name})")),
        kind => panic!("no option is {kind:?}"),
    }
}

/// The struct of an op's optional attributes.
fn options(op: &OpDef, optional: &[&AttrDef]) -> String {
    let mut out = String::new();
    let method = method(op.name);
    writeln!(
        out,
        "/// Attributes of [`Tensor::{method}`](crate::Tensor::{method})."
    )
    .unwrap();
    writeln!(
        out,
        "#[derive(Debug, Clone, Default, PartialEq)]\npub struct {} {{",
        op.name
    )
    .unwrap();
    for a in optional {
        let text = escaped(&attribute_doc(op.name, a));
        let (first, rest) = text.split_at(1);
        let first = if first == "`" {
            first.to_owned()
        } else {
            first.to_uppercase()
        };
        doc(&mut out, "", &format!("{first}{rest}."));
        writeln!(out, "pub {}: {},", snake(a.name), field(a).0).unwrap();
    }
    out + "}\n\n"
}

/// The methods of an op, one for each number of outputs.
fn method_text(op: &OpDef, outputs: usize, name: &str) -> String {
    let receiver = receiver(op);
    let joint_from = JOINT
        .iter()
        .find(|(o, _)| *o == op.name)
        .map(|(_, from)| *from);
    let (required, optional) = attributes(op);
    let mut params: Vec<Param> = Vec::new();
    let mut docs: Vec<String> = Vec::new();
    let mut operands: Vec<String> = Vec::new();
    for (i, def) in op.operands.iter().enumerate() {
        let joint = joint_from.is_some_and(|from| i >= from);
        if receiver == Receiver::Tensor(i) {
            docs.push(format!("- `self`: {}", operand_doc(def)));
            operands.push(format!(
                "call::{}(self)",
                if joint { "joint" } else { "strict" }
            ));
            continue;
        }
        let (param, pass) = operand(def, joint);
        params.push(param);
        operands.push(pass);
    }
    let mut attrs: Vec<String> = Vec::new();
    for def in &required {
        let (param, pass) = attribute(op.name, def);
        params.push(param);
        attrs.push(pass);
    }
    if optional.len() > MOST_PLAIN {
        params.push(Param {
            name: "with".into(),
            ty: format!("impl Into<Option<options::{}>>", op.name),
            doc: "- `with`: further attributes".into(),
        });
        attrs.extend(
            optional
                .iter()
                .map(|d| format!("(\"{}\", {})", d.name, field(d).1)),
        );
    } else {
        for def in &optional {
            let (param, pass) = attribute(op.name, def);
            params.push(param);
            attrs.push(pass);
        }
    }
    let variadic_outputs = outputs == usize::MAX;
    if variadic_outputs {
        params.push(Param {
            name: "outputs".into(),
            ty: "usize".into(),
            doc: "- `outputs`: how many parts there are".into(),
        });
    }

    let mut out = String::new();
    doc(&mut out, "", &escaped(op.doc));
    if outputs > 1 && !variadic_outputs {
        let (count, which) = (
            ["two", "three", "four"][outputs - 2],
            ["Both", "All three", "All four"][outputs - 2],
        );
        doc(
            &mut out,
            "",
            &format!("{which} outputs are given, as a tuple of {count}."),
        );
    }
    docs.extend(params.iter().map(|p| p.doc.clone()));
    if !docs.is_empty() {
        doc(&mut out, "", "");
    }
    docs.iter().for_each(|d| doc(&mut out, "", &escaped(d)));
    if joint_from.is_some() {
        doc(&mut out, "", "");
        doc(
            &mut out,
            "",
            "Operands are brought to one dtype, see [`Arg`](crate::Arg).",
        );
    }
    let generic = params.iter().any(|p| p.ty.contains("'a"));
    let this = if receiver == Receiver::List {
        ""
    } else {
        "&self, "
    };
    let list = params
        .iter()
        .map(|p| format!("{}: {}", p.name, p.ty))
        .collect::<Vec<_>>()
        .join(", ");
    let result = match outputs {
        1 => "Tensor",
        2 => "(Tensor, Tensor)",
        3 => "(Tensor, Tensor, Tensor)",
        4 => "(Tensor, Tensor, Tensor, Tensor)",
        _ => "Vec<Tensor>",
    };
    let lifetime = if generic { "<'a>" } else { "" };
    writeln!(
        out,
        "#[track_caller]\npub fn {name}{lifetime}({this}{list}) -> Result<{result}> {{"
    )
    .unwrap();
    if optional.len() > MOST_PLAIN {
        out += "let with = with.into().unwrap_or_default();\n";
    }
    writeln!(out, "let attrs = call::attrs([{}]);", attrs.join(", ")).unwrap();
    let given = match receiver {
        Receiver::List => {
            let (list, call) = (
                &params[0].name,
                if joint_from.is_some() {
                    "joint"
                } else {
                    "strict"
                },
            );
            let map = format!("{list}.iter().map(|t| call::{call}(*t)).collect();");
            writeln!(out, "let operands: Vec<_> = {map}").unwrap();
            "&operands".to_owned()
        }
        _ => {
            writeln!(out, "let operands = [{}];", operands.join(", ")).unwrap();
            "&operands".to_owned()
        }
    };
    let op_name = op.name;
    let call = match (&receiver, outputs) {
        (Receiver::Device, _) => format!("call::create(self, \"{op_name}\", attrs, {given})"),
        (_, 1) => format!("call::one(\"{op_name}\", attrs, {given})"),
        (_, 2) => format!("call::two(\"{op_name}\", attrs, {given})"),
        (_, 3) => format!("call::three(\"{op_name}\", attrs, {given})"),
        (_, 4) => format!("call::four(\"{op_name}\", attrs, {given})"),
        _ => format!("Ok(call::several(\"{op_name}\", attrs, {given}, outputs)?.into_vec())"),
    };
    out + &call + "\n}\n\n"
}

/// Returns which of these words occur in the code, apart from its documentation.
fn used<'a>(code: &str, words: &[&'a str]) -> Vec<&'a str> {
    let lines = code.lines().filter(|l| !l.trim_start().starts_with("///"));
    let tokens = lines.flat_map(|l| l.split(|c: char| !c.is_alphanumeric() && c != '_'));
    let tokens: std::collections::BTreeSet<&str> = tokens.collect();
    let there = words.iter().filter(|w| tokens.contains(**w));
    there.copied().collect()
}

/// The import of dtypes, where the options have one.
fn dtype_import(options: &str) -> &'static str {
    match used(options, &["DType"])[..] {
        [] => "",
        _ => "use convoke_graph::DType;\n\n",
    }
}

/// The imports of a family's methods.
fn imports(code: &str) -> String {
    let mut out = String::new();
    let result = "use convoke_common::error::Result;\n";
    out += &match used(code, &["DType", "HostTensor"])[..] {
        [] => result.to_owned(),
        ["DType"] => format!("{result}use convoke_graph::DType;\n"),
        ["HostTensor"] => format!("{result}use convoke_graph::Tensor as HostTensor;\n"),
        _ => format!("{result}use convoke_graph::{{DType, Tensor as HostTensor}};\n"),
    };
    out += "\n";
    if !used(code, &["Device"]).is_empty() {
        out += "use crate::device::Device;\n";
    }
    let args = [
        "Arg",
        "Axes",
        "HostArg",
        "OptArg",
        "OptHostArg",
        "Scalar",
        "Seed",
    ];
    let args = used(code, &args);
    if !args.is_empty() {
        writeln!(out, "use crate::tensor::args::{{{}}};", args.join(", ")).unwrap();
    }
    if !used(code, &["options"]).is_empty() {
        out += "use crate::tensor::options;\n";
    }
    out + "use crate::tensor::{Tensor, call};\n\n"
}

/// Returns the files by name, before they are formatted.
pub fn files() -> Vec<(String, String)> {
    let (mut files, mut structs) = (Vec::new(), String::new());
    let mut modules = vec!["pub mod options".to_owned()];
    for (family, ops) in ops::families() {
        let mut ops: Vec<&OpDef> = ops
            .iter()
            .filter(|op| !INTERNAL.contains(&op.name))
            .collect();
        ops.sort_by_key(|op| op.name);
        let (mut tensors, mut devices) = (String::new(), String::new());
        for op in ops {
            for (outputs, name) in methods(op) {
                let text = method_text(op, outputs, &name);
                match receiver(op) {
                    Receiver::Device => devices += &text,
                    _ => tensors += &text,
                }
            }
            let (_, optional) = attributes(op);
            if optional.len() > MOST_PLAIN {
                structs += &options(op, &optional);
            }
        }
        if tensors.is_empty() && devices.is_empty() {
            continue;
        }
        let (title, mut code) = (title(family), String::new());
        for (ty, methods) in [("Tensor", tensors), ("Device", devices)] {
            if !methods.is_empty() {
                code += &format!("/// {title}.\nimpl {ty} {{\n{methods}}}\n\n");
            }
        }
        let text = format!("//! {title}.\n//!\n//! {HEAD}{}{code}", imports(&code));
        files.push((format!("{family}.rs"), text));
        modules.push(format!("mod {family}"));
    }
    let about =
        "Attributes of ops that have many: what is `None`, or an empty list, is the op's default";
    files.push((
        "options.rs".into(),
        format!(
            "//! {about}.\n//!\n//! {HEAD}{}{structs}",
            dtype_import(&structs)
        ),
    ));
    let about = "The methods of all ops of the registry, a file for each of its families";
    modules.sort_by_key(|m| m.trim_start_matches("pub ").to_owned());
    let modules: String = modules.iter().flat_map(|m| [m.as_str(), ";\n"]).collect();
    let text = format!("//! {about}.\n//!\n//! {HEAD}{modules}");
    files.push(("mod.rs".into(), text));
    files
}
