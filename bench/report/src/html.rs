//! Documents as one page that needs nothing else: style, script and plots are in it.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::{
    document,
    model::{Block, Document, Section, Span, Table, Text, is_of_the_web},
    plot::theme,
    schema::Run,
};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Everything that a run says.
pub fn page(run: &Run) -> String {
    render(&document::of(run)).into_string()
}

fn render(document: &Document) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (document.title) }
                // Ours alone: no text of a run is in them.
                style { (PreEscaped(theme::of_page())) (PreEscaped(STYLE)) }
                script { (PreEscaped(SCRIPT)) }
            }
            body {
                nav { (contents(document)) }
                main {
                    header {
                        h1 { (document.title) }
                        button #theme type="button" title="Light or dark" { "◐" }
                    }
                    (blocks(&document.blocks))
                    @for section in &document.sections { (headed(section)) }
                }
            }
        }
    }
}

fn contents(document: &Document) -> Markup {
    html! {
        details open {
            summary { "Contents" }
            ul {
                @for section in &document.sections {
                    li {
                        a href={ "#" (anchor(section)) } { (text(&section.title)) }
                        @if section.sections.len() > 1 {
                            ul {
                                @for below in &section.sections {
                                    li { a href={ "#" (anchor(below)) } { (text(&below.title)) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn headed(section: &Section) -> Markup {
    html! {
        section {
            h2 id=(anchor(section)) { (text(&section.title)) }
            (blocks(&section.blocks))
            @for below in &section.sections {
                section class="experiment" {
                    h3 id=(anchor(below)) { (text(&below.title)) }
                    (blocks(&below.blocks))
                }
            }
        }
    }
}

fn blocks(all: &[Block]) -> Markup {
    html! {
        @for block in all {
            @match block {
                Block::Paragraph(line) => p { (text(line)) },
                Block::Warning(line) => p class="warning" { (text(line)) },
                Block::Table(one) => (table(one)),
                Block::Plot(plot) => div class="scroll figure" { (plot.inline()) },
                Block::Folded(title, inner) => details {
                    summary { (text(title)) }
                    (blocks(inner))
                },
            }
        }
    }
}

fn table(table: &Table) -> Markup {
    let class = |n: usize| {
        let is_number = table.columns.get(n).is_some_and(|c| c.is_number);
        if is_number { "n" } else { "w" }
    };
    html! {
        div class="scroll" {
            table {
                @if !table.caption.0.is_empty() { caption { (text(&table.caption)) } }
                thead {
                    tr {
                        @for (n, column) in table.columns.iter().enumerate() {
                            th scope="col" class=(class(n)) { (text(&column.name)) }
                        }
                    }
                }
                tbody {
                    @for row in &table.rows {
                        tr {
                            @for (n, cell) in row.cells.iter().enumerate() {
                                @match (&row.path, n) {
                                    (Some(path), 0) => th scope="row" class="path" {
                                        i style={ "background:" (theme::color(path)) } {}
                                        (text(cell))
                                    },
                                    _ => td class=(class(n)) { (text(cell)) },
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn text(line: &Text) -> Markup {
    html! {
        @for span in &line.0 {
            @match span {
                Span::Plain(text) => (text),
                Span::Strong(text) => strong { (text) },
                Span::Muted(text) => span class="muted" { (text) },
                Span::Code(text) => code { (text) },
                Span::Link { text, url } => {
                    @if is_of_the_web(url) {
                        a href=(url) rel="noreferrer" { (text) }
                    } @else {
                        (text)
                    }
                },
            }
        }
    }
}

/// A section's address: letters, digits and dashes.
fn anchor(section: &Section) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    section.anchor.chars().map(plain).collect()
}
