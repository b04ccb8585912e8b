//! The screen of `top`: a table, the details of one line, and a question before a mark.

use std::{process::ExitCode, time::Instant};

use ratatui::{
    Frame,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::{Line, Text},
    widgets::{Block, Cell, Clear, Paragraph, Row as Cells, Sparkline, Table, TableState, Wrap},
};
use serde_json::json;

use super::{
    TopArgs, chosen, look,
    rates::{Asked, Rates, Row, Sort, WINDOW},
    view::{HEADINGS, NUMBERS, cells, rate, safe, time},
};
use crate::commands::{
    control::ask,
    whereabouts::{Admin, Control},
};

/// How long a mark lasts that is set here, unless the user takes it back before.
const MARK_FOR: &str = "10m";

/// The actions that a mark may give, by their keys.
const ACTIONS: [(char, &str); 4] = [
    ('b', "bypass"),
    ('o', "observe"),
    ('e', "enrich"),
    ('d', "deny"),
];

const HELP: &str = " ↑↓ choose  Enter details  / filter  s order  p pause  m mark  q end ";

/// The part of the screen that has the keys.
#[derive(Clone, Debug, PartialEq)]
enum Mode {
    Table,
    /// The filter is typed.
    Filter,
    Detail,
    /// An action for the process is chosen.
    Mark {
        process: String,
    },
    /// The mark is to be confirmed.
    Confirm {
        process: String,
        action: &'static str,
    },
}

struct Screen<'a> {
    args: &'a TopArgs,
    admin: Admin,
    control: Control,
    rates: Rates,
    rows: Vec<Row>,
    /// The line that is chosen, by its statement: lines move.
    chosen: Option<Asked>,
    filter: String,
    sort: Sort,
    is_paused: bool,
    mode: Mode,
    next_look: Instant,
    /// The outcome of the last look or mark.
    said: String,
}

/// Draws until the user ends it.
pub(super) fn run(args: &TopArgs, admin: Admin, rates: Rates) -> anyhow::Result<ExitCode> {
    let mut screen = Screen {
        args,
        admin,
        control: args.control.find(),
        rates,
        rows: Vec::new(),
        chosen: None,
        filter: args.filter.clone(),
        sort: args.sort,
        is_paused: false,
        mode: Mode::Table,
        next_look: Instant::now() + args.every(),
        said: String::new(),
    };
    // It restores the terminal if this process panics, too.
    let mut terminal = ratatui::try_init()?;
    let ended = loop {
        if let Err(error) = terminal.draw(|frame| screen.draw(frame)) {
            break Err(error.into());
        }
        match screen.step() {
            Ok(true) => {}
            ended => break ended,
        }
    };
    ratatui::restore();
    ended.map(|_| ExitCode::SUCCESS)
}

