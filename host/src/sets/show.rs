// SPDX-License-Identifier: GPL-2.0-only
//! `cohort sets`: who communicates with whom, the tree of it, the sets.

use std::fmt::Display;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use cohort_sets::{Matrix, Tree};

use super::canvas::Canvas;
use super::{auto, picture};
use crate::checks::Host;
use crate::cli::Sets;
use crate::monitor;
use crate::run::Stops;
use crate::say::{self, Failure};
use crate::stats;
use crate::vmname::VmNames;

pub fn run(args: &Sets, host: &Host, out: &mut impl Write) -> Result<(), Failure> {
    say::start_log(0);
    if let Some(path) = &args.matrix {
        let matrix = read(path).map_err(Failure::refused)?;
        return show_all(args, &[(String::new(), matrix)], out);
    }
    let failed = |e| Failure::failed(format!("cannot read the scheduler's maps: {e:#}"));
    let (vms, traffic) = monitor::find_traffic(host)?;
    let before = auto::read(&traffic).map_err(failed)?;
    Stops::listen()?.wait(args.secs);
    let after = auto::read(&traffic).map_err(failed)?;
    let all = stats::vms(&vms, host, &mut VmNames::default()).map_err(failed)?;
    let wanted: Vec<_> =
        all.iter().filter(|vm| args.vm.as_ref().is_none_or(|name| vm.name == *name)).collect();
    if wanted.is_empty() {
        let names: Vec<_> = all.iter().map(|vm| vm.name.as_str()).collect();
        return Err(Failure::refused(match (&args.vm, names.is_empty()) {
            (Some(name), false) => format!("--vm: no VM is named {name:?}; there are {}", names.join(", ")),
            _ => "no VM runs".to_string(),
        }));
    }
    let matrix = |vm: &&stats::Vm| (vm.name.clone(), auto::matrix_between(vm, &before, &after));
    show_all(args, &wanted.iter().copied().map(|vm| matrix(&vm)).collect::<Vec<_>>(), out)
}

/// Print, and draw if that is wanted, what is found in each VM's matrix.
fn show_all(args: &Sets, all: &[(String, Matrix)], out: &mut impl Write) -> Result<(), Failure> {
    if let Some(path) = &args.png {
        let draw = |(name, matrix): &(String, Matrix)| {
            Tree::of(matrix).map(|tree| picture::draw(name, matrix, &tree, &tree.sets(args.split)))
        };
        let parts: Vec<_> = all.iter().filter_map(draw).collect();
        let refused =
            |e: &dyn Display| Failure::refused(format!("--png: cannot write {}: {e}", path.display()));
        let file = Canvas::stacked(&parts).to_png().map_err(|e| refused(&e))?;
        fs::write(path, file).map_err(|e| refused(&e))?;
    }
    for (name, matrix) in all {
        let told = if name.is_empty() { Ok(()) } else { writeln!(out, "# {name}") };
        told.and_then(|()| show(matrix, args.split, out)).or_else(crate::unless_closed)?;
    }
    Ok(())
}

fn show(matrix: &Matrix, split: f64, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{matrix}\n")?;
    let Some(tree) = Tree::of(matrix) else { return Ok(()) };
    writeln!(out, "{tree}")?;
    let list = |set: &Vec<u32>| set.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let sets: Vec<_> = tree.sets(split).iter().map(list).collect();
    writeln!(out, "sets: {}\n", sets.join(" "))
}

fn read(path: &Path) -> Result<Matrix, String> {
    let mut text = String::new();
    let result = match path.to_str() {
        Some("-") => io::stdin().read_to_string(&mut text).map(drop),
        _ => fs::read_to_string(path).map(|read| text = read),
    };
    result.map_err(|e| format!("--matrix: cannot read {}: {e}", path.display()))?;
    Matrix::parse(&text).map_err(|e| format!("--matrix: {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_example_is_shown() {
        let matrix = Matrix::parse("- 6 1 9 6\n6 - 1 6 7\n1 1 - 1 1\n9 6 1 - 6\n6 7 1 6 -\n").unwrap();
        let mut out = Vec::new();
        show(&matrix, 1.5, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("#0 1 2 3 4\n - 6 1 9 6  # 0\n"), "{text}");
        assert!(text.contains("\nd = 1\n├─ d = 6\n"), "{text}");
        assert!(text.ends_with("sets: 0,1,3,4 2\n\n"), "{text}");
    }

    #[test]
    fn a_matrix_that_is_none_is_refused_by_name() {
        let error = read(Path::new("/nowhere")).unwrap_err();
        assert!(error.starts_with("--matrix: cannot read /nowhere: "), "{error}");
    }
}
