//! The difference between two policies of a fleet.

use policy_source::Fragments;

/// Pairs of lines that are compared at most for one file: beyond, all of the old lines are shown, and all of the new.
const MAX_PAIRS: usize = 4 << 20;

/// Returns which files were added, changed and removed, in words.
pub(super) fn summary(old: &Fragments, new: &Fragments) -> String {
    let mut said = Vec::new();
    for file in &new.files {
        match old.text(&file.name) {
            None => said.push(format!("added {}", file.name)),
            Some(text) if text != file.text => said.push(format!("changed {}", file.name)),
            Some(_) => {}
        }
    }
    let gone = old
        .files
        .iter()
        .filter(|file| new.text(&file.name).is_none());
    said.extend(gone.map(|file| format!("removed {}", file.name)));
    match said.is_empty() {
        true => "no difference".to_owned(),
        false => said.join(", "),
    }
}

/// Returns the lines that differ, file by file: `-` before one that goes, `+` before one that comes. Empty: none does.
pub(super) fn lines(old: &Fragments, new: &Fragments) -> String {
    let mut names: Vec<&str> = old
        .files
        .iter()
        .chain(&new.files)
        .map(|f| f.name.as_str())
        .collect();
    names.sort_unstable();
    names.dedup();
    let mut said = String::new();
    for name in names {
        let (before, after) = (old.text(name), new.text(name));
        if before == after {
            continue;
        }
        let what = match (before, after) {
            (None, _) => "added",
            (_, None) => "removed",
            _ => "changed",
        };
        said.push_str(&format!("{what} {name}\n"));
        let before: Vec<&str> = before.unwrap_or_default().lines().collect();
        let after: Vec<&str> = after.unwrap_or_default().lines().collect();
        for (sign, line) in differing(&before, &after) {
            said.push_str(&format!("{sign}{line}\n"));
        }
    }
    said
}

/// The lines in which two texts differ.
fn differing<'l>(mut old: &[&'l str], mut new: &[&'l str]) -> Vec<(char, &'l str)> {
    while let ([first, old_rest @ ..], [other, new_rest @ ..]) = (old, new)
        && first == other
    {
        (old, new) = (old_rest, new_rest);
    }
    while let ([old_rest @ .., last], [new_rest @ .., other]) = (old, new)
        && last == other
    {
        (old, new) = (old_rest, new_rest);
    }
    let gone = |lines: &[&'l str]| lines.iter().map(|line| ('-', *line)).collect::<Vec<_>>();
    let come = |lines: &[&'l str]| lines.iter().map(|line| ('+', *line)).collect::<Vec<_>>();
    if old.len().saturating_mul(new.len()) > MAX_PAIRS {
        return [gone(old), come(new)].concat();
    }
    let lengths = common_lengths(old, new);
    let length = |i: usize, j: usize| lengths.get(i * (new.len() + 1) + j).copied().unwrap_or(0);
    let mut lines = Vec::new();
    let (mut i, mut j) = (0, 0);
    loop {
        match (old.get(i), new.get(j)) {
            (Some(one), Some(other)) if one == other => (i, j) = (i + 1, j + 1),
            (Some(one), other) if other.is_none() || length(i + 1, j) >= length(i, j + 1) => {
                lines.push(('-', *one));
                i += 1;
            }
            (_, Some(other)) => {
                lines.push(('+', *other));
                j += 1;
            }
            (_, None) => return lines,
        }
    }
}

/// How many lines two texts have in common, in their order, from each pair of places on.
fn common_lengths(old: &[&str], new: &[&str]) -> Vec<u32> {
    let width = new.len() + 1;
    let mut lengths = vec![0_u32; (old.len() + 1) * width];
    for (i, one) in old.iter().enumerate().rev() {
        for (j, other) in new.iter().enumerate().rev() {
            let at = |i: usize, j: usize| lengths.get(i * width + j).copied().unwrap_or(0);
            let length = match one == other {
                true => at(i + 1, j + 1) + 1,
                false => at(i + 1, j).max(at(i, j + 1)),
            };
            if let Some(place) = lengths.get_mut(i * width + j) {
                *place = length;
            }
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use policy_source::Fragment;

    use super::*;

    fn policy(files: &[(&str, &str)]) -> Fragments {
        let files = files.iter().map(|(name, text)| Fragment {
            name: format!("{name}.toml"),
            text: (*text).to_owned(),
        });
        Fragments::new(0, files.collect()).unwrap()
    }

    #[test]
    fn files_and_lines_that_differ_are_shown() {
        let old = policy(&[("a", "1\n2\n3\n4\n"), ("b", "x\n"), ("c", "same")]);
        let new = policy(&[("a", "1\n3\n5\n4\n"), ("c", "same"), ("d", "y\n")]);
        let said = lines(&old, &new);
        let expected = "changed a.toml\n-2\n+5\nremoved b.toml\n-x\nadded d.toml\n+y\n";
        assert_eq!(said, expected);
        assert_eq!(
            summary(&old, &new),
            "changed a.toml, added d.toml, removed b.toml"
        );
        assert_eq!(
            (lines(&old, &old), summary(&old, &old)),
            (String::new(), "no difference".into())
        );
    }

    #[test]
    fn texts_too_long_to_compare_are_shown_whole() {
        let text = |from: usize| {
            (from..from + 3000)
                .map(|n| format!("{n}\n"))
                .collect::<String>()
        };
        let said = lines(&policy(&[("a", &text(0))]), &policy(&[("a", &text(5000))]));
        assert_eq!(said.lines().count(), 1 + 6000);
    }
}
