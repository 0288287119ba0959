//! Comparison of strings, by their bytes.

use convoke_graph::ops::attrs::flag;
use convoke_graph::{DType, Outputs};

use super::sort::{count_up, sort};
use super::strings::{PIECE, made, places, strings};
use crate::cpu::kernel::{FamilyAnswer, KernelFailure, OpLaunch, Spec, body, one, write};

/// Computes `Equal`.
pub(super) fn equal(call: &OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let mut y = call.output(0)?;
    let places = [places(call, 0)?, places(call, 1)?];
    let [a, b] = [&places[0], &places[1]].map(|t| t.as_slice::<u64>());
    let (a, b) = (a?, b?);
    let (left, right) = (strings(call, 0)?, strings(call, 1)?);
    for (i, y) in write::<u8>(&mut y)?.iter_mut().enumerate() {
        if i.is_multiple_of(PIECE) {
            call.launch.exec.check()?;
        }
        *y = u8::from(left.get(a[i] as usize) == right.get(b[i] as usize));
    }
    one(y)
}

/// Makes the kernel of `Unique` of the strings of a flattened tensor.
pub(super) fn unique(spec: &Spec<'_>) -> FamilyAnswer {
    if spec.attrs.get("axis").is_some() {
        return Err(spec.bad_attr("axis", "cannot be given with strings"));
    }
    body(|call| different(&call))
}

fn different(call: &OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
    let exec = &call.launch.exec;
    let x = strings(call, 0)?;
    let n = x.len();
    let longs = || call.scratch::<i64>(n);
    let (mut order, mut spare) = (longs()?, longs()?);
    let order = write::<i64>(&mut order)?;
    count_up(order);
    sort(exec, order, write::<i64>(&mut spare)?, |a, b| {
        x.get(a).cmp(x.get(b))
    })?;
    // In the sorted order equal strings are neighbours, the first of them in front.
    let (mut groups, mut group_of) = (longs()?, longs()?);
    let (groups, group_of) = (write::<i64>(&mut groups)?, write::<i64>(&mut group_of)?);
    let mut count = 0;
    for (k, place) in order.iter().enumerate() {
        if k.is_multiple_of(PIECE) {
            exec.check()?;
        }
        let text = |place: &i64| x.get(*place as usize);
        if k == 0 || text(&order[k - 1]) != text(place) {
            groups[count] = *place;
            count += 1;
        }
        group_of[*place as usize] = count as i64 - 1;
    }
    let groups = &mut groups[..count];
    // By group, its place in the result.
    let mut rank = call.scratch::<i64>(count)?;
    let rank = write::<i64>(&mut rank)?;
    if flag(call.attrs, "sorted", true) {
        rank.iter_mut().enumerate().for_each(|(g, r)| *r = g as i64);
    } else {
        let mut next = 0;
        let mut firsts = vec![];
        firsts
            .try_reserve_exact(count)
            .map_err(|_| KernelFailure::values("there is no memory to put the strings in order"))?;
        for (i, g) in group_of.iter().enumerate() {
            if groups[*g as usize] == i as i64 {
                rank[*g as usize] = next;
                next += 1;
                firsts.push(i as i64);
            }
        }
        groups.copy_from_slice(&firsts);
    }
    let y = made(exec, call.launch.pool, &[count], |i, sink| {
        Ok(sink(x.get(groups[i] as usize))?)
    })?;
    let mut all = Outputs::from([y]);
    let ints = |n: usize| call.launch.pool.tensor(DType::I64, &[n]);
    if call.outputs.len() > 1 {
        let mut first = ints(count)?;
        write::<i64>(&mut first)?.copy_from_slice(groups);
        all.push(first);
    }
    if call.outputs.len() > 2 {
        let mut place = ints(n)?;
        for (to, g) in write::<i64>(&mut place)?.iter_mut().zip(group_of.iter()) {
            *to = rank[*g as usize];
        }
        all.push(place);
    }
    if call.outputs.len() > 3 {
        let mut times = ints(count)?;
        let times_of = write::<i64>(&mut times)?;
        times_of.fill(0);
        group_of
            .iter()
            .for_each(|g| times_of[rank[*g as usize] as usize] += 1);
        all.push(times);
    }
    Ok(all)
}
