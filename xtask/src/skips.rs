//! Skipped tests: the list of a run, and whether they may be skipped.
//!
//! A test that lacks a kernel feature appends `SKIP name: reason` to the file that
//! UNDERPASS_SKIPS names. xtask/allowed-skips.txt says which of them a full run may skip.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use anyhow::{Context, Result, bail, ensure};

use crate::paths;

const ALLOWED: &str = include_str!("../allowed-skips.txt");

/// The file to which tests append their skips, for UNDERPASS_SKIPS.
pub fn file() -> PathBuf {
    paths::target().join("skips.txt")
}

/// Empties the file.
pub fn clear() -> Result<()> {
    fs::write(file(), "").with_context(|| format!("cannot write {}", file().display()))
}

/// Prints what was skipped; an error when one of them is not on the list.
pub fn judge() -> Result<()> {
    let text =
        fs::read_to_string(file()).with_context(|| format!("cannot read {}", file().display()))?;
    let skipped = parse_skips(&text);
    if skipped.is_empty() {
        eprintln!("skips: none");
        return Ok(());
    }
    let allowed = parse_allowed(ALLOWED)?;
    for (name, reason) in &skipped {
        let mark = if allowed.contains(name) {
            "allowed"
        } else {
            "NOT ALLOWED"
        };
        eprintln!("skipped ({mark}): {name}: {reason}");
    }
    let strangers: Vec<&str> = skipped
        .keys()
        .filter(|name| !allowed.contains(*name))
        .copied()
        .collect();
    ensure!(
        strangers.is_empty(),
        "skipped without leave: {}; make them run here, or list them in \
         xtask/allowed-skips.txt with a reason",
        strangers.join(", ")
    );
    Ok(())
}

/// Reads the skips by name; a line that is no skip is kept whole, as one that no list allows.
fn parse_skips(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| {
            let skip = line
                .strip_prefix("SKIP ")
                .and_then(|rest| rest.split_once(": "));
            skip.unwrap_or((line, "not of the form `SKIP name: reason`"))
        })
        .collect()
}

/// Lines of `name # reason`; empty lines and lines that are all comment do not count.
fn parse_allowed(text: &str) -> Result<BTreeSet<&str>> {
    let mut names = BTreeSet::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.split_once('#') {
            Some((name, reason)) if !reason.trim().is_empty() => names.insert(name.trim()),
            _ => bail!("xtask/allowed-skips.txt: `{line}` has no `# reason`"),
        };
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_list_can_be_read() {
        parse_allowed(ALLOWED).unwrap();
    }

    #[test]
    fn a_name_needs_a_reason() {
        assert_eq!(
            parse_allowed("# all comment\n\na::b # kernel 6.4\n").unwrap(),
            BTreeSet::from(["a::b"])
        );
        assert!(parse_allowed("a::b\n").is_err());
        assert!(parse_allowed("a::b #  \n").is_err());
    }

    #[test]
    fn names_with_colons_and_odd_lines() {
        let skips = parse_skips("SKIP a::b: no BTF: none\nSKIP a::b: no BTF: none\n\nodd\n");
        assert_eq!(skips.get("a::b"), Some(&"no BTF: none"));
        assert!(skips.contains_key("odd"));
        assert_eq!(skips.len(), 2);
    }
}
