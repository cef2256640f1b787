// SPDX-License-Identifier: GPL-2.0-only
//! The screen.

use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};
use ratatui::Frame;

use super::app::{App, Order, Over};
use super::columns::{Column, Grade, COLUMNS};
use super::rates::Row;
use super::words;
use crate::vmname::shortened;

/// From this width on what a VM loses to stands in its own line's end; below it in a line of its own.
const WIDE: u16 = 150;
const WORDS_MIN: u16 = 68;
const NAME_MIN: u16 = 16;
const NAME_MAX: u16 = 28;
const VCPUS_WIDTH: u16 = 5;

pub const KEYS: &[(&str, &str)] = &[
    ("Up Down PgUp PgDn Home End", "choose a VM"),
    ("Enter, Right, Left", "open it into its vCPUs, close it; e: all"),
    ("s S", "sort by the next column, the one before; L: by time lost, N: by name; r: the other way round"),
    ("c", "choose columns, and read what they mean"),
    ("w", "what each VM loses most to, in words: on, off"),
    ("p, space", "pause: the screen stays, counting goes on"),
    ("+ -", "look half as often, twice as often"),
    ("h ?", "this help"),
    ("q Esc", "leave"),
];

pub fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let [head, list, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(vec![summary(app, head.width), remarks(app)]), head);
    draw_list(frame, app, list);
    let keys = "h help  Enter open  s sort  c columns  w words  p pause  q quit";
    frame.render_widget(Paragraph::new(keys).style(dim()), foot);
    match app.over {
        Over::Nothing => {}
        Over::Help => draw_help(frame),
        Over::Columns(at) => draw_columns(frame, app, at),
    }
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn summary(app: &App, width: u16) -> Line<'static> {
    let mut parts = vec![Span::styled("cohort top", bold())];
    let sample = &app.sample;
    if let Some(interval) = &app.interval {
        let pcpus = f64::from(interval.pcpus.max(1));
        let idle = (interval.idle_ns as f64 / 1e7 / interval.secs / pcpus).min(100.0);
        let over = f64::from(interval.vcpus) / pcpus;
        parts.push(
            format!(
                "  {}, {} on {}, {over:.1}:1  idle {idle:.0} %  {:.0} switches/s",
                count(interval.vms.len(), "VM"),
                count(interval.vcpus as usize, "vCPU"),
                count(interval.pcpus as usize, "pCPU"),
                interval.switches as f64 / interval.secs,
            )
            .into(),
        );
    }
    // As much as fits whole.
    for part in [format!("  {}", sample.scheduler), format!("  Linux {}", sample.kernel)] {
        let used: usize = parts.iter().map(Span::width).sum();
        if used + part.len() > usize::from(width) {
            break;
        }
        parts.push(part.into());
    }
    Line::from(parts)
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn remarks(app: &App) -> Line<'static> {
    let mut parts = Vec::new();
    if app.paused {
        parts.push(Span::styled("PAUSED  ", Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD)));
    }
    let secs = app.interval.as_ref().map_or(app.every.as_secs_f64(), |interval| interval.secs);
    let way = if app.reversed { ", least first" } else { "" };
    parts.push(Span::styled(format!("{secs:.1} s, by {}{way}", app.order_name()), dim()));
    if !app.sample.notes.is_empty() {
        parts.push(format!("  {}", app.sample.notes.join("; ")).into());
    }
    Line::from(parts)
}

/// What of the width is for what.
struct Widths {
    name: u16,
    columns: Vec<&'static Column>,
    /// For words in the same line; 0: they have a line of their own.
    words: u16,
}

fn widths(app: &App, width: u16) -> Widths {
    let wide = app.words && width >= WIDE;
    let longest =
        app.sample.vms.iter().map(|vm| Span::raw(vm.name.as_str()).width() as u16 + 2).max().unwrap_or(0);
    let name = longest.clamp(NAME_MIN, if width >= WIDE { NAME_MAX } else { NAME_MIN + 4 });
    let mut left = width.saturating_sub(name + VCPUS_WIDTH + 1 + if wide { WORDS_MIN } else { 0 });
    let mut columns = Vec::new();
    for column in &app.columns {
        if left < column.width + 1 {
            break;
        }
        left -= column.width + 1;
        columns.push(*column);
    }
    Widths { name, columns, words: if wide { WORDS_MIN + left } else { 0 } }
}

fn draw_list(frame: &mut Frame<'_>, app: &mut App, area: Rect) {
    if area.height == 0 {
        return;
    }
    let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let widths = widths(app, area.width);
    frame.render_widget(
        Paragraph::new(heads(app, &widths)).style(Style::new().add_modifier(Modifier::REVERSED)),
        head,
    );
    let rows = app.rows();
    if rows.is_empty() {
        let text = match app.interval {
            None => "looking ...",
            Some(_) => "No VM runs on this host. One that starts appears here by itself.",
        };
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), body);
        app.page = 1;
        return;
    }

    let height = |row: &Row| if app.words && widths.words == 0 && row.vcpu.is_none() { 2 } else { 1 };
    let room = usize::from(body.height);
    // The selected row is to be seen, and no empty lines below the last one.
    let selected = app.selected_at.min(rows.len() - 1);
    let mut top = app.top.min(selected);
    let lines = |from: usize, to: usize| rows[from..to].iter().map(|row| height(row)).sum::<usize>();
    while top < selected && lines(top, selected + 1) > room {
        top += 1;
    }
    while top > 0 && lines(top - 1, rows.len()) <= room {
        top -= 1;
    }
    let mut text = Vec::new();
    let mut shown = 0;
    for row in &rows[top..] {
        if text.len() >= room {
            break;
        }
        let line = row_line(app, row, &widths);
        let is_selected = app.selected == Some(row.id);
        text.push(if is_selected {
            line.style(Style::new().bg(Color::DarkGray).add_modifier(Modifier::BOLD))
        } else {
            line
        });
        if height(row) == 2 {
            text.push(Line::styled(format!("  {}", words::of(row)), dim()));
        }
        shown += 1;
    }
    frame.render_widget(Paragraph::new(text), body);
    app.top = top;
    app.page = shown;
}

