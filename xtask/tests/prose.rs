//! The project's pages, held to the checkout: links lead somewhere, names are in the source.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The most lines of the page that everybody reads first.
const README_LINES: usize = 200;
/// The most lines of the map.
const ARCHITECTURE_LINES: usize = 300;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every file below a folder with one of these endings, without build output.
fn files(folder: &Path, endings: &[&str], into: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_symlink() || name.starts_with('.') || name == "target" {
            continue;
        }
        if path.is_dir() {
            files(&path, endings, into);
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            into.push(path);
        }
    }
}

fn below(folder: &str, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(&root().join(folder), endings, &mut found);
    found
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// The text without fenced blocks, which hold no links.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut out = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// The targets of inline links: what stands between `](` and `)`.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("](") {
        rest = after;
        if let Some((target, _)) = after.split_once(')') {
            found.push(target.to_owned());
        }
    }
    found
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text);
    let headings = headings.lines().filter(|line| line.starts_with('#'));
    let slug = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(slug).collect()
}

#[test]
fn links_lead_to_pages_and_headings_that_exist() {
    let mut wrong = Vec::new();
    for file in below(".", &[".md"]) {
        let text = fs::read_to_string(&file).unwrap();
        for link in links(&prose(&text)) {
            if link.contains("://") || link.starts_with('<') || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => file.clone(),
                path => file.parent().unwrap().join(path),
            };
            let has_anchor = || {
                let text = fs::read_to_string(&target).unwrap_or_default();
                anchor.is_empty() || anchors(&text).contains(anchor)
            };
            if !target.exists() || !has_anchor() {
                wrong.push(format!("{}: {link}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "dead links:\n{}", wrong.join("\n"));
}

/// Pages may leave out the beginning of a path, never its end.
#[test]
fn pages_name_files_that_exist() {
    let endings = [".rs", ".c", ".h", ".toml"];
    let sources = below(".", &endings);
    let mut wrong = Vec::new();
    for page in below(".", &[".md"]) {
        let text = prose(&fs::read_to_string(&page).unwrap());
        for code in text.split('`').skip(1).step_by(2) {
            let (file, _) = code.split_once(':').unwrap_or((code, ""));
            let is_path = file.contains('/') && !file.starts_with('/') && !file.contains(' ');
            let is_source = endings.iter().any(|ending| file.ends_with(ending));
            let exists = || sources.iter().any(|source| source.ends_with(file));
            if is_path && is_source && !exists() {
                wrong.push(format!("{}: {file}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "no such file:\n{}", wrong.join("\n"));
}

#[test]
fn readme_and_map_are_short() {
    assert!(page("README.md").lines().count() <= README_LINES);
    assert!(page("ARCHITECTURE.md").lines().count() <= ARCHITECTURE_LINES);
}

#[test]
fn the_limits_name_constants_of_the_source() {
    let mut sources = String::new();
    for file in below("userspace", &[".rs"])
        .into_iter()
        .chain(below("ebpf/src", &[".rs"]))
    {
        sources.push_str(&fs::read_to_string(file).unwrap());
    }
    let mut rows = 0;
    for line in page("docs/limits.md").lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", _, bound, _, _, constants, ""] = cells[..] else {
            continue;
        };
        if bound == "bound" || bound == "---" {
            continue;
        }
        rows += 1;
        for constant in constants.split('`').skip(1).step_by(2) {
            let defined = format!("const {constant}:");
            assert!(sources.contains(&defined), "{constant}, of {line:?}");
        }
    }
    assert!(rows > 50, "{rows} rows");
}

#[test]
fn the_failure_table_names_tests_that_exist() {
    let tests = below("userspace", &[".rs"]);
    let page = page("ARCHITECTURE.md");
    let (_, table) = page.split_once("| what | then | proved by |").unwrap();
    let table = table.split("\n\n").next().unwrap();
    let mut rows = 0;
    for line in table.lines().filter(|line| line.starts_with("| ")) {
        let Some((_, proof)) = line.trim_end_matches(" |").rsplit_once(" | ") else {
            continue;
        };
        if proof == "---" {
            continue;
        }
        rows += 1;
        let names = proof.split('`').skip(1).step_by(2);
        for name in names.filter(|name| name.ends_with(".rs")) {
            let is_it = |path: &PathBuf| path.ends_with(name);
            assert!(tests.iter().any(is_it), "{name}, of {line:?}");
        }
    }
    assert!(rows > 50, "{rows} rows");
}

#[test]
fn one_connection_names_functions_of_the_source() {
    let named = functions_named_in("docs/one-connection.md");
    assert!(named > 30, "{named} functions are named");
}

/// The threat model names tests that show each claim: tests, and not other functions.
#[test]
fn security_names_tests_of_the_source() {
    let named = functions_named_in("docs/security.md");
    assert!(named > 30, "{named} tests are named");
    let page = page("docs/security.md");
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let claims = rows.filter(|row| !row.starts_with("| ---") && !row.ends_with("| shown by |"));
    for claim in claims {
        let (_, shown_by) = claim.trim_end_matches(" |").rsplit_once(" | ").unwrap();
        let tests: Vec<&str> = shown_by.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "nothing shows {claim:?}");
        for test in tests {
            let (file, name) = test.split_once(':').unwrap();
            let text = fs::read_to_string(root().join(file)).unwrap();
            let (before, _) = text.split_once(&format!("fn {name}(")).unwrap();
            let attributes = before.rsplit("\n\n").next().unwrap();
            assert!(attributes.contains("#[test]"), "{test} is no test");
        }
    }
}

/// Where a page names `file:function`, the file is there and defines the function. Returns how many it names.
fn functions_named_in(name: &str) -> usize {
    let page = page(name);
    let mut named = 0;
    for code in page.split('`').skip(1).step_by(2) {
        let (file, function) = code.split_once(':').unwrap_or((code, ""));
        let is_source = [".rs", ".c", ".h"].iter().any(|end| file.ends_with(end));
        if !is_source || !file.contains('/') {
            continue;
        }
        let path = root().join(file);
        assert!(path.is_file(), "{file} does not exist");
        if function.is_empty() {
            continue;
        }
        named += 1;
        let text = fs::read_to_string(&path).unwrap();
        assert!(defines(&text, file, function), "{file} has no {function}");
    }
    named
}

/// Whether the source defines the function: `fn name` in Rust, `name(` that is no call in C.
fn defines(text: &str, file: &str, function: &str) -> bool {
    let name = function.rsplit("::").next().unwrap();
    if file.ends_with(".rs") {
        let followed = |rest: &str| rest.starts_with(['(', '<']);
        return text.split(&format!("fn {name}")).skip(1).any(followed);
    }
    // A definition begins in the first column with its type, a call does not.
    let is_definition = |line: &str| {
        let at_start = line.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        at_start && line.contains(&format!("{name}(")) && !line.trim_end().ends_with(';')
    };
    text.lines().any(is_definition)
}
