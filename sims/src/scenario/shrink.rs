//! Smaller scenarios, which are a scenario with something left out.

use super::Scenario;

/// Returns every scenario that lacks one element of `s`, or has a simpler one; larger elements come first.
pub fn smaller(s: &Scenario) -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut Scenario)| {
        let mut t = s.clone();
        change(&mut t);
        if t != *s {
            all.push(t);
        }
    };
    for i in 0..s.clients.len() {
        if s.clients.len() > 1 {
            with(&|t| {
                t.clients.remove(i);
            });
        }
    }
    if s.workers.len() > 1 {
        with(&|t| {
            t.workers.pop();
        });
    }
    for i in 0..s.faults.len() {
        with(&|t| {
            t.faults.remove(i);
        });
    }
    for (c, client) in s.clients.iter().enumerate() {
        for m in 0..client.models.len() {
            if client.models.len() > 1 {
                with(&|t| remove_model(t, c, m));
            }
        }
        if client.calls.len() > 3 {
            let half = client.calls.len() / 2;
            with(&|t| drop(t.clients[c].calls.drain(..half)));
            with(&|t| drop(t.clients[c].calls.drain(half..)));
        }
        for i in 0..client.calls.len() {
            with(&|t| {
                t.clients[c].calls.remove(i);
            });
        }
    }
    simpler(s, &mut with);
    all
}

/// Adds the scenarios with the same elements of which one is simpler.
fn simpler(s: &Scenario, with: &mut impl FnMut(&dyn Fn(&mut Scenario))) {
    for w in 0..s.workers.len() {
        with(&|t| t.workers[w].joins = 0);
        with(&|t| t.workers[w].leaves = None);
    }
    for (c, client) in s.clients.iter().enumerate() {
        for (m, used) in client.models.iter().enumerate() {
            with(&|t| t.clients[c].models[m].pin = None);
            with(&|t| t.clients[c].models[m].at = 0);
            with(&|t| t.clients[c].models[m].in_flight = 1);
            if used.spec.nodes > 4 {
                with(&|t| t.clients[c].models[m].spec.nodes = 4);
            }
        }
        for i in 0..client.calls.len() {
            with(&|t| t.clients[c].calls[i].deadline = None);
            with(&|t| t.clients[c].calls[i].cancel = None);
            with(&|t| t.clients[c].calls[i].eager = None);
        }
    }
}

fn remove_model(s: &mut Scenario, client: usize, model: usize) {
    let client = &mut s.clients[client];
    client.models.remove(model);
    client.calls.retain(|c| c.model != model);
    for call in &mut client.calls {
        call.model -= usize::from(call.model > model);
    }
}
