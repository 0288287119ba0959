//! The order of a step's nodes: by priority among those whose operands are there, as if every tensor of a peer were
//! there from the beginning.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use convoke_graph::csr::Csr;
/// Orders the nodes. `reads` lists (value, node) for each operand; `made_by` gives the node that makes a value, if one
/// does.
pub(super) fn order(priorities: &[u64], made_by: &[Option<u32>], reads: &[(u32, u32)]) -> Vec<u32> {
    let nodes = priorities.len();
    let needs: Vec<(u32, u32)> = reads
        .iter()
        .filter_map(|(value, node)| Some((made_by[*value as usize]?, *node)))
        .collect();
    let consumers = Csr::group(nodes, &needs);
    let mut missing = vec![0u32; nodes];
    needs.iter().for_each(|(_, n)| missing[*n as usize] += 1);
    let entry = |n: u32| (priorities[n as usize], Reverse(n));
    let mut ready: BinaryHeap<_> = (0..nodes as u32)
        .filter(|n| missing[*n as usize] == 0)
        .map(entry)
        .collect();
    let mut order = Vec::with_capacity(nodes);
    while let Some((_, Reverse(node))) = ready.pop() {
        order.push(node);
        for n in consumers.row(node) {
            let m = &mut missing[*n as usize];
            *m -= 1;
            if *m == 0 {
                ready.push(entry(*n));
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_urgent_of_those_that_can_run() {
        // Node 0 makes a, 1 makes b, 2 reads a, 3 reads a and b twice.
        let made_by = [Some(0), Some(1), None];
        let reads = [(0, 2), (0, 3), (1, 3), (1, 3), (2, 0)];
        let check = |priorities: [u64; 4], want: [u32; 4]| {
            assert_eq!(order(&priorities, &made_by, &reads), want);
        };
        check([1, 1, 1, 1], [0, 1, 2, 3]);
        check([1, 2, 1, 3], [1, 0, 3, 2]);
        check([2, 1, 3, 9], [0, 2, 1, 3]);
    }
}
