//! `underpass overhead`.

use std::process::ExitCode;

use serde_json::Value;

use super::{
    flows::{get, list, shown},
    table,
    whereabouts::Admin,
};

/// Asks the agent at `admin`.
///
/// # Errors
/// Nobody answers there.
pub fn run(json: bool, admin: &Admin) -> anyhow::Result<ExitCode> {
    let text = get(admin, "/overhead")?;
    if json {
        say!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let rules = list(admin, &text)?;
    if rules.is_empty() {
        say!("no rule has a holdout: docs/overhead.md says which can have one");
        return Ok(ExitCode::SUCCESS);
    }
    say_text!("{}", render(&rules));
    Ok(ExitCode::SUCCESS)
}

/// Three rows a rule, and what cannot be said yet.
fn render(rules: &[Value]) -> String {
    let headings = [
        "RULE",
        "GROUP",
        "CONNECTIONS",
        "REQUESTS",
        "P50 µs",
        "P99 µs",
        "ERRORS",
    ];
    let rows: Vec<_> = rules.iter().flat_map(rows).collect();
    let mut text = table::render(&headings, &rows);
    text.push_str("difference: treated less held out, with its 95 % confidence interval\n");
    for rule in rules {
        for (key, what) in [("p50", "p50"), ("p99", "p99"), ("errors", "errors")] {
            let not_yet = rule
                .get(key)
                .and_then(|of| of.get("not_yet"))
                .and_then(Value::as_str);
            if let Some(why) = not_yet {
                text.push_str(&format!(
                    "{}, {what}: not enough yet: {why}\n",
                    shown(rule, "rule")
                ));
            }
        }
    }
    text
}

fn rows(rule: &Value) -> [Vec<String>; 3] {
    let name = shown(rule, "rule");
    let share = rule.get("holdout").and_then(Value::as_f64);
    let share = share.map_or_else(
        || "not now".to_owned(),
        |share| format!("{} %", rounded(share * 100.0, 3)),
    );
    let group = |key: &str, name: &str, group: String| {
        let of = rule.get(key).unwrap_or(&Value::Null);
        let mut row = vec![name.to_owned(), group];
        row.extend(["connections", "requests"].map(|key| shown(of, key)));
        row.extend(["p50_us", "p99_us"].map(|key| microseconds(of, key)));
        row.push(shown(of, "errors"));
        row
    };
    let found = |key, scale, unit| difference(rule.get(key).unwrap_or(&Value::Null), scale, unit);
    [
        group("held_out", &name, format!("held out ({share})")),
        group("treated", "", "treated".to_owned()),
        vec![
            String::new(),
            "difference".to_owned(),
            String::new(),
            String::new(),
            found("p50", 1.0, ""),
            found("p99", 1.0, ""),
            found("errors", 100.0, " %"),
        ],
    ]
}

fn microseconds(of: &Value, key: &str) -> String {
    let us = of.get(key).and_then(Value::as_f64);
    us.map_or_else(|| "-".into(), |us| rounded(us, 1))
}

/// `+1.2 (-0.3 to +2.7)`.
fn difference(of: &Value, scale: f64, unit: &str) -> String {
    let ends = ["value", "low", "high"].map(|key| of.get(key).and_then(Value::as_f64));
    let [Some(value), Some(low), Some(high)] = ends else {
        return "not yet".to_owned();
    };
    let signed = |n: f64| {
        let text = rounded((n * scale).abs(), 2);
        let sign = if n < 0.0 && text != "0" { '-' } else { '+' };
        format!("{sign}{text}")
    };
    format!(
        "{}{unit} ({} to {})",
        signed(value),
        signed(low),
        signed(high)
    )
}

/// At most so many places behind the point, without zeros at the end.
fn rounded(n: f64, places: usize) -> String {
    let text = format!("{n:.places$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_rows_a_rule_and_what_is_missing() {
        let rule = serde_json::json!({
            "rule": "shop", "holdout": 0.01,
            "held_out": {"connections": 24, "requests": 100, "errors": 0, "p50_us": 301.25, "p99_us": 900.0},
            "treated": {"connections": 90, "requests": 400, "errors": 1, "p50_us": 302.5, "p99_us": null},
            "p50": {"value": 1.25, "low": -0.004, "high": 2.5},
            "p99": {"not_yet": "needs about 12 more requests on connections that are held out"},
            "errors": {"value": 0.0025, "low": -0.03, "high": 0.0031},
        });
        let text = render(&[rule]);
        let expected = [
            "RULE  GROUP           CONNECTIONS  REQUESTS  P50 µs             P99 µs   ERRORS",
            "shop  held out (1 %)  24           100       301.2              900      0",
            "      treated         90           400       302.5              -        1",
            "      difference                             +1.25 (+0 to +2.5)  not yet  +0.25 % (-3 to +0.31)",
            "difference: treated less held out, with its 95 % confidence interval",
            "shop, p99: not enough yet: needs about 12 more requests on connections that are held out",
        ];
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = text.lines().map(words).collect();
        assert_eq!(lines, expected.map(words));
    }
}
