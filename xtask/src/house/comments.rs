//! Doc comments whose first words name no subject, and examples in them, which nobody runs.

use proc_macro2::Span;
use syn::{
    Attribute, Meta,
    spanned::Spanned,
    visit::{self, Visit},
};

use super::{
    Complaint,
    source::{self, File},
};

/// Words that a sentence cannot be understood by alone: what they stand for is elsewhere.
const OPENERS: [&str; 22] = [
    "What", "Whatever", "It", "Its", "Of", "As", "Who", "Whoever", "Whose", "Whom", "Which",
    "Those", "Them", "They", "Their", "Theirs", "These", "This", "That", "Likewise", "Ditto",
    "Whence",
];
/// Openers of two words.
const PAIRS: [&str; 3] = ["The same", "The other", "One that"];

/// Number of doc comments of a file, and complaints about them.
pub fn check(file: &File) -> (usize, Vec<Complaint>) {
    let mut comments = Comments {
        file,
        read: 0,
        complaints: Vec::new(),
        open: None,
        is_in_block: false,
    };
    comments.visit_file(&file.syntax);
    comments.end();
    (comments.read, comments.complaints)
}

struct Comments<'a> {
    file: &'a File,
    read: usize,
    complaints: Vec<Complaint>,
    /// Line of the last attribute of the comment that is being read, so that its further lines are
    /// told from another comment.
    open: Option<usize>,
    /// Whether the line at hand is in a block of code.
    is_in_block: bool,
}

impl Comments<'_> {
    fn end(&mut self) {
        self.open = None;
    }

    /// `xtask test` starts no rustdoc: once for each crate, to find nothing to run.
    fn line(&mut self, text: &str, span: Span) {
        let Some(language) = text.strip_prefix("```") else {
            return;
        };
        if !self.is_in_block && is_run(language) {
            self.complaints.push(Complaint {
                place: self.file.place(span.start().line),
                text: "an example in a doc comment is not run: make it a test".to_owned(),
            });
        }
        self.is_in_block = !self.is_in_block;
    }

    fn first_line(&mut self, text: &str, span: Span) {
        self.read += 1;
        let Some(opener) = opener(text) else { return };
        self.complaints.push(Complaint {
            place: self.file.place(span.start().line),
            text: format!("a doc comment begins with `{opener}`: name its subject first"),
        });
    }
}

impl<'ast> Visit<'ast> for Comments<'_> {
    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::NameValue(pair) = &attribute.meta
            && pair.path.is_ident("doc")
            && let Some(text) = source::text(&pair.value)
        {
            let line = attribute.span().start().line;
            let continues = self.open.is_some_and(|last| last + 1 == line);
            if !continues {
                self.is_in_block = false;
                self.first_line(text.trim(), attribute.span());
            }
            self.line(text.trim(), attribute.span());
            self.open = Some(attribute.span().end().line);
        }
        visit::visit_attribute(self, attribute);
    }
}

/// The first word, or two, if they name no subject.
fn opener(text: &str) -> Option<&'static str> {
    let is_first = |words: &&&str| {
        text.strip_prefix(**words)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    let found = OPENERS.iter().find(is_first);
    found.or_else(|| PAIRS.iter().find(is_first)).copied()
}

/// Whether rustdoc would run a block that begins with this language.
fn is_run(language: &str) -> bool {
    let mut words = language.split([',', ' ']).filter(|word| !word.is_empty());
    words.all(|word| {
        matches!(word, "rust" | "should_panic" | "no_run" | "compile_fail")
            || word.starts_with("edition")
    })
}

#[cfg(test)]
mod tests {
    use super::{is_run, opener};

    #[test]
    fn rust_is_run_and_pictures_are_not() {
        for run in ["", "rust", "should_panic", "rust,no_run", "edition2024"] {
            assert!(is_run(run), "{run}");
        }
        for shown in ["text", "toml", "rust,ignore", "ignore", "sh"] {
            assert!(!is_run(shown), "{shown}");
        }
    }

    #[test]
    fn openers_are_whole_words() {
        assert_eq!(opener("What a rule says."), Some("What"));
        assert_eq!(opener("It."), Some("It"));
        assert_eq!(opener("The same, for IPv6."), Some("The same"));
        for good in [
            "Items of a list.",
            "Offset in bytes.",
            "Assembles.",
            "The samples.",
            "",
        ] {
            assert_eq!(opener(good), None, "{good}");
        }
    }
}
