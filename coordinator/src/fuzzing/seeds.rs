//! Seeds of the corpora: records of the state, requests of the command line, and functions to plan.

#[path = "../../../fuzz/src/seed.rs"]
mod seed;

use convoke_common::identity::{CaHash, Role};
use convoke_common::ids::Incarnation;
use convoke_common::rpc::WorkerCount;
use convoke_common::world::Rng;
use convoke_graph::ids::FunctionId;

use super::*;
use crate::membership::CountedDeath;
use crate::testing::{options, parse};
use seed::Seed;

struct Sevens;

impl Rng for Sevens {
    fn fill(&self, out: &mut [u8]) {
        out.fill(7);
    }
}

fn records() -> Vec<Seed> {
    let mut book = TokenStore::default();
    book.create(&Sevens, CaHash::from_bytes([1; 32]), Role::Worker, None, 5);
    let holders: Vec<Fingerprint> = vec![[1; 32], [2; 32]];
    let death = |incarnation| CountedDeath {
        worker: "w0".into(),
        incarnation: Incarnation(incarnation),
        signal: 11,
        at: NOW - 60,
        forgiven: false,
    };
    let record = Record {
        function: FunctionId([7; 32]),
        node: "/layer/0/MatMul".into(),
        deaths: vec![death(1), death(2)],
    };
    let kept = [
        ("tokens", codec::encode(&book)),
        ("holders", codec::encode(&holders)),
        ("deaths", codec::encode(&record)),
    ];
    let seed = |(decoder, (name, bytes)): (u8, (&str, Result<Vec<u8>, _>))| {
        let input = [&[decoder], &bytes.unwrap()[..]].concat();
        ("records", name.to_owned(), input)
    };
    (0..).zip(kept).map(seed).collect()
}

fn admin() -> Vec<Seed> {
    let requests = [
        r#"{"create_token":{"role":"worker","ttl_seconds":60}}"#,
        r#""list_tokens""#,
        r#"{"revoke_token":{"id":"abc234"}}"#,
        r#"{"drain":{"name":"w0"}}"#,
        r#"{"lift_quarantine":{"node":"/layer/0/MatMul"}}"#,
    ];
    let answers = [
        r#"{"token":"convoke1-w-aebagbaf"}"#,
        r#"{"tokens":[{"id":"abc234","role":"worker","created":5,"expires":65,"revoked":false}]}"#,
        r#"{"there":true}"#,
        r#""done""#,
        r#"{"failed":{"code":"not_found","message":"none","advice":"look","site":null,"stopped":[],"attached":[]}}"#,
    ];
    let seed = |kind: u8, name: &str, (i, line): (usize, &str)| {
        let input = [&[kind], line.as_bytes()].concat();
        ("admin", format!("{name}-{i}"), input)
    };
    let requests = requests.into_iter().enumerate();
    let answers = answers.into_iter().enumerate();
    requests
        .map(|r| seed(0, "request", r))
        .chain(answers.map(|a| seed(1, "answer", a)))
        .collect()
}

fn plans() -> Vec<Seed> {
    let functions = [
        (
            "layer",
            "param x: f32[n, 16]\nweight w: f32[16, 16]\nweight b: f32[16]\nh = MatMul(x, w)
             s = Add(h, b)\ny = Relu(s)\nresult y",
        ),
        (
            "norm",
            "param x: f32[1, 3, 8, 8]\nweight w: f32[4, 3, 3, 3]\nweight s: f32[4]\nweight b: f32[4]
             weight m: f32[4]\nweight v: f32[4]\nc = Conv(x, w)
             n = BatchNormalization(c, s, b, m, v)\ny = Relu(n)\nresult y",
        ),
        (
            "shared",
            "param x: f32[n, 4]\nweight w: f32[4]\ninit k = Neg(w)\na = Add(x, k)\nb = Add(x, k)
             c = Identity(a)\nd = Mul(b, c)\nresult d\nresult x\nresult k",
        ),
        (
            "shapes",
            "param x: f32[n, s, 4]\nconst zero: i64[1] = 0\nconst rest: i64[1] = -1\nshape = Shape(x)
             first = Gather(shape, zero) {axis=0}\ntarget = Concat(first, rest) {axis=0}
             y = Reshape(x, target)\nresult y",
        ),
    ];
    let seed = |(name, text): (&str, &str)| {
        let function = parse(text);
        let options = options(&function, WorkerCount::Auto);
        let input = codec::encode(&(function, options)).unwrap();
        ("plan", name.to_owned(), input)
    };
    functions.map(seed).into()
}

#[test]
fn seeds_are_of_the_current_formats() {
    let entries: Vec<_> = TARGETS.iter().map(|t| (t.name, t.entry)).collect();
    seed::check(&entries, [records(), admin(), plans()].concat());
}
