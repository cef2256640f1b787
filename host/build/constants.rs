// SPDX-License-Identifier: GPL-2.0-only
//! The entries of a header's enums as Rust constants.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::enums::enum_entries;

/// Of the enums with these tags. Two headers have one name, in two folders: what is wrong is said of a path.
pub fn of(header: &Path, tags: &[&str]) -> Result<String, Box<dyn Error>> {
    let wrong = |why: &dyn std::fmt::Display| format!("{}: {why}", header.display());
    let text = fs::read_to_string(header).map_err(|e| wrong(&e))?;
    let mut out = String::new();
    for tag in tags {
        for entry in enum_entries(&text, tag).map_err(|e| wrong(&e))? {
            let value = entry.value.ok_or_else(|| wrong(&format!("{} has no value", entry.name)))?;
            writeln!(out, "pub const {}: u32 = {value};", entry.name)?;
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_of_the_headers_path() {
        let dir = tempfile::tempdir().unwrap();
        let header = dir.path().join("intf.h");
        fs::write(&header, "enum limits {\n\tMAX = 7, /* of all */\n};\nenum kinds {\n\tA,\n};\n").unwrap();
        assert_eq!(of(&header, &["limits"]).unwrap(), "pub const MAX: u32 = 7;\n");
        for (path, tag, why) in [
            (&header, "kinds", "A has no value"),
            (&header, "states", "enum states not found"),
            (&dir.path().join("none.h"), "limits", "No such file"),
        ] {
            let line = of(path, &[tag]).unwrap_err().to_string();
            assert!(line.starts_with(&format!("{}: {why}", path.display())), "{line}");
        }
    }
}
