//! How `underpass fmt` lays a policy file out.
//!
//! **Invariant**: only white space between tokens changes, and the comma behind the last item of a list of several lines. So
//! neither what the file means changes, nor a comment, nor an order.

use std::path::Path;

use toml::Table;
use toml_parser::{
    Source,
    lexer::{Token, TokenKind},
};

use super::{ConfigError, Sources, error::Flaw, value::said_by_parser};

/// Columns of a line, beyond which a list takes several lines.
const WIDTH: usize = 120;

/// Columns by which the items of such a list are indented.
const INDENT: usize = 4;

/// Lays out the text of a file; `path` is for messages.
///
/// # Errors
/// The place and the reason where a text is no TOML.
pub fn laid_out(path: &Path, text: &str) -> Result<String, ConfigError> {
    let read = |text: &str| {
        let read: Result<Table, _> = toml::from_str(text);
        read.map_err(|e| Flaw::new(e.span().unwrap_or_default(), said_by_parser(&e)))
    };
    let error = |flaw| Sources::of(path, text).error(flaw);
    let meant = read(text).map_err(error)?;
    let out = written(&Reader::new(text).file());
    // What is written is read again by agents, so nobody relies on the invariant alone.
    match read(&out) {
        Ok(read) if read == meant => Ok(out),
        _ => {
            let message =
                "it cannot be laid out without a change of what it means: leave it as it is";
            Err(error(Flaw::new(0..0, message.to_owned())))
        }
    }
}

/// A line of the result.
#[derive(Default)]
struct Line {
    indent: usize,
    /// Empty: a blank line, or a comment alone.
    text: String,
    comment: Option<String>,
}

impl Line {
    fn is_comment(&self) -> bool {
        self.text.is_empty() && self.comment.is_some()
    }

    fn is_blank(&self) -> bool {
        self.text.is_empty() && self.comment.is_none()
    }
}

/// A value, or an item of one.
enum Node {
    /// A scalar, or a key.
    Leaf(String),
    /// A key and its value.
    Pair(String, Box<Node>),
    /// A list, or an inline table.
    Group(Group),
}

struct Group {
    is_list: bool,
    items: Vec<Item>,
    /// Comments behind the last item.
    tail: Vec<String>,
    /// Whether it takes several lines in the source.
    is_broken: bool,
}

struct Item {
    /// Comments on lines before it.
    before: Vec<String>,
    node: Node,
    /// The comment behind it on its line.
    after: Option<String>,
}

struct Reader<'t> {
    text: &'t str,
    tokens: Vec<Token>,
    at: usize,
}

impl<'t> Reader<'t> {
    fn new(text: &'t str) -> Self {
        let tokens = Source::new(text).lex();
        let tokens = tokens.filter(|token| token.kind() != TokenKind::Whitespace);
        Self {
            text,
            tokens: tokens.collect(),
            at: 0,
        }
    }

    fn kind(&self) -> TokenKind {
        self.kind_at(self.at)
    }

    fn kind_at(&self, at: usize) -> TokenKind {
        self.tokens.get(at).map_or(TokenKind::Eof, Token::kind)
    }