impl Screen<'_> {
    /// Waits for a key until the next look is due. False: it is to end.
    fn step(&mut self) -> anyhow::Result<bool> {
        if event::poll(self.next_look.saturating_duration_since(Instant::now()))? {
            return Ok(match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => self.press(key),
                _ => true,
            });
        }
        self.next_look = Instant::now() + self.args.every();
        if !self.is_paused {
            match look(&self.admin) {
                Ok(sample) => {
                    self.rates.add(sample);
                    self.update();
                }
                // An agent that is started again is there again.
                Err(error) => self.said = format!("{error:#}"),
            }
        }
        Ok(true)
    }

    fn update(&mut self) {
        self.rows = chosen(&self.rates, &self.filter, self.sort);
        if self.position().is_none() {
            self.chosen = self.rows.first().map(|row| row.asked.clone());
        }
    }

    fn position(&self) -> Option<usize> {
        let chosen = self.chosen.as_ref()?;
        self.rows.iter().position(|row| row.asked == *chosen)
    }

    fn choose(&mut self, by: isize) {
        let last = self.rows.len().saturating_sub(1);
        let at = self
            .position()
            .unwrap_or(0)
            .saturating_add_signed(by)
            .min(last);
        self.chosen = self.rows.get(at).map(|row| row.asked.clone());
    }

    /// Obeys a key. False: it is to end.
    fn press(&mut self, key: KeyEvent) -> bool {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return false;
        }
        match self.mode.clone() {
            Mode::Table => return self.press_in_table(key.code),
            Mode::Filter => self.press_in_filter(key.code),
            Mode::Detail => match key.code {
                KeyCode::Char('m') => self.begin_mark(),
                _ => self.mode = Mode::Table,
            },
            Mode::Mark { process } => {
                let action = ACTIONS.iter().find(|(c, _)| key.code == KeyCode::Char(*c));
                self.mode = match action {
                    Some((_, action)) => Mode::Confirm { process, action },
                    None => Mode::Table,
                };
            }
            Mode::Confirm { process, action } => {
                self.mode = Mode::Table;
                self.said = match key.code {
                    KeyCode::Char('y') => self.mark(&process, action),
                    _ => "nothing was marked".to_owned(),
                };
            }
        }
        true
    }

    fn press_in_table(&mut self, key: KeyCode) -> bool {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Up | KeyCode::Char('k') => self.choose(-1),
            KeyCode::Down | KeyCode::Char('j') => self.choose(1),
            KeyCode::PageUp => self.choose(-20),
            KeyCode::PageDown => self.choose(20),
            KeyCode::Enter if self.chosen.is_some() => self.mode = Mode::Detail,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.update();
            }
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('m') => self.begin_mark(),
            _ => {}
        }
        true
    }

    fn press_in_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(c) => self.filter.push(c),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::Table;
            }
            _ => self.mode = Mode::Table,
        }
        self.update();
    }

    fn begin_mark(&mut self) {
        let process = self.chosen.as_ref().and_then(|asked| asked.process.clone());
        match process {
            // A process names itself, and could mean others than itself.
            Some(process) if process.contains(['*', ',', '=']) || process.is_empty() => {
                self.said =
                    "this process's name would mean others in a mark: mark its flows by number"
                        .to_owned();
            }
            Some(process) => self.mode = Mode::Mark { process },
            None => self.said = "only a process of this host can be marked from here".to_owned(),
        }
    }

    /// Sets the mark, and returns what became of it.
    fn mark(&self, process: &str, action: &str) -> String {
        let target = format!("process={process}");
        let wanted = json!({ "target": target, "action": action, "for": MARK_FOR, "reset": false });
        match ask(&self.control, "POST", "/marks", &wanted.to_string()) {
            Ok(answer) => {
                let id = answer
                    .pointer("/mark/id")
                    .map_or("?".into(), ToString::to_string);
                let changed = answer
                    .pointer("/counts/changed")
                    .map_or("0".into(), ToString::to_string);
                format!("mark {id}: {changed} flows changed; `underpass unmark {id}` takes it back")
            }
            Err(error) => format!("{error:#}"),
        }
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let [head, body, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.head(), head);
        self.draw_table(frame, body);
        frame.render_widget(self.foot(), foot);
        match &self.mode {
            Mode::Detail => self.draw_detail(frame, body),
            Mode::Mark { process } => {
                let choices = ACTIONS
                    .map(|(key, action)| format!("{key}: {action}"))
                    .join("   ");
                let text = format!(
                    "What shall become of connections of {}?\n\n{choices}",
                    safe(process)
                );
                popup(frame, body, "Mark", text.into());
            }
            Mode::Confirm { process, action } => {
                popup(frame, body, "Mark", question(process, action).into());
            }
            Mode::Table | Mode::Filter => {}
        }
    }

    fn head(&self) -> Line<'_> {
        let all: f64 = self.rows.iter().map(|row| row.per_second).sum();
        let errors: f64 = self.rows.iter().map(|row| row.errors_per_second).sum();
        let paused = if self.is_paused { ", paused" } else { "" };
        Line::from(format!(
            " underpass top at {}: {} op/s, {} errors/s, {} statements over {} s, by {:?}{paused}",
            self.admin.at,
            rate(all),
            rate(errors),
            self.rows.len(),
            WINDOW.as_secs(),
            self.sort,
        ))
        .style(Modifier::BOLD)
    }

    fn foot(&self) -> Line<'_> {
        let text = match (&self.mode, self.said.as_str()) {
            (Mode::Filter, _) => {
                format!(" filter: {}_   Enter keeps it, Esc clears it", self.filter)
            }
            (_, "") if self.filter.is_empty() => HELP.to_owned(),
            (_, "") => format!(" filter: {}  {HELP}", self.filter),
            (_, said) => format!(" {}", safe(said)),
        };
        Line::from(text).style(Modifier::REVERSED)
    }

    fn draw_table(&self, frame: &mut Frame<'_>, area: Rect) {
        if self.rows.is_empty() {
            let none = "Nothing was asked lately under a rule whose pipeline has `stats`, or nothing that fits the filter.";
            return frame.render_widget(Paragraph::new(none).wrap(Wrap { trim: true }), area);
        }
        let right = |at: usize, text: &str, width: usize| match NUMBERS.contains(&at) {
            true => Cell::from(format!("{text:>width$}")),
            false => Cell::from(text.to_owned()),
        };
        let widths = [15, 24, 8, 6, 6, 6, 6, 6, 6, 7];
        let width = |at: usize| widths.get(at).copied().unwrap_or(0);
        let line = |texts: &[String]| {
            let cells = texts.iter().enumerate();
            Cells::new(cells.map(|(at, text)| right(at, text, width(at))))
        };
        let headings = HEADINGS.map(str::to_owned);
        let constraints = widths.iter().map(|n| Constraint::Length(*n as u16));
        let constraints = constraints.chain([Constraint::Min(20)]);
        let table = Table::new(self.rows.iter().map(|row| line(&cells(row))), constraints)
            .header(line(&headings).style(Modifier::UNDERLINED))
            .row_highlight_style(Modifier::REVERSED);
        let mut state = TableState::default().with_selected(self.position());
        frame.render_stateful_widget(table, area, &mut state);
    }

    fn draw_detail(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some(asked) = &self.chosen else { return };
        let row = self.rows.iter().find(|row| row.asked == *asked);
        let latencies = row.map_or("nothing lately".to_owned(), |row| {
            let [p50, p99, max] = [row.p50_us, row.p99_us, row.max_us].map(time);
            format!(
                "{} op/s; p50 {p50}, p99 {p99}, max {max}",
                rate(row.per_second)
            )
        });
        let text = [
            safe(&asked.statement),
            String::new(),
            format!("asked by   {}", safe(asked.who())),
            format!("table      {}", safe(&asked.table())),
            format!("rule       {}", safe(&asked.rule)),
            format!("path       {}", asked.path),
            format!("lately     {latencies}"),
        ];
        let inner = popup(
            frame,
            area,
            "Statement (any key: back, m: mark)",
            text.join("\n").into(),
        );
        let [_, chart] = Layout::vertical([Constraint::Min(0), Constraint::Length(4)]).areas(inner);
        let history = self.rates.history(asked);
        frame.render_widget(Sparkline::default().data(&history), chart);
    }
}

