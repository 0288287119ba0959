//! Pins: node-name patterns and the workers that run what they match.

use convoke_common::graph::Function;
use convoke_common::{Code, Error, Result};

use super::cluster::ClusterModel;
use super::segment::UNPINNED;
use super::work::Work;

/// Fails where a pattern matches no node of the function as it was given.
pub fn check(f: &Function, pins: &[(String, String)]) -> Result<()> {
    let unknown = |pattern: &str| !f.nodes.iter().any(|n| matches_node(pattern, &n.name));
    match pins.iter().find(|(pattern, _)| unknown(pattern)) {
        Some((pattern, _)) => {
            let msg = format!("the pin '{pattern}' matches no node");
            let advice = "`convoke plan` lists node names; `*` matches anything";
            Err(Error::new(Code::InvalidArgument, msg).advise(advice))
        }
        None => Ok(()),
    }
}

/// The worker that each position is pinned to, or [`UNPINNED`]; the first pattern that matches counts. And the patterns
/// that match none: their nodes were removed, merged with others, or run at install.
pub fn resolve(
    f: &Function,
    work: &Work,
    cluster: &ClusterModel,
    pins: &[(String, String)],
) -> Result<(Vec<u16>, Vec<String>)> {
    let mut pinned = vec![UNPINNED; work.positions()];
    if pins.is_empty() {
        return Ok((pinned, vec![]));
    }
    let workers: Result<Vec<u16>> = pins.iter().map(|(_, name)| worker(cluster, name)).collect();
    let workers = workers?;
    let mut hits = vec![false; pins.len()];
    for (p, node) in work.steps.iter().enumerate() {
        let name = &f.nodes[*node as usize].name;
        for (i, (pattern, _)) in pins.iter().enumerate() {
            if matches_node(pattern, name) {
                hits[i] = true;
                if pinned[p] == UNPINNED {
                    pinned[p] = workers[i];
                }
            }
        }
    }
    work.join(&mut pinned);
    let idle = pins.iter().zip(&hits).filter(|(_, hit)| !**hit);
    let idle = idle.map(|((pattern, _), _)| pattern.clone());
    Ok((pinned, idle.collect()))
}

fn worker(cluster: &ClusterModel, name: &str) -> Result<u16> {
    let found = cluster.workers.iter().position(|w| w.name == name);
    found.and_then(|i| u16::try_from(i).ok()).ok_or_else(|| {
        let names: Vec<&str> = cluster.workers.iter().map(|w| &*w.name).collect();
        let msg = format!("a pin names worker '{name}', which is not there");
        Error::new(Code::InvalidArgument, msg)
            .advise(format!("the workers are {}", names.join(", ")))
    })
}

/// Whether `pattern` matches the name, or one of the names that a fused node lists.
fn matches_node(pattern: &str, name: &str) -> bool {
    glob(pattern, name) || (name.contains('+') && name.split('+').any(|part| glob(pattern, part)))
}

/// Whether `pattern`, in which `*` matches anything, matches all of `text`.
fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut rest = rest;
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        let yes = [
            ("*", ""),
            ("a*", "abc"),
            ("*c", "abc"),
            ("a*c", "ac"),
            ("*b*", "abc"),
            ("abc", "abc"),
        ];
        let no = [
            ("a", "ab"),
            ("a*b", "abc"),
            ("*x*", "abc"),
            ("ab*ba", "aba"),
            ("", "a"),
        ];
        assert!(yes.iter().all(|(p, t)| glob(p, t)));
        assert!(!no.iter().any(|(p, t)| glob(p, t)));
        assert!(matches_node("/head/*", "/body/Conv+/head/Relu"));
    }
}
