//! Corpus inputs for the socket between processes that share memory.

use super::{Seed, chosen};

/// One write of a script, with the number of the files that accompany it.
fn write(files: u8, bytes: &[u8]) -> Vec<u8> {
    [&[files, bytes.len() as u8], bytes].concat()
}

fn message(number: u64, len: u64) -> Vec<u8> {
    [number, len].map(u64::to_le_bytes).concat()
}

fn script(writes: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![writes.len() as u8];
    writes.iter().for_each(|w| out.extend(w));
    out
}

pub(super) fn seeds() -> Vec<Seed> {
    let seed = |name: &str, input| ("memory", name.to_owned(), input);
    let (given, forgotten) = (message(3, 4096), message(3, 0));
    let (head, tail) = given.split_at(5);
    let scripts = [
        ("given", script(&[write(1, &given), write(0, &forgotten)])),
        ("sparse", script(&[write(2, &message(4, 1 << 40))])),
        ("pieces", script(&[write(0, head), write(1, tail)])),
        ("files", script(&[write(8, &given), write(9, &given)])),
        ("forgotten", script(&[write(0, &forgotten)])),
    ];
    let scripts = scripts.map(|(name, s)| seed(name, chosen(3, &s)));
    let mut seeds = vec![
        seed("nonce", chosen(0, &[7; 32])),
        seed("expected", chosen(1, &[1])),
        seed("has", chosen(2, &3u64.to_le_bytes())),
    ];
    seeds.extend(scripts);
    seeds
}
