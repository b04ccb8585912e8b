//! The blocks of a page of `docs` that show what is said: each is held to what a test has really heard, but for what differs from run to
//! run. `UPDATE_DOCS=1` writes what was heard.

use std::{
    env, fs,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

/// The kind of a block that is all output.
pub const TEXT: &str = "text";

/// A block of the page.
#[derive(Clone, Debug)]
pub struct Block {
    /// The page, a file in `docs`.
    pub page: &'static str,
    /// The heading that it stands under.
    pub section: String,
    /// The word behind its fence.
    pub kind: String,
    /// The lines between its fences.
    pub text: String,
}

/// The pages whose numbers are the same in each run: versions, counts, digests, exit codes, `1/1`.
const SETTLED: [&str; 1] = ["fleet.md"];

/// The page for operators of one host.
const OPERATING: &str = "operating.md";

fn path(page: &str) -> PathBuf {
    let docs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    docs.join(page)
}

/// The blocks of `docs/operating.md`, in its order.
pub fn blocks() -> Vec<Block> {
    blocks_of(OPERATING)
}

/// The blocks of a page, in its order.
pub fn blocks_of(name: &'static str) -> Vec<Block> {
    let page = fs::read_to_string(path(name)).unwrap();
    let mut blocks: Vec<Block> = Vec::new();
    let (mut section, mut is_open) = (String::new(), false);
    for line in page.lines() {
        match (line.strip_prefix("```"), blocks.last_mut()) {
            (Some(kind), _) if !is_open => {
                let (kind, text) = (kind.to_owned(), String::new());
                blocks.push(Block {
                    page: name,
                    section: section.clone(),
                    kind,
                    text,
                });
                is_open = true;
            }
            (Some(_), _) => is_open = false,
            (None, Some(block)) if is_open => block.text.push_str(&format!("{line}\n")),
            (None, _) => {
                if let Some(heading) = line.strip_prefix("## ") {
                    section = heading.to_owned();
                }
            }
        }
    }
    blocks
}

impl Block {
    /// A text of the block's page, without what differs from run to run.
    pub fn shape(&self, text: &str) -> String {
        match SETTLED.contains(&self.page) {
            true => settled(text),
            false => shape(text),
        }
    }

    /// Holds the block to what was said.
    pub fn holds(&self, said: &str) {
        static WRITING: Mutex<()> = Mutex::new(());
        if env::var_os("UPDATE_DOCS").is_none() {
            assert_eq!(
                self.shape(&self.text),
                self.shape(said),
                "docs/{} is stale: set UPDATE_DOCS=1 and run this test again",
                self.page
            );
            return;
        }
        let _one_after_the_other = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let fenced = |text: &str| format!("```{}\n{text}```", self.kind);
        let before = fs::read_to_string(path(self.page)).unwrap();
        let said = format!("{}\n", said.trim_end_matches('\n'));
        let at = before.find(&format!("## {}\n", self.section)).unwrap();
        let now = before[at..].replacen(&fenced(&self.text), &fenced(&said), 1);
        fs::write(path(self.page), format!("{}{now}", &before[..at])).unwrap();
    }
}

/// Holds the texts of a section, which are no commands, to what was said.
pub fn holds(section: &str, said: &[String]) {
    let blocks = blocks().into_iter();
    let texts: Vec<Block> = blocks
        .filter(|block| block.section == section && block.kind == TEXT)
        .collect();
    assert_eq!(texts.len(), said.len(), "texts of {section:?}");
    for (block, said) in texts.iter().zip(said) {
        block.holds(said);
    }
}

/// A text whose numbers count, but for how long something took, this version of the agent, and how wide columns are.
fn settled(text: &str) -> String {
    let is_time = |word: &str| {
        let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
        unit.len() < word.len() && ["ms", "s", "m", "h"].contains(&unit)
    };
    // The page has that of the release before, until it is written anew.
    let shaped = |word: &str| match word {
        word if is_time(word) => "0s".to_owned(),
        word => word.replace(env!("CARGO_PKG_VERSION"), "0.1.0"),
    };
    let lines = text
        .lines()
        .map(|line| line.split_whitespace().map(shaped).collect::<Vec<_>>());
    let lines: Vec<String> = lines.map(|words| words.join(" ")).collect();
    lines.join("\n").trim_end().to_owned()
}

/// A text without what differs from run to run: numbers, the units behind them, bars of a chart, and how wide columns are.
fn shape(text: &str) -> String {
    let is_number = |word: &str| {
        let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let rest = word.trim_start_matches(|c: char| c.is_ascii_digit() || ".,:-+TZ".contains(c));
        rest.len() < word.len() && ["", "µs", "ms", "s", "k", "M", "µ"].contains(&rest)
    };
    let shaped = |word: &str| match word == "-" || is_number(word) {
        true => "0".to_owned(),
        false => word
            .split(|c: char| c.is_ascii_digit())
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("0"),
    };
    let is_bar = |c: char| ('▁'..='█').contains(&c);
    // A page has a space between a number and its unit, which is another one when more is measured.
    let is_unit = |word: &str| ["µs", "ms", "s", "B", "kB", "MB", "KiB", "MiB"].contains(&word);
    let lines = text.lines().map(|line| {
        let words = line.split(|c: char| c.is_whitespace() || is_bar(c));
        let words = words.filter(|word| !word.is_empty()).map(shaped);
        let mut kept: Vec<String> = Vec::new();
        for word in words {
            if !(is_unit(&word) && kept.last().is_some_and(|before| before == "0")) {
                kept.push(word);
            }
        }
        kept.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}
