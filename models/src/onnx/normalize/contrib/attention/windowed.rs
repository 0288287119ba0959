//! The caches of GroupQueryAttention that hold a window of the tokens. A cache of `capacity` tokens evicts the oldest of them
//! whenever it is full, `capacity - window + 1` at once. So how many tokens it holds follows from how many there were:
//!
//! ```text
//! past     [ resident tokens | nothing ]
//! attended [ resident tokens | nothing | new tokens ]      the keys have places, by which the mask finds them
//! present  [ the last of the resident and the new tokens | nothing ]
//! ```

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::super::node::{Expansion, ImportFailure, Made, axis_of, perm_of};
use super::group_query::{Places, at_least};

/// The places of the entries of a cache, which are the same for keys and values.
pub(super) struct WindowedCache {
    /// The least capacity, a list of one number.
    window: ValueId,
    /// The places of the keys that are attended to: [batch, 1, 1, keys]. An unused key has a place behind all tokens.
    pub key_places: ValueId,
    /// The numbers, among the attended tokens, of those that the cache holds after the step: [batch, capacity, 1].
    kept: ValueId,
}

impl WindowedCache {
    pub fn of(
        e: &mut Expansion<'_>,
        places: &Places,
        past: ValueId,
        window: i64,
    ) -> Result<WindowedCache, ImportFailure> {
        let window = e.ints("window", &[window])?;
        let own = e.length(past, 2)?;
        let capacity = e.plain("Max", &[own, window])?;
        let (before, after) = (places.before, places.ends);
        let held = resident(e, before, capacity, window)?;
        let holds = resident(e, after, capacity, window)?;

        // The places of resident tokens, [batch, capacity], and of new ones, [batch, queries].
        let most = e.scalar(capacity)?;
        let slot = e.counted(most)?;
        let held = e.unsqueezed(held, &[1])?;
        let first = e.unsqueezed(before, &[1])?;
        let first = e.plain("Sub", &[first, held])?;
        let place = e.plain("Add", &[first, slot])?;
        let is_held = e.plain("Less", &[slot, held])?;
        let nowhere = e.int("nowhere", i64::MAX)?;
        let place = e.plain("Where", &[is_held, place, nowhere])?;
        let new = places.of_tokens(e)?;
        let key_places = e.joined(1, &[place, new])?;
        let key_places = e.unsqueezed(key_places, &[1, 2])?;

        // The resident tokens and the new ones, without unused entries between them; the last of them are kept.
        let tokens = e.plain("Sub", &[after, before])?;
        let tokens = e.unsqueezed(tokens, &[1])?;
        let tokens = e.plain("Add", &[held, tokens])?;
        let holds = e.unsqueezed(holds, &[1])?;
        let first = e.plain("Sub", &[tokens, holds])?;
        let token = e.plain("Add", &[first, slot])?;
        let gap = e.plain("Sub", &[most, held])?;
        let behind = e.plain("Add", &[token, gap])?;
        let is_held = e.plain("Less", &[token, held])?;
        let token = e.plain("Where", &[is_held, token, behind])?;
        let one = e.int("one", 1)?;
        let all = e.plain("Add", &[most, places.queries])?;
        let last = e.plain("Sub", &[all, one])?;
        let token = e.plain("Min", &[token, last])?;
        let kept = e.unsqueezed(token, &[2])?;
        Ok(WindowedCache {
            window,
            key_places,
            kept,
        })
    }

    /// The elements of a term of the scores that belong to the keys that are attended to: [batch, heads or 1, queries, keys].
    /// Those of `bias` belong to the places of tokens.
    pub fn of_keys(&self, e: &mut Expansion<'_>, bias: ValueId) -> Made {
        let [heads, queries, tokens] = [1, 2, -1].map(|axis| e.length(bias, axis));
        let (heads, queries, tokens) = (heads?, queries?, tokens?);
        let batch = e.length(self.key_places, 0)?;
        let keys = e.length(self.key_places, -1)?;
        // Unused keys have no place, and what their scores are does not count.
        let one = e.ints("one", &[1])?;
        let last = e.plain("Sub", &[tokens, one])?;
        let place = e.plain("Min", &[self.key_places, last])?;
        let of_places = e.joined(0, &[batch, heads, queries, keys])?;
        let place = e.plain("Expand", &[place, of_places])?;
        let of_tokens = e.joined(0, &[batch, heads, queries, tokens])?;
        let bias = e.plain("Expand", &[bias, of_tokens])?;
        e.op("GatherElements", axis_of(3), &[bias, place])
    }

    /// Keys or values as they are attended to, and as they are kept: output `o`, where that is read.
    pub fn keep(
        &self,
        e: &mut Expansion<'_>,
        o: usize,
        past: ValueId,
        x: ValueId,
    ) -> Result<(ValueId, ValueId), ImportFailure> {
        let past = at_least(e, past, self.window)?;
        let all = e.joined(2, &[past, x])?;
        if !e.is_read(o) {
            return Ok((all, all));
        }
        let by_token = e.transposed(all, &[0, 2, 1, 3])?;
        let rows = Attrs::default().with("batch_dims", Attr::Int(1));
        let kept = e.op("GatherND", rows, &[by_token, self.kept])?;
        let kept = e.last(o, "Transpose", perm_of(&[0, 2, 1, 3]), &[kept])?;
        Ok((all, kept))
    }
}

/// The number of tokens that a cache holds after this many tokens, [batch].
fn resident(e: &mut Expansion<'_>, tokens: ValueId, capacity: ValueId, window: ValueId) -> Made {
    let one = e.ints("one", &[1])?;
    let none = e.ints("none", &[0])?;
    let slack = e.plain("Sub", &[capacity, window])?;
    let at_once = e.plain("Add", &[slack, one])?;
    let over = e.plain("Sub", &[tokens, capacity])?;
    let over = e.plain("Max", &[over, none])?;
    let over = e.plain("Add", &[over, slack])?;
    let times = e.plain("Div", &[over, at_once])?;
    let evicted = e.plain("Mul", &[times, at_once])?;
    let held = e.plain("Sub", &[tokens, evicted])?;
    e.cast(held, DType::I64)
}