    /// The text of the next token.
    fn take(&mut self) -> &'t str {
        let span = self.tokens.get(self.at).map(Token::span);
        self.at += 1;
        let text = span.and_then(|span| self.text.get(span.start()..span.end()));
        text.unwrap_or_default()
    }

    fn comment(&mut self) -> String {
        self.take().trim_end().to_owned()
    }

    /// The lines of the file.
    fn file(mut self) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        let mut newlines = 0;
        loop {
            match self.kind() {
                TokenKind::Eof => return lines,
                TokenKind::Newline => {
                    self.take();
                    newlines += 1;
                    continue;
                }
                _ => {}
            }
            if newlines > 1 && !lines.is_empty() {
                lines.push(Line::default());
            }
            newlines = 0;
            match self.kind() {
                TokenKind::Comment => lines.push(Line {
                    comment: Some(self.comment()),
                    ..Line::default()
                }),
                TokenKind::LeftSquareBracket => {
                    set_off(&mut lines);
                    let text =
                        self.leaf(|kind| !matches!(kind, TokenKind::Newline | TokenKind::Comment));
                    self.end(&mut lines, text);
                }
                _ => {
                    // Of a file's own lines a key and its value are on one, without a comment between them.
                    let (node, _) = self.item();
                    let mut current = String::new();
                    emit(&node, 0, &mut current, &mut lines);
                    self.end(&mut lines, current);
                }
            }
        }
    }

    /// Ends a line of the file, with the comment behind it.
    fn end(&mut self, lines: &mut Vec<Line>, text: String) {
        let is_commented = self.kind() == TokenKind::Comment;
        lines.push(Line {
            indent: 0,
            text,
            comment: is_commented.then(|| self.comment()),
        });
    }

    /// Tokens that belong together, as one text.
    fn leaf(&mut self, belongs: impl Fn(TokenKind) -> bool) -> String {
        let mut text = String::new();
        let mut before: Option<Token> = None;
        while self.kind() != TokenKind::Eof && belongs(self.kind()) {
            let token = self.tokens.get(self.at).copied();
            // A date and a time may stand apart.
            if let (Some(before), Some(token)) = (before, token)
                && before.kind() == TokenKind::Atom
                && token.kind() == TokenKind::Atom
                && before.span().end() < token.span().start()
            {
                text.push(' ');
            }
            text.push_str(self.take());
            before = token;
        }
        text
    }

    /// A value, or a key and its value, with the comments between these.
    fn item(&mut self) -> (Node, Vec<String>) {
        let is_group = |kind| {
            matches!(
                kind,
                TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket
            )
        };
        if is_group(self.kind()) {
            return (Node::Group(self.group()), Vec::new());
        }
        let key = self.leaf(|kind| {
            use TokenKind::*;
            matches!(
                kind,
                Atom | Dot | LiteralString | BasicString | MlLiteralString | MlBasicString
            )
        });
        let Some(mut comments) = self.equals() else {
            // Whatever else it is, it is passed over: the text is TOML.
            if key.is_empty() {
                self.at += 1;
            }
            return (Node::Leaf(key), Vec::new());
        };
        let (value, inner) = self.item();
        comments.extend(inner);
        (Node::Pair(key, Box::new(value)), comments)
    }

    /// The comments around an equals sign, which may have lines of its own in an inline table. None: there is no such sign.
    fn equals(&mut self) -> Option<Vec<String>> {
        let is_between = |kind| matches!(kind, TokenKind::Newline | TokenKind::Comment);
        let sign = (self.at..).find(|at| !is_between(self.kind_at(*at)))?;
        if self.kind_at(sign) != TokenKind::Equals {
            return None;
        }
        let mut comments = Vec::new();
        while self.at <= sign || is_between(self.kind()) {
            match self.kind() {
                TokenKind::Comment => comments.push(self.comment()),
                _ => _ = self.take(),
            }
        }
        Some(comments)
    }

    fn group(&mut self) -> Group {
        let mut group = Group {
            is_list: self.take() == "[",
            items: Vec::new(),
            tail: Vec::new(),
            is_broken: false,
        };
        let mut before = Vec::new();
        let mut is_new_line = false;
        loop {
            match self.kind() {
                TokenKind::Eof => return group,
                TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket => {
                    self.take();
                    group.tail = before;
                    return group;
                }
                TokenKind::Newline => {
                    self.take();
                    (group.is_broken, is_new_line) = (true, true);
                }
                TokenKind::Comma => {
                    self.take();
                }
                TokenKind::Comment => {
                    let comment = self.comment();
                    match group.items.last_mut() {
                        Some(item) if !is_new_line && item.after.is_none() => {
                            item.after = Some(comment);
                        }
                        _ => before.push(comment),
                    }
                }
                _ => {
                    let (node, comments) = self.item();
                    // A comment ends its line.
                    group.is_broken |= !comments.is_empty();
                    before.extend(comments);
                    group.items.push(Item {
                        before: std::mem::take(&mut before),
                        node,
                        after: None,
                    });
                    is_new_line = false;
                }
            }
        }
    }
}

