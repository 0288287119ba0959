//! The joins with each token, whose number in a minute is bounded.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convoke_common::identity::TokenId;
use convoke_common::{Code, Error, Result};
use tokio::time::Instant;

/// The period in which the joins with a token are counted.
const MINUTE: Duration = Duration::from_secs(60);

/// For each token with joins in the last minute: since when they are counted, and their number.
#[derive(Debug, Default)]
pub struct Joins(Mutex<BTreeMap<TokenId, (Instant, u32)>>);

impl Joins {
    fn tokens(&self) -> MutexGuard<'_, BTreeMap<TokenId, (Instant, u32)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a join with a valid token, or refuses it if there were too many.
    pub fn enter(&self, now: Instant, token: &TokenId, most: u32) -> Result<()> {
        let mut tokens = self.tokens();
        tokens.retain(|_, (since, _)| now.duration_since(*since) < MINUTE);
        let (_, count) = tokens.entry(token.clone()).or_insert((now, 0));
        if *count >= most {
            let msg = format!("{most} members joined with the token {token} within a minute");
            return Err(Error::new(Code::Busy, msg).advise(
                "try again in a minute, or use a token made with `convoke token create --joins`",
            ));
        }
        *count += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_lets_in_so_many_in_a_minute() {
        let (joins, start) = (Joins::default(), Instant::now());
        let [a, b] = ["aaaa", "bbbb"].map(|t| t.parse::<TokenId>().unwrap());
        assert!((0..3).all(|_| joins.enter(start, &a, 3).is_ok()));
        assert_eq!(joins.enter(start, &a, 3).unwrap_err().code, Code::Busy);
        assert!(joins.enter(start, &b, 3).is_ok());
        assert!(joins.enter(start + MINUTE, &a, 3).is_ok());
        assert_eq!(joins.tokens().len(), 1);
    }
}
