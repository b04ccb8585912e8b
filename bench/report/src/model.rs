//! The content of a page, before it is Markdown.

use crate::{number, stats::Difference};

/// A piece of a line. Whatever is in it is shown, never understood as markup.
#[derive(Clone, Debug, PartialEq)]
pub enum Span {
    /// Plain text.
    Plain(String),
    /// To be seen first.
    Strong(String),
    /// To be seen last.
    Muted(String),
    /// Text as one would type it.
    Code(String),
    /// A link; where its address is not of the web, only its text.
    Link {
        /// The text that is shown.
        text: String,
        /// Where it leads.
        url: String,
    },
}

/// A line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Text(pub Vec<Span>);

impl Text {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// And this.
    #[must_use]
    pub fn plain(self, text: impl Into<String>) -> Self {
        self.with(Span::Plain(text.into()))
    }

    /// And this, to be seen first.
    #[must_use]
    pub fn strong(self, text: impl Into<String>) -> Self {
        self.with(Span::Strong(text.into()))
    }

    /// And this, to be seen last.
    #[must_use]
    pub fn muted(self, text: impl Into<String>) -> Self {
        self.with(Span::Muted(text.into()))
    }

    /// And this, as one would type it.
    #[must_use]
    pub fn code(self, text: impl Into<String>) -> Self {
        self.with(Span::Code(text.into()))
    }

    /// And a link.
    #[must_use]
    pub fn link(self, text: impl Into<String>, url: impl Into<String>) -> Self {
        self.with(Span::Link {
            text: text.into(),
            url: url.into(),
        })
    }

    fn with(mut self, span: Span) -> Self {
        self.0.push(span);
        self
    }

    /// A difference with its spread.
    pub fn difference(difference: Option<Difference>, format: fn(f64) -> String) -> Self {
        let Some(difference) = difference else {
            return number::NONE.into();
        };
        let (figure, spread) = number::difference(difference, format);
        let text = match figure == number::NO_DIFFERENCE {
            true => Self::new().muted(figure),
            false => Self::new().plain(figure),
        };
        text.muted(format!(" ({spread})"))
    }

    /// A difference without its spread.
    pub fn brief(difference: Option<Difference>, format: fn(f64) -> String) -> Self {
        match difference.map(|d| number::difference(d, format).0) {
            None => number::NONE.into(),
            Some(figure) if figure == number::NO_DIFFERENCE => Self::new().muted(figure),
            Some(figure) => figure.into(),
        }
    }
}

impl<T: Into<String>> From<T> for Text {
    fn from(text: T) -> Self {
        Self::new().plain(text)
    }
}

/// Whether a link may lead there.
pub fn is_of_the_web(url: &str) -> bool {
    url.starts_with("https://") || url.starts_with("http://")
}

/// A column's head.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// The column's name.
    pub name: Text,
    /// Numbers stand at the right.
    pub is_number: bool,
}

impl Column {
    /// A column of words.
    pub fn words(name: impl Into<Text>) -> Self {
        Self {
            name: name.into(),
            is_number: false,
        }
    }

    /// A column of numbers.
    pub fn numbers(name: impl Into<Text>) -> Self {
        Self {
            name: name.into(),
            is_number: true,
        }
    }
}

/// A row; as many cells as there are columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The path it is of: its colour stands before the first cell.
    pub path: Option<String>,
    /// The cells of the row.
    pub cells: Vec<Text>,
}

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The subject of the table; empty: the text before it names the subject.
    pub caption: Text,
    /// Heads.
    pub columns: Vec<Column>,
    /// Rows.
    pub rows: Vec<Row>,
}

impl Table {
    /// Without rows yet.
    pub fn new(caption: impl Into<Text>, columns: Vec<Column>) -> Self {
        Self {
            caption: caption.into(),
            columns,
            rows: Vec::new(),
        }
    }

    /// One more row, of a path.
    pub fn path_row(&mut self, path: &str, cells: impl IntoIterator<Item = Text>) {
        let first = Text::new().plain(path);
        self.rows.push(Row {
            path: Some(path.into()),
            cells: [first].into_iter().chain(cells).collect(),
        });
    }

    /// One more row.
    pub fn row(&mut self, cells: Vec<Text>) {
        self.rows.push(Row { path: None, cells });
    }
}

/// A part of a section.
#[derive(Clone, Debug)]
pub enum Block {
    /// Lines that belong together.
    Paragraph(Text),
    /// A line that a reader must not miss.
    Warning(Text),
    /// Rows and columns.
    Table(Table),
}

/// A section, with sections in it.
#[derive(Clone, Debug)]
pub struct Section {
    /// The section's name in addresses.
    pub anchor: String,
    /// The section's heading.
    pub title: Text,
    /// The section's content.
    pub blocks: Vec<Block>,
    /// The sections below this one.
    pub sections: Vec<Section>,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Document {
    /// The page's head.
    pub title: String,
    /// Under it.
    pub blocks: Vec<Block>,
    /// Then these.
    pub sections: Vec<Section>,
}
