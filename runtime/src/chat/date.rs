//! `strftime` in the C locale and UTC, as far as templates use it.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// From the day of 1970-01-01 on.
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const SECONDS_PER_DAY: u64 = 86_400;

/// `now` in the given format; an error names a directive that is not known, or a time before 1970.
pub(super) fn strftime(now: SystemTime, format: &str) -> Result<String, String> {
    let seconds =
        now.duration_since(UNIX_EPOCH).map_err(|_| "strftime_now: the time is before 1970")?.as_secs();
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        match character {
            '%' => text += &directive(seconds, characters.next())?,
            _ => text.push(character),
        }
    }
    Ok(text)
}

fn directive(seconds: u64, name: Option<char>) -> Result<String, String> {
    let (days, second) = (seconds / SECONDS_PER_DAY, seconds % SECONDS_PER_DAY);
    let [year, month, day] = civil(days);
    let month_name = MONTHS[month as usize - 1];
    let weekday = WEEKDAYS[(days % 7) as usize];
    let hour = second / 3600;
    Ok(match name {
        Some('Y') => year.to_string(),
        Some('y') => format!("{:02}", year % 100),
        Some('m') => format!("{month:02}"),
        Some('d') => format!("{day:02}"),
        Some('e') => format!("{day:2}"),
        Some('j') => format!("{:03}", days - days_before(year) + 1),
        Some('B') => month_name.into(),
        Some('b') => month_name[..3].into(),
        Some('A') => weekday.into(),
        Some('a') => weekday[..3].into(),
        Some('H') => format!("{hour:02}"),
        Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
        Some('p') => if hour < 12 { "AM" } else { "PM" }.into(),
        Some('M') => format!("{:02}", second / 60 % 60),
        Some('S') => format!("{:02}", second % 60),
        Some('F') => format!("{year}-{month:02}-{day:02}"),
        Some('T') => format!("{hour:02}:{:02}:{:02}", second / 60 % 60, second % 60),
        Some('%') => "%".into(),
        Some(other) => return Err(format!("strftime_now: %{other} is not supported")),
        None => return Err("strftime_now: the format ends with %".into()),
    })
}

/// Year, month and day of the day that comes `days` after 1970-01-01.
fn civil(days: u64) -> [u64; 3] {
    // Off by one at most: 400 years have 146,097 days.
    let guess = 1970 + days * 400 / 146_097;
    let year = if days_before(guess) > days { guess - 1 } else { guess };
    let year = if days_before(year + 1) <= days { year + 1 } else { year };
    let mut left = days - days_before(year);
    let february = if is_leap(year) { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    for (month, length) in (1..).zip(lengths) {
        if left < length {
            return [year, month, left + 1];
        }
        left -= length;
    }
    [year, 12, 31]
}

/// Days from 1970-01-01 to the first of `year`.
fn days_before(year: u64) -> u64 {
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    (year - 1970) * 365 + leaps(year - 1) - leaps(1969)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::strftime;

    /// Numbers from GNU date.
    #[test]
    fn dates_are_those_of_the_calendar() {
        let all = "%Y %y %m %d %e %j %B %b %A %a %H %I %p %M %S %F %T %%";
        for (seconds, expected) in [
            (0, "1970 70 01 01  1 001 January Jan Thursday Thu 00 12 AM 00 00 1970-01-01 00:00:00 %"),
            (
                951_782_400,
                "2000 00 02 29 29 060 February Feb Tuesday Tue 00 12 AM 00 00 2000-02-29 00:00:00 %",
            ),
            (
                1_735_689_599,
                "2024 24 12 31 31 366 December Dec Tuesday Tue 23 11 PM 59 59 2024-12-31 23:59:59 %",
            ),
            (1_741_507_502, "2025 25 03 09  9 068 March Mar Sunday Sun 08 08 AM 05 02 2025-03-09 08:05:02 %"),
            (4_107_585_600, "2100 00 03 01  1 060 March Mar Monday Mon 12 12 PM 00 00 2100-03-01 12:00:00 %"),
        ] {
            assert_eq!(strftime(UNIX_EPOCH + Duration::from_secs(seconds), all).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_one_before() {
        let mut last = [1969, 12, 31];
        for days in 0..146_097 {
            let [year, month, day] = super::civil(days);
            let [last_year, last_month, _] = last;
            let follows = [last[0], last[1], last[2] + 1] == [year, month, day]
                || [last_year, last_month + 1, 1] == [year, month, day]
                || [last_year + 1, 1, 1] == [year, month, day];
            assert!(follows, "{last:?} {year} {month} {day}");
            last = [year, month, day];
        }
        assert_eq!(last, [2369, 12, 31]);
    }

    #[test]
    fn unknown_directives_are_named() {
        assert_eq!(strftime(UNIX_EPOCH, "%Q").unwrap_err(), "strftime_now: %Q is not supported");
        assert!(strftime(UNIX_EPOCH, "100 %").unwrap_err().contains("ends with %"));
        assert!(strftime(UNIX_EPOCH - Duration::from_secs(1), "").unwrap_err().contains("before 1970"));
    }
}
