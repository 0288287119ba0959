//! The checks of answers: which plans they accept and refuse.

use convoke_graph::DType;
use convoke_graph::graph::TensorType;
use convoke_graph::program::{DriverSlot, Feed, Fetch, FetchFrom};

use super::*;

/// A plan of one worker and the driver: `x` goes to the worker, `y` comes from it, and `x` is a result too.
fn planned() -> PlanAnswer {
    let participant = |name: &str| Participant {
        name: name.into(),
        incarnation: Incarnation(1),
        address: String::new(),
    };
    let ty = || TensorType::fixed(DType::F32, &[1]);
    let fetch = |from| Fetch {
        name: "y".into(),
        ty: ty(),
        from,
    };
    PlanAnswer {
        plan: PlanId(1),
        participants: vec![participant("w0"), participant("me")],
        driver: DriverProgram {
            feeds: vec![Feed {
                name: "x".into(),
                ty: ty(),
                to: vec![(0, 3)],
            }],
            fetches: vec![
                fetch(FetchFrom::Worker { from: 0, slot: 0 }),
                fetch(FetchFrom::Param(0)),
            ],
            slots: vec![DriverSlot { from: 0, ty: ty() }],
        },
        axes: Axes::default(),
        summary: PlanSummary {
            parts: vec![],
            cut_edges: vec![],
            pins: vec![],
            stages: vec![],
            step_ns: 0,
            single_ns: None,
            passes: vec![],
            warnings: vec![],
            bodies: vec![],
        },
        nodes: vec![],
    }
}

#[test]
fn a_plan_names_only_what_is_there() {
    planned().check().unwrap();
    let check = |wrong: fn(&mut PlanAnswer)| {
        let mut planned = planned();
        wrong(&mut planned);
        assert_eq!(planned.check().unwrap_err().code, Code::ProtocolViolation);
    };
    check(|p| p.participants.clear());
    check(|p| p.driver.feeds[0].to[0].0 = 1);
    check(|p| p.driver.slots[0].from = 1);
    check(|p| p.driver.fetches[0].from = FetchFrom::Worker { from: 0, slot: 1 });
    check(|p| p.driver.fetches[0].from = FetchFrom::Worker { from: 1, slot: 0 });
    check(|p| p.driver.fetches[1].from = FetchFrom::Param(1));
}
