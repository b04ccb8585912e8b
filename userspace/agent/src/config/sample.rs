//! `sample`: how many of a rule's connections are enriched.

use policy::{Action, Sample};
use toml::Spanned;

use super::{error::Flaw, value::expected};

/// Reads a rule's `sample`. None: all of its flows.
pub(super) fn of(fraction: &Spanned<f64>, action: Action) -> Result<Option<Sample>, Flaw> {
    if action != Action::Enrich {
        let message = format!(
            "rule.sample: expected `action = \"enrich\"`, of which it is a fraction; found action \
             {:?}",
            action.as_str()
        );
        return Err(Flaw::new(fraction.span(), message));
    }
    match (Sample::new(*fraction.get_ref()), *fraction.get_ref()) {
        (None, 1.0) => Ok(None),
        (None, _) => expected(
            "rule.sample",
            fraction,
            "a fraction of flows, above 0 and up to 1",
        ),
        (sample, _) => Ok(sample),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    fn found(sample: &str, action: &str) -> Result<Config, String> {
        let text = format!("[[rule]]\nname = \"a\"\nsample = {sample}\naction = \"{action}\"\n");
        Config::parse(Path::new("u.toml"), &text).map_err(|e| e.to_string())
    }

    #[test]
    fn a_sample_is_a_fraction_of_what_is_enriched() {
        let sample = |text: &str| found(text, "enrich").unwrap().policy.rules[0].sample;
        assert!(sample("0.01").is_some());
        assert_eq!(sample("1.0"), None);
        for wrong in ["0.0", "-0.5", "1.5", "nan"] {
            let begin =
                "u.toml:3:10: rule.sample: expected a fraction of flows, above 0 and up to 1";
            let refused = found(wrong, "enrich").unwrap_err();
            assert!(refused.starts_with(begin), "{refused}");
        }
        let refused = found("0.5", "observe").unwrap_err();
        let begin = "u.toml:3:10: rule.sample: expected `action = \"enrich\"`, of which";
        assert!(refused.starts_with(begin), "{refused}");
    }
}
