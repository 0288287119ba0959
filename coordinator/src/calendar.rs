//! Dates, as people and log files write them.

/// A date and time in UTC, to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Utc {
    pub year: u64,
    pub month: u64,
    pub day: u64,
    pub hour: u64,
    pub minute: u64,
    pub second: u64,
}

impl Utc {
    /// Converts seconds since 1970. The date is Howard Hinnant's `civil_from_days`.
    pub fn of(seconds: u64) -> Utc {
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        let z = days + 719_468;
        let (era, day_of_era) = (z / 146_097, z % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month + 2) / 5 + 1;
        let (year, month) = match month {
            0..=9 => (era * 400 + year_of_era, month + 3),
            _ => (era * 400 + year_of_era + 1, month - 9),
        };
        Utc {
            year,
            month,
            day,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, date, time) in [
            (0, [1970, 1, 1], [0, 0, 0]),
            (951_782_400, [2000, 2, 29], [0, 0, 0]),
            (4_102_444_799, [2099, 12, 31], [23, 59, 59]),
        ] {
            let utc = Utc::of(seconds);
            assert_eq!([utc.year, utc.month, utc.day], date);
            assert_eq!([utc.hour, utc.minute, utc.second], time);
        }
    }
}
