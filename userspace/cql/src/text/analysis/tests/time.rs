//! How long it takes.

use super::*;
use std::time::Duration;

/// The time that this thread has had on a processor.
fn on_the_processor() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.unwrap().into()
}

/// Time is in proportion to the text: eight times the text takes eight times as long, not 64.
#[test]
fn time_is_linear() {
    const SHORT_BYTES: usize = 31 << 10;
    let repeated = [
        ("SELECT a FROM t WHERE b = ", "(", ""),
        ("SELECT a FROM t WHERE b IN (1", ",(1)", ")"),
        ("SELECT a FROM t WHERE b = 1", "+1", ""),
        ("SELECT a FROM t WHERE b = '", "''", "'"),
        ("SELECT a FROM t WHERE b = ", "-- x\n", "1"),
        ("SELECT a FROM t WHERE b = ", "/**/", "1"),
        ("SELECT a FROM t WHERE b = ", "1h", ""),
        ("SELECT a FROM t WHERE b = ", "a.", "a()"),
        ("SELECT ", "a,", "a FROM t"),
        ("SELECT ", "\"a\",", "a FROM t"),
        ("SELECT ", "json ", "a FROM t"),
        ("BEGIN BATCH ", "DELETE FROM t WHERE k = 1;", "APPLY BATCH"),
        ("CREATE TABLE t (", "a int,", "a int)"),
        ("UPDATE t SET ", "a=1,", "a=1 WHERE b=1"),
        ("", "P", ""),
        ("", "(", ""),
        ("", "'", ""),
        ("", "$$ ", ""),
        ("", "a", ""),
    ];
    let time = |text: &str| {
        let best = (0..3).map(|_| {
            let start = on_the_processor();
            std::hint::black_box(analyse(text));
            on_the_processor() - start
        });
        best.min().unwrap_or_default()
    };
    for (begin, unit, end) in repeated {
        let many = |bytes: usize| {
            let units = unit.repeat(bytes / unit.len());
            time(&format!("{begin}{units}{end}"))
        };
        let (short, long) = (many(SHORT_BYTES), many(8 * SHORT_BYTES));
        // Room for a busy machine, and none for a square.
        let bound = short * 24 + Duration::from_millis(100);
        assert!(long < bound, "{begin}{unit}: {short:?}, then {long:?}");
    }
}
