//! Documents as Markdown, in GitHub's dialect.

use std::fmt::Write as _;

use crate::{
    document,
    model::{Block, Document, Section, Span, Table, Text, is_of_the_web},
    overview, paths, programs,
    schema::Run,
    summary,
};

/// The table between the README's markers. Ends with a newline.
pub fn readme(runs: overview::Runs<'_>) -> String {
    let mut out = String::new();
    blocks(&mut out, &overview::blocks(runs));
    format!("{}\n", out.trim_end())
}

/// A page of one run: first the comparison of its paths, then everything that the run says.
pub fn of_scene(run: &Run, scene: paths::Scene) -> String {
    let mut document = document::of(run);
    let table = Block::Table(paths::table(run, scene));
    document.blocks.insert(0, table);
    self::document(&document)
}

/// Where the time went: shares, and a picture for each path. For a page in a folder of the
/// project's root. Ends with a newline.
pub fn profiles(run: &Run) -> String {
    let mut out = String::from("\n");
    let Some(table) = programs::profiles(run) else {
        return format!("{out}Nothing was profiled in the committed run.\n");
    };
    blocks(&mut out, &[Block::Table(table)]);
    let mut experiment = "";
    for profile in &run.profiles {
        let Some(file) = &profile.flame_graph else {
            continue;
        };
        if profile.experiment != experiment {
            experiment = &profile.experiment;
            let _ = writeln!(out, "### {}\n", escaped(experiment));
        }
        let title = escaped(&format!("{} under {experiment}", profile.path));
        let path = escaped(&profile.path);
        // Folded: a page of twenty pictures shows none of them.
        let _ = writeln!(
            out,
            "<details><summary>{path}</summary>\n\n![{title}](../{file})\n\n</details>\n"
        );
    }
    blocks(&mut out, &[Block::Paragraph(summary::origin(run))]);
    format!("{}\n", out.trim_end())
}

/// Everything that a run says.
pub fn full(run: &Run) -> String {
    document(&document::of(run))
}

/// A document.
pub fn document(document: &Document) -> String {
    let mut out = format!("# {}\n\n", escaped(&document.title));
    blocks(&mut out, &document.blocks);
    for section in &document.sections {
        headed(&mut out, section, 2);
    }
    format!("{}\n", out.trim_end())
}

pub(crate) fn headed(out: &mut String, section: &Section, level: usize) {
    let _ = writeln!(out, "{} {}\n", "#".repeat(level), text(&section.title));
    blocks(out, &section.blocks);
    for below in &section.sections {
        headed(out, below, level + 1);
    }
}

pub(crate) fn blocks(out: &mut String, all: &[Block]) {
    for block in all {
        match block {
            Block::Paragraph(line) => {
                let _ = writeln!(out, "{}\n", text(line));
            }
            Block::Warning(line) => {
                let _ = writeln!(out, "> {}\n", text(line));
            }
            Block::Table(table) => self::table(out, table),
        }
    }
}

fn table(out: &mut String, table: &Table) {
    if !table.caption.0.is_empty() {
        let _ = writeln!(out, "*{}*\n", text(&table.caption));
    }
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    out.push_str(&line(table.columns.iter().map(|c| text(&c.name)).collect()));
    let rule = |is_number| if is_number { "--:" } else { "---" };
    out.push_str(&line(
        table
            .columns
            .iter()
            .map(|c| rule(c.is_number).into())
            .collect(),
    ));
    for row in &table.rows {
        out.push_str(&line(row.cells.iter().map(text).collect()));
    }
    out.push('\n');
}

/// A line of Markdown.
pub fn text(line: &Text) -> String {
    line.0.iter().map(span).collect()
}

fn span(span: &Span) -> String {
    match span {
        Span::Plain(text) | Span::Muted(text) => escaped(text),
        Span::Strong(text) => format!("**{}**", escaped(text)),
        Span::Code(text) => code(text),
        Span::Link { text, url } if is_of_the_web(url) => {
            format!("[{}](<{}>)", escaped(text), address(url))
        }
        Span::Link { text, .. } => escaped(text),
    }
}

/// Code, where it can be code: a backtick would end it, a pipe its cell.
fn code(text: &str) -> String {
    let is_safe = |c: char| !matches!(c, '`' | '|' | '\\') && !c.is_control();
    match !text.is_empty() && text.chars().all(is_safe) {
        true => format!("`{text}`"),
        false => escaped(text),
    }
}

/// Within `<…>`.
fn address(url: &str) -> String {
    let mut out = String::new();
    for c in url.chars() {
        match c {
            '<' => out.push_str("%3C"),
            '>' => out.push_str("%3E"),
            '|' => out.push_str("%7C"),
            '\\' => out.push_str("%5C"),
            ' ' => out.push_str("%20"),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

/// Text that is only text: on one line, nothing in it means anything.
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\\' | '|' | '`' | '*' | '_' | '[' | ']' | '~' | '#' | '!' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        assert_eq!(escaped("a|b\n<script>"), r"a\|b &lt;script&gt;");
        assert_eq!(escaped("*a* [b](c)"), r"\*a\* \[b\](c)");
        assert_eq!(code("stress-read"), "`stress-read`");
        assert_eq!(code("a|`b"), r"a\|\`b");
    }

    #[test]
    fn only_the_web_is_linked() {
        let link = |url: &str| text(&Text::new().link("x", url));
        assert_eq!(
            link("https://a.example/b c"),
            "[x](<https://a.example/b%20c>)"
        );
        assert_eq!(link("javascript:alert(1)"), "x");
        assert_eq!(link("https://a/>|"), "[x](<https://a/%3E%7C>)");
    }
}
