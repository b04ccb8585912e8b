//! Every option of every command, as clap lists them, with values that are wrong: the error names the option and the value, and says
//! what would be right.

use std::{fs, path::Path};

use agent::cli::Cli;
use clap::{Arg, Command, CommandFactory, builder::ValueParser, error::ErrorKind};

use crate::common::*;

/// Values of which each is wrong for most options. The first is wrong for all but [`ANY_TEXT`] and paths.
const WRONG: [&str; 6] = [
    "nonsense!",
    "",
    "-1",
    "99999999999999999999",
    "a=b=c,",
    "2026-11-27",
];

/// Options that take any text: names that a client or another host may have, and texts to look for.
const ANY_TEXT: [(&str, &str); 12] = [
    ("capture", "rule"),
    ("check", "application"),
    ("check", "container"),
    ("check", "driver"),
    ("check", "driver_version"),
    ("check", "keyspace"),
    ("check", "process"),
    ("check", "statement"),
    ("check", "user"),
    ("replay", "user"),
    ("tail", "statement"),
    ("top", "filter"),
];

/// Words that a command needs beside the option at hand. `NEW` stands for a file that is not there.
const NEEDED: [(&str, &[&str]); 11] = [
    ("backend", &["127.0.0.1:1", "up"]),
    ("capture", &["1"]),
    ("check", &["--live", "--file-only"]),
    ("config", &["--json"]),
    ("detach", &["--pins", "/nowhere/pins"]),
    ("explain", &["1"]),
    ("mark", &["1", "bypass"]),
    ("policy", &["status"]),
    ("replay", &["--to=127.0.0.1:1"]),
    ("top", &["--once"]),
    ("unmark", &["1"]),
];

/// Paths that may lead nowhere: a cgroup of another host; nothing is left there to be cleaned up, or nobody is asked before a key is
/// pressed. A bundle names in its list what it does not have.
const MAY_LEAD_NOWHERE: [(&str, &str); 9] = [
    ("capture", "out"),
    ("check", "cgroup"),
    ("debug-bundle", "admin"),
    ("debug-bundle", "config"),
    ("debug-bundle", "control"),
    ("detach", "control"),
    ("detach", "pins"),
    ("replay", "password_file"),
    ("top", "control"),
];

/// The commands, each with its options and arguments that have a value.
fn all() -> Vec<(Command, Vec<Arg>)> {
    let mut cli = Cli::command();
    cli.build();
    let commands = cli.get_subcommands().filter(|one| one.get_name() != "help");
    let with_values = |command: &Command| {
        let all = command.get_arguments();
        let valued = all.filter(|arg| arg.get_action().takes_values());
        valued.cloned().collect::<Vec<_>>()
    };
    commands
        .map(|one| (one.clone(), with_values(one)))
        .collect()
}

fn is_path(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == ValueParser::path_buf().type_id()
}

/// The words that give a value to an option or argument of a command.
fn given(command: &Command, arg: &Arg, value: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    match (arg.get_long(), arg.get_index()) {
        (Some(long), _) => words.push(format!("--{long}={value}")),
        (None, place) => {
            words.push("--".into());
            // Those that stand before it.
            let needed = NEEDED.iter().find(|(name, _)| *name == command.get_name());
            let before = needed.map_or(&[][..], |(_, words)| words);
            let before = before.iter().take(place.unwrap() - 1);
            words.extend(before.map(|word| (*word).to_owned()));
            words.push(value.to_owned());
        }
    }
    words
}

#[test]
fn the_error_names_the_option_the_value_and_what_would_be_right() {
    let mut tried = 0;
    for (command, args) in all() {
        for arg in args.iter().filter(|arg| !is_path(arg)) {
            let of = (command.get_name(), arg.get_id().as_str());
            for value in WRONG {
                let words = given(&command, arg, value);
                let line = ["underpass".to_owned(), of.0.to_owned()].into_iter();
                let parsed = Cli::command().try_get_matches_from(line.chain(words));
                let wrong = parsed.err().filter(|error| {
                    let kinds = [ErrorKind::ValueValidation, ErrorKind::InvalidValue];
                    kinds.contains(&error.kind())
                });
                assert!(
                    value != WRONG[0] || wrong.is_none() == ANY_TEXT.contains(&of),
                    "{of:?} and {value:?}: {wrong:?}"
                );
                let Some(error) = wrong else { continue };
                let said = error.to_string();
                let rights = ["expected ", "[possible values: ", "keys here: "];
                let says_what_is_right = rights.iter().any(|right| said.contains(right));
                assert!(
                    said.contains(&format!("'{arg}'"))
                        && said.contains(value)
                        && says_what_is_right,
                    "{of:?}: {said}"
                );
                tried += 1;
            }
        }
    }
    assert!(tried > 100, "{tried}");
}

#[test]
fn a_path_that_leads_nowhere_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.toml");
    fs::write(&policy, rule("observe", &to(&[9]))).unwrap();
    let nowhere = folder.path().join("nowhere/there.sock");
    let nowhere = nowhere.to_str().unwrap();
    let mut tried = 0;
    for (command, args) in all() {
        let name = command.get_name();
        // What the program starts itself gets its words from the program.
        for arg in args.iter().filter(|_| !command.is_hide_set()) {
            let leads = is_path(arg) || arg.get_id().as_str() == "admin";
            if !leads || MAY_LEAD_NOWHERE.contains(&(name, arg.get_id().as_str())) {
                continue;
            }
            let said = complaint_of(&command, arg, nowhere, &policy);
            assert!(said.contains(nowhere), "{name} {arg}: {said}");
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried}");
}

/// The one line that a command says which ends with 1 because of this value.
fn complaint_of(command: &Command, arg: &Arg, value: &str, policy: &Path) -> String {
    let name = command.get_name();
    let needed = NEEDED.iter().find(|(of, _)| *of == name);
    let mut words: Vec<String> = vec![name.into()];
    words.extend(
        needed
            .iter()
            .flat_map(|(_, words)| words.iter())
            .map(|word| (*word).into()),
    );
    match (name, arg.get_id().as_str()) {
        (_, "file" | "files") => words.push(value.into()),
        ("check", _) => words.extend([
            policy.to_str().unwrap().into(),
            format!("--{arg_name}={value}", arg_name = arg.get_long().unwrap()),
        ]),
        _ => words.extend(given(command, arg, value)),
    }
    let mut run = std::process::Command::new(BINARY);
    let output = operator::output(run.args(&words).env_remove("UNDERPASS_ADMIN"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("underpass: "))
        .collect();
    assert_eq!(lines.len(), 1, "{words:?}: {said}");
    lines[0].to_owned()
}
