// SPDX-License-Identifier: GPL-2.0-only
//! Reads the enums of the scheduler's headers. Both builds use this, the kernel object's and the simulator's.
//!
//! This is no C parser. It reads the plain style of those files, and fails the build on anything else.

use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// One entry of an enum: its name, the comment after it, and its value when written.
pub struct Entry {
    pub name: String,
    pub comment: String,
    pub value: Option<u64>,
}

/// The entries of `enum TAG { ... }`. Errors do not name the header, of which only the caller knows the path.
pub fn enum_entries(source: &str, tag: &str) -> Result<Vec<Entry>> {
    let missing = || format!("enum {tag} not found");
    let start = source.find(&format!("enum {tag} {{")).ok_or_else(missing)?;
    let body = &source[start..];
    let body = &body[body.find('{').ok_or_else(missing)? + 1..body.find("};").ok_or_else(missing)?];

    let mut entries: Vec<Entry> = Vec::new();
    let mut rest = body.trim_start();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("/*") {
            let end = after.find("*/").ok_or("comment without end")?;
            // Only a comment on the same line as an entry describes that entry.
            if let Some(last) = entries.last_mut() {
                let before = &body[..body.len() - rest.len()];
                let same_line = !before[before.rfind(',').unwrap_or(0)..].contains('\n');
                if same_line {
                    last.comment = squeeze(&after[..end]);
                }
            }
            rest = after[end + 2..].trim_start();
            continue;
        }
        let end = rest.find(',').unwrap_or(rest.len());
        let mut parts = rest[..end].splitn(2, '=').map(str::trim);
        let name = parts.next().unwrap_or_default().to_string();
        let value = parts.next().map(str::parse).transpose().map_err(|e| format!("{name}: {e}"))?;
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(format!("enum {tag}: cannot read {name:?}").into());
        }
        entries.push(Entry { name, comment: String::new(), value });
        rest = rest.get(end + 1..).unwrap_or_default().trim_start();
    }
    Ok(entries)
}

fn squeeze(comment: &str) -> String {
    comment.split_whitespace().filter(|word| *word != "*").collect::<Vec<_>>().join(" ")
}
