//! Pages in Markdown, in GitHub's dialect: text in which nothing means anything, and tables that are described by their columns.

use std::fmt::{Display, Write as _};

use crate::{number, stats::Difference};

/// The line before results that are rendered into a page of prose.
pub const BEGIN: &str = "<!-- results:begin -->";
/// The line after them.
pub const END: &str = "<!-- results:end -->";

/// A page of prose with the results between its markers; None if the page lacks a marker.
pub fn replaced(page: &str, results: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    let results = results.trim_matches('\n');
    Some(format!("{before}{BEGIN}\n\n{results}\n\n{END}{after}"))
}

/// A line. Whatever is put into it is shown, never understood as markup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Text(String);

impl Text {
    /// An empty line.
    pub fn new() -> Self {
        Self::default()
    }

    /// And this.
    #[must_use]
    pub fn plain(self, text: impl Into<String>) -> Self {
        let text = escaped(&text.into());
        self.with(&text)
    }

    /// And this, to be seen first.
    #[must_use]
    pub fn strong(self, text: impl Into<String>) -> Self {
        let text = escaped(&text.into());
        self.with(&format!("**{text}**"))
    }

    /// And this, as one would type it.
    #[must_use]
    pub fn code(self, text: impl Into<String>) -> Self {
        let text = code(&text.into());
        self.with(&text)
    }

    /// A text in which what one would type stands between backticks.
    pub fn with_code(text: &str) -> Self {
        let parts: Vec<&str> = text.split('`').collect();
        // One backtick stands alone.
        if parts.len().is_multiple_of(2) {
            return text.into();
        }
        let mut whole = Self::new();
        for (n, part) in parts.into_iter().enumerate() {
            whole = match n.is_multiple_of(2) {
                true => whole.plain(part),
                false => whole.code(part),
            };
        }
        whole
    }

    /// And a link; where its address is not of the web, only its text.
    #[must_use]
    pub fn link(self, text: impl Into<String>, url: impl Into<String>) -> Self {
        let (text, url) = (escaped(&text.into()), url.into());
        match url.starts_with("https://") || url.starts_with("http://") {
            true => self.with(&format!("[{text}](<{}>)", address(&url))),
            false => self.with(&text),
        }
    }

    /// And a link to a page of this project.
    #[must_use]
    pub fn page(self, text: impl Into<String>, file: &str) -> Self {
        let text = escaped(&text.into());
        self.with(&format!("[{text}]({file})"))
    }

    fn with(mut self, markdown: &str) -> Self {
        self.0.push_str(markdown);
        self
    }

    /// A difference with its interval.
    pub fn difference(difference: Option<Difference>, format: fn(f64) -> String) -> Self {
        let Some(difference) = difference else {
            return number::NONE.into();
        };
        let (figure, interval) = number::difference(difference, format);
        Self::new().plain(format!("{figure} ({interval})"))
    }

    /// A difference without its interval.
    pub fn brief(difference: Option<Difference>, format: fn(f64) -> String) -> Self {
        let figure = difference.map(|d| number::difference(d, format).0);
        figure.map_or_else(|| number::NONE.into(), Self::from)
    }
}

impl<T: Into<String>> From<T> for Text {
    fn from(text: T) -> Self {
        Self::new().plain(text)
    }
}

impl Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The columns of a table: each has a name, and makes its cell of a row.
pub struct Table<'a, R> {
    columns: Vec<Column<'a, R>>,
}

struct Column<'a, R> {
    name: Text,
    /// The line below the name, which sets numbers to the right.
    rule: &'static str,
    cell: Box<dyn Fn(&R) -> Text + 'a>,
}

impl<'a, R> Table<'a, R> {
    /// A table without columns.
    pub fn of_rows() -> Self {
        Self {
            columns: Vec::new(),
        }
    }

    /// And a column of words.
    #[must_use]
    pub fn words<T: Into<Text>>(self, name: impl Into<Text>, cell: impl Fn(&R) -> T + 'a) -> Self {
        self.with(name.into(), "---", cell)
    }

    /// And a column of numbers.
    #[must_use]
    pub fn numbers<T: Into<Text>>(
        self,
        name: impl Into<Text>,
        cell: impl Fn(&R) -> T + 'a,
    ) -> Self {
        self.with(name.into(), "--:", cell)
    }

    fn with<T: Into<Text>>(
        mut self,
        name: Text,
        rule: &'static str,
        cell: impl Fn(&R) -> T + 'a,
    ) -> Self {
        let cell = Box::new(move |row: &R| cell(row).into());
        self.columns.push(Column { name, rule, cell });
        self
    }
}

/// A page under way: blocks, with an empty line behind each.
#[derive(Default)]
pub struct Page(String);

impl Page {
    /// A page with this title.
    pub fn titled(title: &str) -> Self {
        let mut page = Self::default();
        page.heading(1, title);
        page
    }

    /// Adds a heading of this level.
    pub fn heading(&mut self, level: usize, title: impl Into<Text>) {
        self.markdown(format_args!("{} {}", "#".repeat(level), title.into()));
    }

    /// Adds lines that belong together.
    pub fn paragraph(&mut self, text: impl Into<Text>) {
        self.markdown(text.into());
    }

    /// Adds a line that a reader must not miss.
    pub fn warning(&mut self, text: Text) {
        self.markdown(format_args!("> {text}"));
    }

    /// Adds a table of these rows. Without a caption, the text before it names its subject.
    pub fn table<R>(
        &mut self,
        caption: impl Into<Text>,
        table: &Table<'_, R>,
        rows: impl IntoIterator<Item = R>,
    ) {
        let caption = caption.into();
        if !caption.0.is_empty() {
            self.markdown(format_args!("*{caption}*"));
        }
        let line = |cells: &mut dyn Iterator<Item = String>| {
            format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
        };
        let columns = || table.columns.iter();
        let mut lines = vec![
            line(&mut columns().map(|column| column.name.to_string())),
            line(&mut columns().map(|column| column.rule.to_owned())),
        ];
        let row = |row| line(&mut columns().map(|column| (column.cell)(&row).to_string()));
        lines.extend(rows.into_iter().map(row));
        self.markdown(lines.join("\n"));
    }

    /// Adds what is Markdown already.
    pub fn markdown(&mut self, block: impl Display) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{block}\n\n");
    }

    /// The text of the whole page, which ends with a newline.
    pub fn end(self) -> String {
        format!("{}\n", self.0.trim_end())
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
        let typed = |text: &str| Text::with_code(text).to_string();
        assert_eq!(
            typed("the step `a_b` of *two*"),
            r"the step `a_b` of \*two\*"
        );
        assert_eq!(typed("`a` | `b`"), r"`a` \| `b`");
        assert_eq!(typed("it`s"), r"it\`s");
        let link = |url: &str| Text::new().link("x", url).to_string();
        assert_eq!(
            link("https://a.example/b c"),
            "[x](<https://a.example/b%20c>)"
        );
        assert_eq!(link("javascript:alert(1)"), "x");
        assert_eq!(link("https://a/>|"), "[x](<https://a/%3E%7C>)");
    }

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let page = format!("# A\n\n{BEGIN}\nold\n{END}\n\nB\n");
        let new = replaced(&page, "new\n").unwrap();
        assert_eq!(new, format!("# A\n\n{BEGIN}\n\nnew\n\n{END}\n\nB\n"));
        assert_eq!(replaced(&new, "new\n"), Some(new.clone()));
        for lacking in ["# A\n\nB\n", BEGIN, END] {
            assert_eq!(replaced(lacking, ""), None);
        }
    }
}
