//! The seeds of an exploration, in batches: a corpus, a range, and fresh ones for as long as there is time.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use crate::draw::Draw;
use crate::scenario::ScenarioKind;

/// Seeds of one batch: enough that the start of a process does not matter, few enough that the death of one costs
/// little, and that an exploration that has to end does so within seconds. Swarms take some ten times as long.
fn batch(kind: ScenarioKind) -> u64 {
    match kind {
        ScenarioKind::Plain => 25,
        ScenarioKind::Swarm => 3,
    }
}

/// Fresh seeds lie below this, so that they are written in few digits.
const FRESH: u64 = 1 << 40;

/// A seed of a corpus, and the kind of scenario that it draws.
pub type CorpusEntry = (ScenarioKind, u64);

/// The seeds that an exploration runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeedPlan {
    /// Seeds to run first.
    pub corpus: Vec<CorpusEntry>,
    /// The kind of scenario that all other seeds draw.
    pub kind: ScenarioKind,
    /// Seeds to run next.
    pub range: Range<u64>,
    /// The seeds that are run after the others until the time is over: kinds of scenarios, which take turns by batches, and
    /// the first seed of each. Empty if there are none.
    pub fresh: Vec<CorpusEntry>,
    /// How long batches are begun: fresh ones from when all others have begun; without fresh ones, all of them from the
    /// beginning. `None` while there are any.
    pub lasts: Option<Duration>,
    /// Whether scenarios aim at the cells with a timer, too, which are many.
    pub timers: bool,
}

/// The first of the seeds that follow from a text, such as the hash of a commit, for every kind of scenario.
pub fn fresh_from(text: &str) -> u64 {
    Draw::new(0).fork("fresh").fork(text).below(FRESH)
}

/// Reads a corpus: one seed at the beginning of each line, after the kind of its scenario where that is not plain, and with
/// a remark behind it. Empty lines and those that begin with `#` are no seeds.
pub fn read_corpus(path: &Path) -> anyhow::Result<Vec<CorpusEntry>> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|l| !l.is_empty() && !l.starts_with('#'));
    let seed = |line: &str| {
        let named = |kind: &ScenarioKind| Some((*kind, line.strip_prefix(kind.name())?));
        let kind = ScenarioKind::ALL.iter().find_map(named);
        let (kind, rest) = kind.unwrap_or((ScenarioKind::default(), line));
        let first = rest.split_whitespace().next().unwrap_or_default();
        let seed = first.parse();
        let seed = seed.with_context(|| format!("'{first}' in {} is no seed", path.display()))?;
        Ok((kind, seed))
    };
    lines.map(seed).collect()
}

/// Reads a duration such as `90s`, `10m` or `8h`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is no duration; 90s, 10m and 8h are");
    let (number, unit) = text
        .split_at_checked(text.len().saturating_sub(1))
        .ok_or_else(bad)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    let seconds = number.checked_mul(seconds).ok_or_else(bad)?;
    Ok(Duration::from_secs(seconds))
}

impl SeedPlan {
    /// The batches in the order in which they begin.
    pub(super) fn batches(&self) -> Batches {
        Batches {
            corpus: self.corpus.iter().copied().collect(),
            kind: self.kind,
            range: self.range.clone(),
            fresh: self.fresh.iter().copied().collect(),
            fresh_since: None,
            lasts: self.lasts,
        }
    }
}

/// The batches that have not begun.
pub(super) struct Batches {
    corpus: VecDeque<CorpusEntry>,
    kind: ScenarioKind,
    range: Range<u64>,
    /// The kinds of fresh scenarios, the one whose turn is next first, and the next seed of each. Batches of every kind take
    /// about as long, so that each kind has an equal share of the time.
    fresh: VecDeque<CorpusEntry>,
    /// When all seeds of the corpus and of the range had begun.
    fresh_since: Option<Duration>,
    lasts: Option<Duration>,
}

impl Batches {
    fn is_over(&self, elapsed: Duration) -> bool {
        self.lasts.is_some_and(|lasts| elapsed >= lasts)
    }