/// Puts a blank line before what is next, and before the comments that belong to it.
fn set_off(lines: &mut Vec<Line>) {
    let comments = lines.iter().rev().take_while(|line| line.is_comment());
    let at = lines.len() - comments.count();
    if at > 0 && !lines.get(at - 1).is_some_and(Line::is_blank) {
        lines.insert(at, Line::default());
    }
}

/// Writes a node at the end of a line, which has begun with `current` and goes on there.
fn emit(node: &Node, indent: usize, current: &mut String, lines: &mut Vec<Line>) {
    match node {
        Node::Leaf(text) => current.push_str(text),
        Node::Pair(key, value) => {
            current.push_str(&format!("{key} = "));
            emit(value, indent, current, lines);
        }
        Node::Group(group) => {
            let used = indent + current.chars().count();
            match group.takes_lines(used) {
                true => group.emit_lines(indent, current, lines),
                false => group.emit_in_line(indent, current, lines),
            }
        }
    }
}

impl Group {
    /// Whether each of its items has a line. `used`: the columns before it.
    fn takes_lines(&self, used: usize) -> bool {
        let is_long = || used + flat(self).chars().count() > WIDTH;
        self.is_broken || self.is_list && !self.items.is_empty() && is_long()
    }

    fn brackets(&self) -> [&'static str; 2] {
        match (self.is_list, self.items.is_empty()) {
            (true, _) => ["[", "]"],
            (false, true) => ["{", "}"],
            (false, false) => ["{ ", " }"],
        }
    }

    fn emit_in_line(&self, indent: usize, current: &mut String, lines: &mut Vec<Line>) {
        let [open, close] = self.brackets();
        current.push_str(open);
        for (number, item) in self.items.iter().enumerate() {
            if number > 0 {
                current.push_str(", ");
            }
            emit(&item.node, indent, current, lines);
        }
        current.push_str(close);
    }

    fn emit_lines(&self, indent: usize, current: &mut String, lines: &mut Vec<Line>) {
        let [open, close] = self.brackets();
        lines.push(Line {
            indent,
            text: std::mem::take(current) + open.trim_end(),
            comment: None,
        });
        let inner = indent + INDENT;
        let alone = |comment: &String| Line {
            indent: inner,
            text: String::new(),
            comment: Some(comment.clone()),
        };
        for item in &self.items {
            lines.extend(item.before.iter().map(alone));
            let mut text = String::new();
            emit(&item.node, inner, &mut text, lines);
            lines.push(Line {
                indent: inner,
                text: text + ",",
                comment: item.after.clone(),
            });
        }
        lines.extend(self.tail.iter().map(alone));
        *current = close.trim_start().to_owned();
    }
}

/// A group in one line, as long as it would be.
fn flat(group: &Group) -> String {
    let mut current = String::new();
    let items = group.items.iter().map(|item| flat_node(&item.node));
    let [open, close] = group.brackets();
    current.push_str(open);
    current.push_str(&items.collect::<Vec<_>>().join(", "));
    current.push_str(close);
    current
}

fn flat_node(node: &Node) -> String {
    match node {
        Node::Leaf(text) => text.clone(),
        Node::Pair(key, value) => format!("{key} = {}", flat_node(value)),
        Node::Group(group) => flat(group),
    }
}

/// The lines as text. Comments behind lines that follow each other stand in one column.
fn written(lines: &[Line]) -> String {
    let mut text = String::new();
    let is_commented = |line: &Line| !line.text.is_empty() && line.comment.is_some();
    for block in lines.chunk_by(|a, b| is_commented(a) && is_commented(b)) {
        let width = |line: &Line| line.indent + line.text.chars().count();
        let column = block.iter().map(width).max().unwrap_or_default();
        for line in block {
            let mut out = " ".repeat(line.indent) + &line.text;
            if let Some(comment) = &line.comment {
                let gap = match line.text.is_empty() {
                    true => 0,
                    false => column - width(line) + 1,
                };
                out = out + &" ".repeat(gap) + comment;
            }
            text.push_str(out.trim_end());
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests;
