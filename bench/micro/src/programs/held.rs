//! The programs that a process holds: by descriptors of programs and of links, which
//! `/proc/PID/fdinfo` describes.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result};

/// Returns the ids of the programs that `pid` holds. A program that only a pin holds is not among
/// them.
pub(super) fn program_ids(pid: u32) -> Result<BTreeSet<u32>> {
    let folder = format!("/proc/{pid}/fdinfo");
    let files = fs::read_dir(&folder).with_context(|| format!("cannot list {folder}"))?;
    let mut ids = BTreeSet::new();
    for file in files {
        let file = file.with_context(|| format!("cannot list {folder}"))?;
        // Descriptors come and go while their folder is read.
        if let Ok(text) = fs::read_to_string(file.path()) {
            ids.extend(program_id(&text));
        }
    }
    Ok(ids)
}

/// The number behind `prog_id:`.
fn program_id(fdinfo: &str) -> Option<u32> {
    let mut lines = fdinfo.lines();
    let id = lines.find_map(|line| line.strip_prefix("prog_id:"))?;
    id.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_links_name_their_program() {
        let program = "pos:\t0\nflags:\t02000002\nprog_type:\t18\nprog_jited:\t1\nprog_id:\t42\n";
        let link = "pos:\t0\nlink_type:\tcgroup\nlink_id:\t7\nprog_tag:\tab\nprog_id:\t43\n";
        let socket = "pos:\t0\nflags:\t02000002\nino:\t5\n";
        let found = [program, link, socket].map(program_id);
        assert_eq!(found, [Some(42), Some(43), None]);
    }

    #[test]
    fn a_process_without_programs_holds_none() {
        assert!(program_ids(std::process::id()).unwrap().is_empty());
    }
}