/// Says what a mark will change.
fn question(process: &str, action: &str) -> String {
    let process = safe(process);
    let what = match action {
        "bypass" => {
            "New connections go straight to the database, unread. Running ones that go through the agent are decoded no \
             more; those that are read from copies stay as they are."
        }
        "observe" => {
            "New connections are counted, and not decoded, and running ones that the agent does not carry."
        }
        "enrich" => "New connections are decoded, and running ones that go through the agent.",
        _ => {
            "New connections are refused. Running ones that go through the agent are reset; the others stay as they are."
        }
    };
    format!(
        "Mark {process} with {action} for {MARK_FOR}?\n\n{what}\n\nFlows that are changed stay so when the mark ends. \
         The same: underpass mark process={process} {action} --for {MARK_FOR}\n\ny: yes   any other key: no"
    )
}

/// Draws a box with text over the table. Returns its inner area.
fn popup(frame: &mut Frame<'_>, area: Rect, title: &str, text: Text<'_>) -> Rect {
    let [_, middle, _] = Layout::vertical([
        Constraint::Fill(1),
        Constraint::Length(16),
        Constraint::Fill(1),
    ])
    .areas(area);
    let [_, middle, _] = Layout::horizontal([
        Constraint::Fill(1),
        Constraint::Percentage(80),
        Constraint::Fill(1),
    ])
    .areas(middle);
    let block = Block::bordered().title(title.to_owned());
    let inner = block.inner(middle);
    frame.render_widget(Clear, middle);
    let paragraph = Paragraph::new(text).wrap(Wrap { trim: false });
    frame.render_widget(paragraph.block(block).style(Style::default()), middle);
    inner
}