    /// The batch that begins when the exploration has run for `elapsed`; `None` if no further one does. Seeds of the
    /// corpus and of the range are run however long they take, unless there are no fresh ones.
    pub(super) fn next(&mut self, elapsed: Duration) -> Option<(ScenarioKind, Range<u64>)> {
        if self.fresh.is_empty() && self.is_over(elapsed) {
            return None;
        }
        if let Some((kind, seed)) = self.corpus.pop_front() {
            return Some((kind, seed..seed.checked_add(1)?));
        }
        if !self.range.is_empty() {
            let from = self.range.start;
            let to = from.saturating_add(batch(self.kind)).min(self.range.end);
            self.range.start = to;
            return Some((self.kind, from..to));
        }
        let since = *self.fresh_since.get_or_insert(elapsed);
        let over = self.is_over(elapsed.saturating_sub(since));
        if over {
            return None;
        }
        let (kind, from) = self.fresh.pop_front()?;
        let to = from.checked_add(batch(kind))?;
        self.fresh.push_back((kind, to));
        Some((kind, from..to))
    }

    /// For each kind of fresh scenario the seed after the last one that has begun.
    pub(super) fn fresh_ends(&self) -> BTreeMap<ScenarioKind, u64> {
        self.fresh.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_corpus_comes_first_and_fresh_seeds_until_the_time_is_over() {
        let (plain, swarm) = (ScenarioKind::Plain, ScenarioKind::Swarm);
        let plan = SeedPlan {
            corpus: vec![(plain, 9), (swarm, 4)],
            kind: plain,
            range: 100..130,
            fresh: vec![(plain, 1000), (swarm, 2000)],
            lasts: Some(SECOND),
            timers: false,
        };
        let mut batches = plan.batches();
        // However long the others take, the time of the fresh ones counts from their end.
        let late = SECOND * 2;
        let got: Vec<_> = (0..7).filter_map(|_| batches.next(late)).collect();
        assert_eq!(
            got,
            [
                (plain, 9..10),
                (swarm, 4..5),
                (plain, 100..125),
                (plain, 125..130),
                (plain, 1000..1025),
                (swarm, 2000..2003),
                (plain, 1025..1050)
            ]
        );
        let nearly = late + SECOND - Duration::from_millis(1);
        assert_eq!(batches.next(nearly), Some((swarm, 2003..2006)));
        assert_eq!(batches.next(late + SECOND), None);
        assert_eq!(batches.fresh_ends(), [(plain, 1050), (swarm, 2006)].into());
    }

    #[test]
    fn a_range_ends_early_where_its_time_is_over() {
        let plan = SeedPlan {
            range: 0..100,
            lasts: Some(SECOND),
            ..SeedPlan::default()
        };
        let mut batches = plan.batches();
        let first = (ScenarioKind::Plain, 0..25);
        assert_eq!(batches.next(Duration::ZERO), Some(first));
        assert_eq!(batches.next(SECOND), None);
    }

    #[test]
    fn fresh_seeds_follow_from_the_text() {
        assert_eq!(fresh_from("9c3753d"), fresh_from("9c3753d"));
        assert_ne!(fresh_from("9c3753d"), fresh_from("75dce19"));
        assert!(fresh_from("75dce19") < FRESH);
    }

    #[test]
    fn durations_are_read() {
        let ok = |text: &str| duration(text).ok().map(|d| d.as_secs());
        assert_eq!(
            ["90s", "10m", "8h", "", "8", "h", "8d", "-1s", "1é"].map(ok),
            [
                Some(90),
                Some(600),
                Some(28_800),
                None,
                None,
                None,
                None,
                None,
                None
            ]
        );
    }

    #[test]
    fn the_corpus_of_the_repository_is_read() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus.txt");
        let seeds = read_corpus(&path).unwrap();
        assert!(seeds.len() >= 54 && seeds.contains(&(ScenarioKind::Plain, 8_010_043_136)));
        let mut once = seeds.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), seeds.len(), "a seed stands there twice");
    }
}
