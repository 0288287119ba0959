//! Requests for plans that wait until memory is released, in order.
//!
//! Invariants
//! 1. Only the first one is planned; the others wait behind it, in the order in which they came.
//! 2. The queue is bounded: in all, for each token, and for each client.
//! 3. A place is free as soon as its owner drops it, as the end of its request does.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convoke_common::actor;
use convoke_common::identity::TokenId;
use convoke_common::{Code, Error, Result};
use tokio::sync::Notify;

use crate::membership::ConnectionId;

/// Most requests that wait: of all clients, of those of one token, and of one client. Each holds a function of up to
/// one frame, which is charged to the budget of its token.
const WAITING: usize = 64;
const OF_TOKEN: usize = 48;
const OF_ONE: usize = 8;

#[derive(Debug)]
struct QueueEntry {
    number: u64,
    client: ConnectionId,
    token: TokenId,
}

#[derive(Debug, Default)]
struct Line {
    last: u64,
    waiting: VecDeque<QueueEntry>,
}

/// The requests that wait.
#[derive(Debug, Default)]
pub struct LoadQueue {
    line: Mutex<Line>,
    moved: Notify,
}

/// The place of a request in the queue, until this is dropped.
#[derive(Debug)]
pub struct QueuePlace {
    queue: Arc<LoadQueue>,
    number: u64,
}

impl LoadQueue {
    /// Returns how many requests wait.
    pub fn len(&self) -> usize {
        self.line().waiting.len()
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the last place of the queue, within the shares of the client and its token.
    pub fn enter(self: &Arc<Self>, client: ConnectionId, token: &TokenId) -> Result<QueuePlace> {
        let mut line = self.line();
        let of = |wanted: &dyn Fn(&QueueEntry) -> bool| {
            line.waiting.iter().filter(|w| wanted(w)).count()
        };
        let full = match (of(&|w| w.client == client), of(&|w| w.token == *token)) {
            (n, _) if n >= OF_ONE => Some(format!("{n} loads of this client")),
            (_, n) if n >= OF_TOKEN => Some(format!("{n} loads of the holders of token {token}")),
            _ if line.waiting.len() >= WAITING => Some(format!("{WAITING} loads")),
            _ => None,
        };
        if let Some(who) = full {
            let msg = format!("{who} wait for memory already");
            return Err(
                Error::new(Code::Busy, msg).advise("try again once some of them have ended")
            );
        }
        line.last += 1;
        let number = line.last;
        line.waiting.push_back(QueueEntry {
            number,
            client,
            token: token.clone(),
        });
        Ok(QueuePlace {
            queue: self.clone(),
            number,
        })
    }
}

impl QueuePlace {
    /// Returns how many requests wait before this one.
    pub fn ahead(&self) -> usize {
        let line = self.queue.line();
        let before = line.waiting.iter().take_while(|w| w.number != self.number);
        before.count()
    }

    /// Returns once this request is the first.
    pub async fn first(&self) {
        let first = || (self.ahead() == 0).then_some(());
        actor::found(&self.queue.moved, first).await;
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.queue
            .line()
            .waiting
            .retain(|w| w.number != self.number);
        self.queue.moved.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn token(text: &str) -> TokenId {
        text.parse().unwrap()
    }

    #[test]
    fn the_first_that_came_is_the_first_and_who_leaves_makes_room() {
        let queue = Arc::new(LoadQueue::default());
        let enter = |client| queue.enter(ConnectionId(client), &token("aaaa")).unwrap();
        let (first, second, third) = (enter(1), enter(2), enter(3));
        assert_eq!([first.ahead(), second.ahead(), third.ahead()], [0, 1, 2]);
        assert!(first.first().now_or_never().is_some());
        let mut turn = Box::pin(third.first());
        assert!(turn.as_mut().now_or_never().is_none());
        drop(second);
        assert!(turn.as_mut().now_or_never().is_none());
        drop(first);
        assert!(turn.now_or_never().is_some());
    }

    #[test]
    fn one_client_and_one_token_take_no_more_than_their_shares() {
        let queue = Arc::new(LoadQueue::default());
        let enter = |client: usize, of: &str| queue.enter(ConnectionId(client as u64), &token(of));
        let mut held: Vec<_> = (0..OF_ONE).map(|_| enter(0, "aaaa").unwrap()).collect();
        let refused = enter(0, "aaaa").unwrap_err();
        assert_eq!(refused.code, Code::Busy);
        held.extend((OF_ONE..OF_TOKEN).map(|n| enter(n, "aaaa").unwrap()));
        let refused = enter(OF_TOKEN, "aaaa").unwrap_err();
        assert!(refused.message.contains("token aaaa"), "{refused}");
        held.extend((OF_TOKEN..WAITING).map(|n| enter(n, "bbbb").unwrap()));
        assert!(enter(WAITING, "cccc").is_err());
        drop(held.pop());
        held.push(enter(WAITING, "cccc").unwrap());
        drop(held);
        assert_eq!(queue.len(), 0);
    }
}
