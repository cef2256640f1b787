// SPDX-License-Identifier: GPL-2.0-only
//! What the screen shows and what the keys do; knows no terminal.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::columns::{by_head, Column, COLUMNS, USUAL};
use super::rates::{between, Interval, Row};
use super::sample::Sample;

const INTERVAL_MIN: Duration = Duration::from_millis(200);
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// What lies over the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    Nothing,
    Help,
    /// The choice of columns, and the one that is pointed at.
    Columns(usize),
}

/// By what the VMs are sorted.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    Lost,
    Name,
    By(&'static Column),
}

pub struct App {
    pub sample: Sample,
    /// None until there are two samples.
    pub interval: Option<Interval>,
    pub every: Duration,
    pub columns: Vec<&'static Column>,
    pub order: Order,
    /// The least first.
    pub reversed: bool,
    pub open: HashSet<u64>,
    pub selected: Option<u64>,
    /// Where in the list the selected one was last, for when it goes.
    pub selected_at: usize,
    /// The first row on the screen; the drawing moves it.
    pub top: usize,
    /// Rows that fit, as drawn last.
    pub page: usize,
    pub words: bool,
    pub paused: bool,
    pub over: Over,
    pub quit: bool,
}

impl App {
    pub fn new(columns: Option<Vec<&'static Column>>, every: Duration) -> Self {
        let usual = || USUAL.iter().filter_map(|head| by_head(head)).collect();
        App {
            sample: Sample::default(),
            interval: None,
            every,
            columns: columns.unwrap_or_else(usual),
            order: Order::Lost,
            reversed: false,
            open: HashSet::new(),
            selected: None,
            selected_at: 0,
            top: 0,
            page: 1,
            words: true,
            paused: false,
            over: Over::Nothing,
            quit: false,
        }
    }

    /// A new sample; the first one is only compared with.
    pub fn take(&mut self, sample: Sample) {
        if self.sample != Sample::default() {
            self.interval = Some(between(&self.sample, &sample));
        }
        self.sample = sample;
        let alive: HashSet<u64> = self.sample.vms.iter().map(|vm| vm.id).collect();
        self.open.retain(|id| alive.contains(id));
        let rows: Vec<u64> = self.rows().iter().map(|row| row.id).collect();
        let at = self.selected.and_then(|id| rows.iter().position(|row| *row == id));
        self.select(at.unwrap_or(self.selected_at), &rows);
    }

    /// The rows of the list in their order: VMs, below each its vCPUs if it is open.
    pub fn rows(&self) -> Vec<&Row> {
        let Some(interval) = &self.interval else { return Vec::new() };
        let mut vms: Vec<&Row> = interval.vms.iter().collect();
        vms.sort_by(|a, b| {
            let order = match self.order {
                Order::Lost => b.lost_ns().cmp(&a.lost_ns()),
                Order::Name => a.name.cmp(&b.name),
                Order::By(column) => {
                    let missing = &self.sample.missing;
                    let value = |row: &Row| column.value(row, missing).unwrap_or(f64::NEG_INFINITY);
                    value(b).total_cmp(&value(a))
                }
            };
            let order = if self.reversed { order.reverse() } else { order };
            order.then_with(|| a.name.cmp(&b.name)).then(a.id.cmp(&b.id))
        });
        let mut rows = Vec::new();
        for vm in vms {
            rows.push(vm);
            if self.open.contains(&vm.id) {
                rows.extend(&vm.children);
            }
        }
        rows
    }

