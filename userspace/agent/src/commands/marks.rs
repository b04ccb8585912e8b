//! `underpass mark`, `marks`, `unmark`.

use std::{
    process::ExitCode,
    time::{Duration, SystemTime},
};

use anyhow::bail;
use policy::Action;
use serde_json::{Value, json};

use super::{
    control::ask,
    flows::{process, shown},
    table,
    whereabouts::{Control, Named},
};
use crate::cli::MarkArgs;

/// Sets a mark, and says what became of each flow.
///
/// # Errors
/// It could not be set, or the one flow that it means could not be changed.
pub fn mark(args: &MarkArgs) -> anyhow::Result<ExitCode> {
    let wanted = json!({
        "target": args.target,
        "action": args.action,
        "for": args.lasts,
        "reset": args.reset,
    });
    let control = args.control.find();
    let answer = ask(&control, "POST", "/marks", &wanted.to_string())?;
    if args.json {
        say!("{answer}");
    } else {
        tell(args, &control, &answer);
    }
    // Of several flows, some may; of one, it was all that was asked.
    let is_flow = args.target.starts_with("socket-") || args.target.parse::<u64>().is_ok();
    if is_flow && answer.pointer("/counts/could_not").and_then(Value::as_u64) == Some(1) {
        let why = answer.pointer("/flows/0/why").and_then(Value::as_str);
        let why = why.unwrap_or("it cannot");
        bail!("flow {} is not changed: {why}", args.target);
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(args: &MarkArgs, control: &Control, answer: &Value) {
    let mark = answer.get("mark").unwrap_or(&Value::Null);
    let id = shown(mark, "id");
    say!(
        "mark {id}: {} for {}, {}",
        args.action,
        args.target,
        until(mark)
    );
    if let Some(doubt) = answer.get("doubt").and_then(Value::as_str) {
        eprintln!("warning: {doubt}");
    }
    let flows = list_of(answer.get("flows"));
    if !flows.is_empty() {
        let rows: Vec<Vec<String>> = flows
            .iter()
            .map(|flow| {
                vec![
                    shown(flow, "flow"),
                    shown(flow, "client"),
                    process(flow),
                    shown(flow, "orig_dst"),
                    shown(flow, "result").replace('_', " "),
                    shown(flow, "why"),
                    undo(args, control, flow).unwrap_or_default(),
                ]
            })
            .collect();
        let headings = ["FLOW", "CLIENT", "PROCESS", "TO", "RESULT", "WHY", "UNDO"];
        say_text!("{}", table::render(&headings, &rows));
    }
    say!("{}", summary(answer));
    if mark.get("later").and_then(Value::as_bool) == Some(true) {
        say!(
            "undo, for new connections: underpass unmark {id}{}",
            at(control)
        );
    }
}

/// The command that gives a flow back the action that it had. None: nothing has changed, or it is closed.
fn undo(args: &MarkArgs, control: &Control, flow: &Value) -> Option<String> {
    let was = flow.get("was").and_then(Value::as_str)?;
    let is_there = args.action != Action::Deny.as_str() && was != Action::Deny.as_str();
    let has_changed = flow.get("result").and_then(Value::as_str) == Some("changed");
    let flow = shown(flow, "flow");
    (is_there && has_changed).then(|| format!("underpass mark {flow} {was}{}", at(control)))
}

/// The option with which the same agent is asked.
fn at(control: &Control) -> String {
    match &control.named {
        Named::Option(option) => format!(" {option} {}", control.at.display()),
        _ => String::new(),
    }
}

fn list_of(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn summary(answer: &Value) -> String {
    let number = |of: &Value, key: &str| of.get(key).and_then(Value::as_u64).unwrap_or(0);
    let counts = answer.get("counts").unwrap_or(&Value::Null);
    let mut said: Vec<String> = [
        ("changed", "changed"),
        ("asked", "waiting for their session"),
        ("already", "already"),
        ("could_not", "could not"),
        ("reset", "closed"),
    ]
    .into_iter()
    .map(|(key, word)| (number(counts, key), word))
    .filter(|(n, word)| *n > 0 || *word == "changed")
    .map(|(n, word)| format!("{n} {word}"))
    .collect();
    match number(answer, "more") {
        0 => {}
        more => said.push(format!("{more} of these not listed")),
    }
    match number(answer, "unknown") {
        0 => {}
        unknown => said.push(format!(
            "{unknown} left alone, because their session is not known"
        )),
    }
    let later = match answer.pointer("/mark/later").and_then(Value::as_bool) {
        Some(true) => "new connections meet it before the file's rules",
        _ => "running flows only",
    };
    let lasting = match (number(counts, "changed"), number(counts, "asked")) {
        (0, 0) => "",
        _ => "; flows that it changes stay so when it ends",
    };
    format!("{}; {later}{lasting}", said.join(", "))
}

/// Lists the marks.
///
/// # Errors
/// No agent answers.
pub fn list(json: bool, control: &Control) -> anyhow::Result<ExitCode> {
    let marks = ask(control, "GET", "/marks", "")?;
    if json {
        say!("{marks}");
        return Ok(ExitCode::SUCCESS);
    }
    let marks = list_of(Some(&marks));
    let rows: Vec<Vec<String>> = marks
        .iter()
        .map(|mark| {
            vec![
                shown(mark, "id"),
                shown(mark, "selector"),
                shown(mark, "action"),
                match mark.get("later").and_then(Value::as_bool) {
                    Some(true) => "running and later".into(),
                    _ => "running".into(),
                },
                since(mark),
                until(mark),
                shown(mark, "flows_changed"),
            ]
        })
        .collect();
    let headings = ["MARK", "OF", "ACTION", "FLOWS", "SINCE", "UNTIL", "CHANGED"];
    say_text!("{}", table::render(&headings, &rows));
    Ok(ExitCode::SUCCESS)
}

/// Takes a mark back.
///
/// # Errors
/// There is none of this number, or no agent answers.
pub fn unmark(number: u64, control: &Control) -> anyhow::Result<ExitCode> {
    let mark = ask(control, "DELETE", &format!("/marks/{number}"), "")?;
    say!(
        "mark {number} ({} for {}) removed; flows that it changed stay as they are",
        shown(&mark, "action"),
        shown(&mark, "selector")
    );
    Ok(ExitCode::SUCCESS)
}

fn since(mark: &Value) -> String {
    let at = moment(mark, "since_unix_ms");
    let passed = at.and_then(|at| SystemTime::now().duration_since(at).ok());
    format!("{} ago", seconds(passed.unwrap_or_default()))
}

fn until(mark: &Value) -> String {
    match moment(mark, "until_unix_ms") {
        None => "until unmark".into(),
        Some(at) => {
            let left = at.duration_since(SystemTime::now());
            format!("for {}", seconds(left.unwrap_or_default()))
        }
    }
}

fn moment(mark: &Value, key: &str) -> Option<SystemTime> {
    let ms = mark.get(key)?.as_u64()?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_millis(ms))
}

fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs_f64().round())
}
