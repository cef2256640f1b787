// SPDX-License-Identifier: GPL-2.0-only
//! The tables of policies.h: which policies there are. Both builds of the scheduler use this, the kernel object's and the simulator's.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// A table's macro, what its headers' names begin with, and how many columns a line has.
const TABLES: [(&str, &str, usize); 7] = [
    ("ORDERS", "order", 2),
    ("GANGS", "gang", 2),
    ("SPINS", "spin", 2),
    ("GUARDS", "guard", 2),
    ("GATES", "gate", 2),
    ("PRESETS", "", 8),
    ("UNCAUGHT", "", 3),
];

/// Write `policy_headers.h` into `out_dir`, which includes the header of every policy that has one, and return the Rust source of the tables.
pub fn generate(bpf_dir: &Path, out_dir: &Path) -> Result<String, Box<dyn Error>> {
    let path = bpf_dir.join("policies.h");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut headers =
        String::from("/* Written when the scheduler is built, from the tables of policies.h. */\n");
    let mut rust = String::new();
    let mut of_vms = Vec::new();
    for (table, prefix, columns) in TABLES {
        let rows = rows(&text, table, columns)?;
        writeln!(rust, "/// {table} of policies.h; a name's place is its number.")?;
        writeln!(rust, "pub const {table}: &[[&str; {columns}]] = &[")?;
        for row in &rows {
            writeln!(rust, "    {row:?},")?;
            let header = format!("{prefix}_{}.h", row[0].replace('-', "_"));
            // One that does nothing needs none.
            if !prefix.is_empty() && bpf_dir.join(&header).exists() {
                writeln!(headers, "#include \"{header}\"")?;
                if fs::read_to_string(bpf_dir.join(&header))?.contains(".of_vms = true") {
                    of_vms.push(format!("{prefix} {}", row[0]));
                }
            } else if !prefix.is_empty() && row[0] != "off" {
                return Err(
                    format!("policies.h: {table} has {}, but there is no bpf/{header}", row[0]).into()
                );
            }
        }
        writeln!(rust, "];")?;
    }
    writeln!(rust, "/// Those that know VMs (policy.h, of_vms): a gang of these needs an order of these.")?;
    writeln!(rust, "pub const OF_VMS: &[&str] = &{of_vms:?};")?;
    writeln!(rust, "/// NEEDS of policies.h: what, what it needs, why.")?;
    writeln!(rust, "pub const NEEDS: &[[&str; 3]] = &[")?;
    for row in needs(&text)? {
        writeln!(rust, "    {:?},", row.map(|term| with_names(&term, &of_vms)))?;
    }
    writeln!(rust, "];")?;
    fs::write(out_dir.join("policy_headers.h"), headers)?;
    Ok(rust)
}

/// The names of a table's lines, as they are written on the command line.
#[allow(dead_code)] // The simulator's build has no need of it.
pub fn names(bpf_dir: &Path, table: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let text = fs::read_to_string(bpf_dir.join("policies.h"))?;
    let (_, _, columns) =
        TABLES.iter().find(|(name, ..)| *name == table).ok_or("policies.h has no such table")?;
    Ok(rows(&text, table, *columns)?.into_iter().map(|row| row[0].clone()).collect())
}

/// `--gang of-vms` as `--gang a|b`, with those of that axis that know VMs (policy.h, of_vms).
fn with_names(term: &str, of_vms: &[String]) -> String {
    let Some(axis) = term.strip_suffix(" of-vms") else { return term.to_string() };
    let of_axis = format!("{} ", axis.trim_start_matches('-'));
    let names: Vec<_> = of_vms.iter().filter_map(|policy| policy.strip_prefix(&of_axis)).collect();
    format!("{axis} {}", names.join("|"))
}

/// The lines `X("a", "b", "c")` of NEEDS.
fn needs(text: &str) -> Result<Vec<[String; 3]>, Box<dyn Error>> {
    let mut found = Vec::new();
    for entry in body(text, "NEEDS")?.split("X(").skip(1) {
        let columns: Vec<_> = entry.split('"').skip(1).step_by(2).map(str::to_string).collect();
        let row =
            columns.try_into().map_err(|_| format!("policies.h: NEEDS: cannot read X({}", entry.trim()))?;
        found.push(row);
    }
    Ok(found)
}

/// What a table's macro says, as one line.
fn body(text: &str, table: &str) -> Result<String, Box<dyn Error>> {
    let start = format!("#define {table}(X)");
    let body = text.split_once(&start).ok_or_else(|| format!("policies.h: {table} not found"))?.1;
    // A macro ends with the first line that has no backslash.
    let mut lines = String::new();
    for line in body.lines() {
        let part = line.trim_end();
        lines.push_str(part.trim_end_matches('\\'));
        lines.push(' ');
        if !part.ends_with('\\') {
            break;
        }
    }
    Ok(lines)
}

/// The lines `X(a, b, "c")` of a table, names as they are written on the command line.
fn rows(text: &str, table: &str, columns: usize) -> Result<Vec<Vec<String>>, Box<dyn Error>> {
    let mut found = Vec::new();
    for entry in body(text, table)?.split("X(").skip(1) {
        // The last column is a string, which may have commas.
        let fail = || format!("policies.h: {table}: cannot read X({}", entry.trim());
        let (left, quoted) = entry.split_once('"').ok_or_else(fail)?;
        let what = quoted.split_once('"').ok_or_else(fail)?.0;
        let mut row: Vec<String> = left
            .trim()
            .trim_end_matches(',')
            .split(',')
            .map(|column| column.trim().replace('_', "-").replace(" + ", ","))
            .collect();
        row.push(what.to_string());
        if row.len() != columns {
            return Err(fail().into());
        }
        found.push(row);
    }
    if found.is_empty() {
        return Err(format!("policies.h: {table} is empty").into());
    }
    Ok(found)
}
