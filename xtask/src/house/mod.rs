//! `house`: rules about the source that neither the compiler nor clippy knows.
//!
//! Four rules, each with a reason that a reader of the code feels:
//!
//! - No import cycle spans more than [`cycles::MAX_FILES`] files: who understands a file need not
//!   understand the crate.
//! - A function named like a question (`is_`, `has_`, `was_` …) answers it and changes nothing.
//! - The first sentence of a doc comment names its subject, so that it stands alone in rustdoc.
//! - A doc comment holds no example that rustdoc would run: tests are tests.
//!
//! `source` reads the workspace into modules, `names` finds the file that defines what a path
//! names, and each rule has a file of its own.

mod comments;
mod cycles;
mod names;
mod predicates;
mod source;

use anyhow::{Result, ensure};

use crate::paths;

/// Options of `house`.
#[derive(Default, clap::Args)]
pub struct Args {
    /// Also print the largest cycle that is allowed, and how many doc comments were read
    #[arg(long)]
    figures: bool,
}

/// A place that breaks a rule.
#[derive(Debug)]
struct Complaint {
    /// File and line, relative to the workspace's root.
    place: String,
    text: String,
}

/// Reads the whole workspace, prints every complaint, and fails if there is one.
pub fn run(args: &Args) -> Result<()> {
    let targets = source::targets()?;
    let files: Vec<&source::File> = {
        let mut seen = std::collections::BTreeMap::new();
        for file in targets.iter().flat_map(|target| &target.files) {
            seen.entry(&file.path).or_insert(file);
        }
        seen.into_values().collect()
    };
    let cycles = cycles::find(&targets);
    let mut complaints = cycles::complaints(&cycles);
    let cycle_count = complaints.len();
    complaints.extend(files.iter().flat_map(|file| predicates::check(file)));
    let predicate_count = complaints.len() - cycle_count;
    let mut comments = 0;
    for file in &files {
        let (read, found) = comments::check(file);
        comments += read;
        complaints.extend(found);
    }
    for complaint in &complaints {
        eprintln!("{}: {}", complaint.place, complaint.text);
    }
    if args.figures {
        let largest = cycles.iter().map(cycles::Cycle::len).max().unwrap_or(1);
        eprintln!("house: {} files", files.len());
        eprintln!("house: largest import cycle {largest} files");
        eprintln!("house: {comments} doc comments");
    }
    ensure!(
        complaints.is_empty(),
        "house: {cycle_count} import cycles of more than {} files, {predicate_count} questions that \
         answer nothing or change something, {} doc comments that name no subject or hold an example (above, by place)",
        cycles::MAX_FILES,
        complaints.len() - cycle_count - predicate_count,
    );
    eprintln!(
        "house: {} files under {} keep the rules",
        files.len(),
        paths::root().display()
    );
    Ok(())
}
