//! `underpass check`.

use std::process::ExitCode;

use dataplane::policy::{Candidate, Miss};
use serde_json::json;

use crate::{cli::CheckArgs, config::Config};

/// Validates, and explains a match if asked to.
///
/// # Errors
/// The file is wrong.
pub fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let config = Config::load(&args.file)?;
    let explanation = args.to.map(|to| {
        let candidate = Candidate {
            to,
            uid: args.uid,
            process: args.process.clone(),
            cgroup: args.cgroup.clone(),
        };
        explain(&config, &candidate)
    });
    if args.json {
        println!("{}", as_json(args, &config, explanation.as_ref()));
        return Ok(ExitCode::SUCCESS);
    }
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    match explanation {
        None => {
            println!(
                "{}: ok, {} rules",
                args.file.display(),
                config.policy.rules.len()
            );
        }
        Some(explanation) => print!("{}", explanation.text),
    }
    Ok(ExitCode::SUCCESS)
}

struct Explanation {
    rule: String,
    action: &'static str,
    fail: &'static str,
    missed: Vec<(String, Miss)>,
    text: String,
}

fn explain(config: &Config, candidate: &Candidate) -> Explanation {
    let policy = &config.policy;
    let met = policy.first_match(candidate);
    let before = met.index.unwrap_or(policy.rules.len());
    let missed: Vec<(String, Miss)> = policy
        .rules
        .iter()
        .take(before)
        .filter_map(|rule| Some((rule.name.to_string(), rule.miss(candidate)?)))
        .collect();
    let mut text = format!(
        "{}: {}, fail = {}\n",
        met.rule,
        met.action.as_str(),
        met.fail.as_str()
    );
    text.push_str(match met.index {
        Some(_) => "  every condition of the rule holds\n",
        None => "  no rule holds\n",
    });
    for (rule, miss) in &missed {
        text.push_str(&format!(
            "  passed over: {rule}, whose `{}` does not hold\n",
            miss.key()
        ));
    }
    Explanation {
        rule: met.rule.to_string(),
        action: met.action.as_str(),
        fail: met.fail.as_str(),
        missed,
        text,
    }
}

fn as_json(
    args: &CheckArgs,
    config: &Config,
    explanation: Option<&Explanation>,
) -> serde_json::Value {
    json!({
        "file": args.file,
        "rules": config.policy.rules.len(),
        "warnings": config.warnings,
        "match": explanation.map(|e| json!({
            "rule": e.rule,
            "action": e.action,
            "fail": e.fail,
            "passed_over": e.missed.iter().map(|(rule, miss)| json!({
                "rule": rule,
                "key": miss.key(),
            })).collect::<Vec<_>>(),
        })),
    })
}
