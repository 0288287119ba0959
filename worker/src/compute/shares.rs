//! How many threads each of the jobs that run at once may use.

use convoke_common::world::{AccountId, Share};

/// Divides `threads` among jobs with these shares: among the accounts by weight, then among the jobs of each account
/// equally. Each job gets at least one thread; threads that are left over go to the first jobs.
pub(super) fn divide(threads: usize, jobs: &[Share]) -> Vec<usize> {
    let of = |account: &AccountId| jobs.iter().filter(|job| job.account() == account).count();
    let first = |i: &usize| {
        let account = jobs[*i].account();
        jobs[..*i].iter().all(|job| job.account() != account)
    };
    let accounts = (0..jobs.len()).filter(first);
    let weights: u64 = accounts.map(|i| u64::from(jobs[i].weight().max(1))).sum();
    let width = |job: &Share| {
        let all = threads as u64 * u64::from(job.weight().max(1));
        let parts = weights * of(job.account()) as u64;
        ((all / parts.max(1)) as usize).max(1)
    };
    let mut widths: Vec<usize> = jobs.iter().map(width).collect();
    let left = threads.saturating_sub(widths.iter().sum());
    let jobs = widths.len().max(1);
    for i in 0..left {
        if let Some(width) = widths.get_mut(i % jobs) {
            *width += 1;
        }
    }
    widths
}

#[cfg(test)]
mod tests {
    use convoke_common::identity::Weight;
    use convoke_common::ids::LeaseId;

    use super::*;

    fn check<const N: usize>(threads: usize, jobs: [(&str, u32); N], want: [usize; N]) {
        let share = |(account, times): (&str, u32)| {
            let weight = Weight::new(times).unwrap();
            Share::of_member(AccountId::named(account), account, weight, LeaseId(1))
        };
        assert_eq!(divide(threads, &jobs.map(share)), want);
    }

    #[test]
    fn threads_are_divided_among_accounts_and_then_among_jobs() {
        check(16, [("a", 1)], [16]);
        check(16, [("a", 1), ("b", 1)], [8, 8]);
        check(16, [("a", 1), ("a", 1), ("b", 1), ("a", 1)], [3, 3, 8, 2]);
        check(8, [("a", 3), ("b", 1)], [6, 2]);
        check(3, [("a", 1), ("b", 1)], [2, 1]);
        check(2, [("a", 9), ("b", 1)], [1, 1]);
        check(1, [("a", 1)], [1]);
        check(4, [], []);
    }
}
