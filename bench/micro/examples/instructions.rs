//! Does one case's work a number of times, and nothing else: for callgrind.
//!
//! `instructions` lists the cases, one a line: name, elements in a round, bytes that it is fed.
//! `instructions NAME ROUNDS` does the work. What a round costs is the difference of two runs
//! divided by the difference of their rounds: start, inputs and end are in both.

use std::{env, hint::black_box, process::ExitCode};

use micro::cases::{ENTRIES, find};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.as_slice() {
        [] => {
            for entry in ENTRIES {
                let case = (entry.build)();
                println!(
                    "{} {} {}",
                    entry.name, case.expected.elements, case.fed_bytes
                );
            }
            ExitCode::SUCCESS
        }
        [name, rounds] => match rounds.parse() {
            Ok(rounds) => work(name, rounds),
            Err(_) => complain(&format!("not a number of rounds: {rounds}")),
        },
        _ => complain("usage: instructions [NAME ROUNDS]"),
    }
}

fn work(name: &str, rounds: u64) -> ExitCode {
    let Some(entry) = find(name) else {
        return complain(&format!("no case is called {name}"));
    };
    let mut case = (entry.build)();
    let expected = case.expected;
    let mut wrong = 0_u64;
    for _ in 0..rounds {
        wrong += u64::from(black_box(case.work()) != expected);
    }
    if wrong > 0 {
        return complain(&format!("{name}: {wrong} of {rounds} rounds went wrong"));
    }
    ExitCode::SUCCESS
}

fn complain(what: &str) -> ExitCode {
    eprintln!("instructions: {what}");
    ExitCode::FAILURE
}
