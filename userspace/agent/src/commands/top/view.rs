//! The cells of a line, for a table on paper and on the screen.

use super::rates::Row;

pub(super) const HEADINGS: [&str; 11] = [
    "CLIENT",
    "TABLE",
    "KIND",
    "OP/s",
    "P50",
    "P99",
    "MAX",
    "ERR/s",
    "ROWS/s",
    "BYTES/s",
    "STATEMENT",
];

/// The columns of numbers.
pub(super) const NUMBERS: std::ops::Range<usize> = 3..10;

/// The cells under [`HEADINGS`].
pub(super) fn cells(row: &Row) -> [String; 11] {
    let asked = &row.asked;
    [
        safe(asked.who()),
        safe(&asked.table()),
        safe(&asked.kind),
        rate(row.per_second),
        time(row.p50_us),
        time(row.p99_us),
        time(row.max_us),
        rate(row.errors_per_second),
        rate(row.rows_per_second),
        rate(row.bytes_per_second),
        safe(&asked.statement),
    ]
}

/// Applications choose these texts: a control character could forge what the terminal shows.
pub(super) fn safe(text: &str) -> String {
    text.replace(char::is_control, "?")
}

/// A number of something a second, in four digits or fewer.
pub(super) fn rate(per_second: f64) -> String {
    let (mut number, mut unit) = (per_second, "");
    for larger in ["k", "M", "G"] {
        if number < 999.5 {
            break;
        }
        number /= 1000.0;
        unit = larger;
    }
    match number {
        0.0 => "0".into(),
        n if n < 9.95 => format!("{n:.1}{unit}"),
        n => format!("{n:.0}{unit}"),
    }
}

/// A time, in µs, ms or s.
pub(in crate::commands) fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us}µs"),
        1_000..10_000 => format!("{:.1}ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0}ms", us as f64 / 1e3),
        _ => format!("{:.1}s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let rates = [
            0.0, 0.25, 9.94, 9.96, 999.4, 999.6, 12_345.0, 2.5e6, 7e9, 3e12,
        ];
        let said = [
            "0", "0.2", "9.9", "10", "999", "1.0k", "12k", "2.5M", "7.0G", "3000G",
        ];
        for (rate_of, said) in rates.into_iter().zip(said) {
            assert_eq!(rate(rate_of), said, "{rate_of}");
        }
        let times = [0, 999, 1_000, 9_949, 10_000, 999_999, 1_000_000, 67_000_000];
        let said = [
            "0µs", "999µs", "1.0ms", "9.9ms", "10ms", "1000ms", "1.0s", "67.0s",
        ];
        for (us, said) in times.into_iter().zip(said) {
            assert_eq!(time(us), said, "{us}");
        }
    }

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(safe("a\x1b[2Jb\n"), "a?[2Jb?");
    }
}