fn heads(app: &App, widths: &Widths) -> Line<'static> {
    let name = usize::from(widths.name);
    let mut parts = vec![Span::raw(format!("{:<name$} {:>5}", "VM", "vCPUs"))];
    for column in &widths.columns {
        let text = format!(" {:>width$}", column.head, width = usize::from(column.width));
        let sorted = matches!(app.order, Order::By(by) if by.head == column.head);
        parts.push(if sorted { Span::styled(text, Style::new().fg(Color::Cyan)) } else { text.into() });
    }
    if widths.words > 0 {
        parts.push("  loses most to".into());
    }
    Line::from(parts)
}

fn row_line(app: &App, row: &Row, widths: &Widths) -> Line<'static> {
    let (name, vcpus) = match row.vcpu {
        None => {
            let sign = if app.open.contains(&row.id) { "- " } else { "+ " };
            (format!("{sign}{}", row.name), row.vcpus.to_string())
        }
        // Where a VM's line has the number of vCPUs, theirs has the pCPU.
        Some((id, pcpu, state)) => {
            // A number of many digits takes the place of blanks: with four of them `preempted` would be cut.
            let number = if id < 100 { format!("    {id}") } else { format!("{id:>6}") };
            (format!("{number} {}", state.name()), format!("@{pcpu}"))
        }
    };
    let mut parts = vec![Span::raw(format!("{} {vcpus:>5}", fit(&name, widths.name)))];
    for column in &widths.columns {
        let text = column.text(row, &app.sample.missing);
        let style = match column.value(row, &app.sample.missing).map(|value| column.grade(value)) {
            Some(Grade::Alarm) => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
            Some(Grade::Warning) => Style::new().fg(Color::Yellow),
            _ => Style::new(),
        };
        parts.push(" ".into());
        parts.push(Span::styled(format!("{text:>width$}", width = usize::from(column.width)), style));
    }
    if widths.words > 0 && row.vcpu.is_none() {
        parts.push(Span::raw(format!("  {}", words::of(row))));
    }
    Line::from(parts)
}

/// Shortened or padded to so many columns of the terminal.
pub fn fit(text: &str, width: u16) -> String {
    let width = usize::from(width);
    // A character may take two columns.
    let fitted = (0..=width).rev().map(|chars| shortened(text, chars)).find(|text| columns_of(text) <= width);
    let fitted = fitted.unwrap_or_default();
    let padding = " ".repeat(width - columns_of(&fitted));
    fitted + &padding
}

fn columns_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// A box in the middle, of the screen's size if that is smaller.
fn middle(frame: &mut Frame<'_>, width: u16, height: u16, title: &'static str) -> Rect {
    let all = frame.area();
    let (width, height) = (width.min(all.width), height.min(all.height));
    let area = Rect::new((all.width - width) / 2, (all.height - height) / 2, width, height);
    let block = Block::bordered().title(title);
    let inner = block.inner(area);
    frame.render_widget(Clear, area);
    frame.render_widget(block, area);
    inner
}

fn draw_help(frame: &mut Frame<'_>) {
    let mut text: Vec<Line<'static>> = Vec::new();
    for (keys, what) in KEYS {
        text.push(Line::from(vec![Span::styled(format!("{keys}: "), bold()), (*what).into()]));
    }
    text.push("".into());
    text.push(
        "Time lost is ready time: a vCPU could run and had no pCPU. The words say what most of it was."
            .into(),
    );
    text.push(
        "Yellow: look at it. Red: bad. %RDY 5 and 10 per vCPU, %CSTP 3, %STEAL 10, as with ESX.".into(),
    );
    text.push("A vCPU's line has its state and, behind @, its pCPU. c lists what the columns mean.".into());
    let inner = middle(frame, 78, 22, " keys ");
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), inner);
}

fn draw_columns(frame: &mut Frame<'_>, app: &App, at: usize) {
    let inner = middle(
        frame,
        78,
        COLUMNS.len() as u16 + 6,
        " columns: space shows or hides, d the usual ones, Enter ends ",
    );
    let [list, about] = Layout::vertical([Constraint::Min(1), Constraint::Length(3)]).areas(inner);
    let room = usize::from(list.height).max(1);
    let first = (at + 1).saturating_sub(room);
    let lines: Vec<Line<'static>> = COLUMNS
        .iter()
        .enumerate()
        .skip(first)
        .take(room)
        .map(|(i, column)| {
            let shown = app.columns.iter().any(|shown| shown.head == column.head);
            let text = format!("[{}] {:<7} {}", if shown { 'x' } else { ' ' }, column.head, column.meaning);
            let style = if i == at { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            Line::styled(text, style)
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), list);
    let meaning =
        COLUMNS.get(at).map(|column| format!("{}: {}", column.head, column.meaning)).unwrap_or_default();
    frame.render_widget(Paragraph::new(meaning).style(bold()).wrap(Wrap { trim: true }), about);
}

#[cfg(test)]
mod tests;
