// SPDX-License-Identifier: GPL-2.0-only
//! How a figure is printed: one JSON object on one line, the median of its samples with their range.

use std::io::Write as _;

/// What was measured several times over.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn add(&mut self, value: f64) {
        self.0.push(value);
        self.0.sort_by(f64::total_cmp);
    }

    pub fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(f64::NAN)
    }

    pub fn report(&self, name: &str, unit: &str) {
        let (Some(least), Some(most)) = (self.0.first(), self.0.last()) else { return };
        print(name, self.median(), unit, Some((*least, *most)));
    }
}

/// A figure that was not measured more than once, or follows from others.
pub fn report(name: &str, value: f64, unit: &str) {
    print(name, value, unit, None);
}

fn print(name: &str, value: f64, unit: &str, range: Option<(f64, f64)>) {
    let range = range.map_or(String::new(), |(least, most)| {
        format!(", \"min\": {}, \"max\": {}", number(least), number(most))
    });
    let line =
        format!("{{\"name\": \"{name}\", \"value\": {}, \"unit\": \"{unit}\"{range}}}\n", number(value));
    // Whoever read this may have gone (`| head`).
    let _ = std::io::stdout().write_all(line.as_bytes());
}

/// No more digits than mean something.
fn number(value: f64) -> String {
    match value {
        v if !v.is_finite() => "null".into(),
        v if v.abs() >= 100.0 => format!("{v:.0}"),
        v => format!("{v:.3}"),
    }
}