    /// What the list is sorted by, in words.
    pub fn order_name(&self) -> &'static str {
        match self.order {
            Order::Lost => "time lost",
            Order::Name => "name",
            Order::By(column) => column.head,
        }
    }

    fn select(&mut self, at: usize, rows: &[u64]) {
        self.selected_at = at.min(rows.len().saturating_sub(1));
        self.selected = rows.get(self.selected_at).copied();
    }

    fn go(&mut self, by: isize) {
        let rows: Vec<u64> = self.rows().iter().map(|row| row.id).collect();
        self.select(self.selected_at.saturating_add_signed(by), &rows);
    }

    pub fn key(&mut self, key: KeyEvent) {
        if key.modifiers.contains(KeyModifiers::CONTROL) && matches!(key.code, KeyCode::Char('c' | 'd')) {
            self.quit = true;
            return;
        }
        match self.over {
            Over::Columns(at) => self.key_in_columns(key.code, at),
            Over::Help => self.over = Over::Nothing,
            Over::Nothing => self.key_in_list(key.code),
        }
    }

    fn key_in_list(&mut self, code: KeyCode) {
        let page = isize::try_from(self.page).unwrap_or(1).max(1);
        match code {
            KeyCode::Char('q') | KeyCode::Esc | KeyCode::F(10) => self.quit = true,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.over = Over::Help,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-page),
            KeyCode::PageDown => self.go(page),
            KeyCode::Home | KeyCode::Char('g') => self.go(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.go(isize::MAX),
            KeyCode::Enter => self.open_or_close(None),
            KeyCode::Right | KeyCode::Char('l') => self.open_or_close(Some(true)),
            KeyCode::Left => self.open_or_close(Some(false)),
            KeyCode::Char('e') => self.open_or_close_all(),
            KeyCode::Char('s' | '>') => self.next_order(1),
            KeyCode::Char('S' | '<') => self.next_order(-1),
            KeyCode::Char('L') => self.order = Order::Lost,
            KeyCode::Char('N') => self.order = Order::Name,
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('c') | KeyCode::F(2) => self.over = Over::Columns(0),
            KeyCode::Char('w') => self.words = !self.words,
            KeyCode::Char('+') => self.every = (self.every * 2).min(INTERVAL_MAX.max(self.every)),
            KeyCode::Char('-') => self.every = (self.every / 2).max(INTERVAL_MIN.min(self.every)),
            _ => {}
        }
        if matches!(code, KeyCode::Char('s' | 'S' | '<' | '>' | 'L' | 'N' | 'r')) {
            // The list turns, the eye stays at its top.
            self.go(isize::MIN);
        }
    }

    fn key_in_columns(&mut self, code: KeyCode, at: usize) {
        let last = COLUMNS.len() - 1;
        match code {
            KeyCode::Up | KeyCode::Char('k') => self.over = Over::Columns(at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.over = Over::Columns((at + 1).min(last)),
            KeyCode::Home => self.over = Over::Columns(0),
            KeyCode::End => self.over = Over::Columns(last),
            KeyCode::Char(' ') => {
                let column = &COLUMNS[at.min(last)];
                let before = self.columns.len();
                self.columns.retain(|shown| shown.head != column.head);
                // To the front: further back it might not fit, and nothing would seem to happen.
                if self.columns.len() == before {
                    self.columns.insert(0, column);
                }
            }
            KeyCode::Char('d') => self.columns = App::new(None, self.every).columns,
            _ => self.over = Over::Nothing,
        }
    }

    /// The selected VM, or the one of the selected vCPU.
    fn open_or_close(&mut self, wanted: Option<bool>) {
        let rows = self.rows();
        let above = rows.iter().take(self.selected_at + 1).rev().find(|row| row.vcpu.is_none());
        let Some(id) = above.map(|row| row.id) else { return };
        if wanted.unwrap_or(!self.open.contains(&id)) {
            self.open.insert(id);
        } else {
            self.open.remove(&id);
        }
        let rows: Vec<u64> = self.rows().iter().map(|row| row.id).collect();
        let selected = self.selected.and_then(|selected| rows.iter().position(|row| *row == selected));
        let at = selected.or_else(|| rows.iter().position(|row| *row == id));
        self.select(at.unwrap_or(0), &rows);
    }

    fn open_or_close_all(&mut self) {
        let all: HashSet<u64> = self.sample.vms.iter().map(|vm| vm.id).collect();
        self.open = if self.open.len() == all.len() { HashSet::new() } else { all };
        let rows: Vec<u64> = self.rows().iter().map(|row| row.id).collect();
        let at = self.selected.and_then(|id| rows.iter().position(|row| *row == id));
        self.select(at.unwrap_or(self.selected_at), &rows);
    }

    /// Time lost, then the columns from left to right.
    fn next_order(&mut self, by: isize) {
        let now = match self.order {
            Order::By(column) => {
                self.columns.iter().position(|shown| shown.head == column.head).map_or(0, |i| i + 1)
            }
            Order::Lost | Order::Name => 0,
        };
        let count = self.columns.len() + 1;
        let next = (now + count).saturating_add_signed(by) % count;
        self.order = next.checked_sub(1).map_or(Order::Lost, |i| Order::By(self.columns[i]));
    }
}

impl PartialEq for Order {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Order::Lost, Order::Lost) | (Order::Name, Order::Name) => true,
            (Order::By(a), Order::By(b)) => a.head.cmp(b.head) == Ordering::Equal,
            _ => false,
        }
    }
}
