// SPDX-License-Identifier: GPL-2.0-only
//! `cohort sets`: who communicates with whom, the tree of it, the sets.

use std::fmt::Display;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cohort_sets::{Matrix, Tree};

use super::{auto, canvas, picture};
use crate::alone;
use crate::checks::Host;
use crate::cli::Sets;
use crate::monitor;
use crate::run::Stops;
use crate::say::{self, Failure};
use crate::stats;
use crate::vmname::VmNames;

/// A busy host may take its time to read a VMM's command line, and a VM that is asked for by name has none until then.
const NAMES_WITHIN: Duration = Duration::from_secs(2);

pub fn run(args: &Sets, host: &Host, out: &mut impl Write) -> Result<(), Failure> {
    say::start_log(0);
    if let Some(path) = &args.matrix {
        let matrix = read(path).map_err(Failure::refused)?;
        let png = args.png.as_deref().map(Png::begin).transpose()?;
        return show_all(args, &[(String::new(), matrix)], png, out);
    }
    let failed = |e| Failure::failed(format!("cannot read the scheduler's maps: {e:#}"));
    let (vms, traffic) = monitor::find_traffic(host)?;
    let mut names = VmNames::default();
    let all = |names: &mut VmNames| stats::vms(&vms, host, names).map_err(failed);
    all(&mut names)?;
    names.wait(NAMES_WITHIN);
    // What is wrong is told before the wait.
    wanted(args, &all(&mut names)?)?;
    let png = args.png.as_deref().map(Png::begin).transpose()?;
    let before = auto::read(&traffic).map_err(failed)?;
    let stops = Stops::listen_twice()?;
    stops.wait(args.secs);
    let after = auto::read(&traffic).map_err(failed)?;
    let all = all(&mut names)?;
    let matrix = |vm: &stats::Vm| (vm.name.clone(), auto::matrix_between(vm, &before, &after));
    show_all(args, &wanted(args, &all)?.into_iter().map(matrix).collect::<Vec<_>>(), png, out)
}

/// The VMs to look at.
fn wanted<'a>(args: &Sets, all: &'a [stats::Vm]) -> Result<Vec<&'a stats::Vm>, Failure> {
    let found: Vec<_> =
        all.iter().filter(|vm| args.vm.as_ref().is_none_or(|name| vm.name == *name)).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let names: Vec<_> = all.iter().map(|vm| vm.name.as_str()).collect();
    Err(Failure::refused(match (&args.vm, names.is_empty()) {
        (Some(name), false) => format!("--vm: no VM is named {name:?}; there are {}", names.join(", ")),
        _ => "no VM runs".to_string(),
    }))
}

/// Print, and draw if that is wanted, what is found in each VM's matrix.
fn show_all(
    args: &Sets,
    all: &[(String, Matrix)],
    png: Option<Png>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    for (name, matrix) in all {
        let told = if name.is_empty() { Ok(()) } else { writeln!(out, "# {name}") };
        told.and_then(|()| show(matrix, args.split, out)).or_else(crate::unless_closed)?;
    }
    let Some(png) = png else { return Ok(()) };
    let mut drawn = Vec::new();
    for (name, matrix) in all {
        if let Some(tree) = Tree::of(matrix) {
            let sets = tree.sets(args.split);
            drawn.push((name, matrix, tree, sets));
        }
    }
    let sizes: Vec<_> = drawn.iter().map(|(name, _, tree, sets)| picture::size(name, tree, sets)).collect();
    let draw = |at: usize| {
        let (name, matrix, tree, sets) = &drawn[at];
        picture::draw(name, matrix, tree, sets)
    };
    png.end(canvas::stacked_png(&sizes, draw))
}

/// The file of --png, which has its name when it is whole. Known to be writable before anything is measured.
struct Png {
    part: PathBuf,
    path: PathBuf,
    /// Open already; None: `path` is a link or a device, and what it leads to is written to.
    file: Option<fs::File>,
}

impl Png {
    fn begin(path: &Path) -> Result<Self, Failure> {
        let refused =
            |e: &dyn Display| Failure::refused(format!("--png: cannot write {}: {e}", path.display()));
        // A link or a device stays what it is.
        let direct = fs::symlink_metadata(path).is_ok_and(|found| !found.is_file());
        let mut part = path.file_name().ok_or_else(|| refused(&"it is no file's name"))?.to_os_string();
        part.push(".part");
        let part = if direct { path.to_path_buf() } else { path.with_file_name(part) };
        // Whoever reads a pipe would go when this were closed again. Nobody in whose folder it is leads it elsewhere by a link.
        let told = |e: &io::Error| match e.kind() {
            io::ErrorKind::WouldBlock => "another `cohort sets` writes it".to_string(),
            _ => e.to_string(),
        };
        let file =
            if direct { None } else { Some(alone::open(&part, 0o666).map_err(|e| refused(&told(&e)))?) };
        Ok(Png { part, path: path.to_path_buf(), file })
    }

    fn end(mut self, drawn: io::Result<Vec<u8>>) -> Result<(), Failure> {
        let done = drawn.and_then(|bytes| match &mut self.file {
            Some(file) => file.set_len(0).and_then(|()| file.write_all(&bytes)),
            None => fs::write(&self.path, bytes),
        });
        let named = || if self.part == self.path { Ok(()) } else { fs::rename(&self.part, &self.path) };
        let done = done.and_then(|()| named());
        if done.is_ok() {
            // Nothing of ours is left to be removed; another program may have begun one of this name.
            self.part.clone_from(&self.path);
        }
        done.map_err(|e| Failure::failed(format!("--png: cannot write {}: {e}", self.path.display())))
    }
}

impl Drop for Png {
    fn drop(&mut self) {
        // It has not got its name.
        if self.part != self.path {
            let _ = fs::remove_file(&self.part);
        }
    }
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
    fn a_picture_is_whole_or_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sets.png");
        fs::write(&path, "old").unwrap();
        drop(Png::begin(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        let failure = Png::begin(&path).unwrap().end(Err(io::Error::other("no room"))).unwrap_err();
        assert!(failure.status == 1 && failure.line.contains("no room"), "{failure:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        Png::begin(&path).unwrap().end(Ok(b"new".into())).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let first = Png::begin(&path).unwrap();
        let failure = Png::begin(&path).err().unwrap();
        assert!(
            failure.status == 2 && failure.line.contains("another `cohort sets` writes it"),
            "{failure:?}"
        );
        first.end(Ok(b"newer".into())).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "newer");
        let failure = Png::begin(&dir.path().join("no/x.png")).err().unwrap();
        assert!(failure.status == 2 && failure.line.starts_with("--png: cannot write"), "{failure:?}");
    }

    #[test]
    fn a_matrix_that_is_none_is_refused_by_name() {
        let error = read(Path::new("/nowhere")).unwrap_err();
        assert!(error.starts_with("--matrix: cannot read /nowhere: "), "{error}");
    }
}
