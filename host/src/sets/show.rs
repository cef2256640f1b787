// SPDX-License-Identifier: GPL-2.0-only
//! `cohort sets`: who communicates with whom, the tree of it, the sets.

use std::fmt::Display;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
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
    /// What is written until then; `path` itself where that is a pipe or a device, which stays what it is.
    part: PathBuf,
    path: PathBuf,
    file: fs::File,
}

impl Png {
    fn begin(path: &Path) -> Result<Self, Failure> {
        let refused =
            |e: &dyn Display| Failure::refused(format!("--png: cannot write {}: {e}", path.display()));
        let mut part = path.file_name().ok_or_else(|| refused(&"it is no file's name"))?.to_os_string();
        part.push(".part");
        // Nobody in whose folder it is leads it elsewhere by a link.
        let told = |e: &io::Error| match e.kind() {
            io::ErrorKind::WouldBlock => "another `cohort sets` writes it".to_string(),
            _ => e.to_string(),
        };
        let found = fs::symlink_metadata(path).ok().filter(|found| !found.is_file());
        // Whoever reads a pipe would go when it were closed: it stays open until the end.
        let (part, file) = match found {
            Some(found) => (path.to_path_buf(), open_as_it_is(path, &found)),
            None => {
                let part = path.with_file_name(part);
                let file = alone::open(&part, 0o666);
                (part, file)
            }
        };
        Ok(Png { part, path: path.to_path_buf(), file: file.map_err(|e| refused(&told(&e)))? })
    }

    fn end(mut self, drawn: io::Result<Vec<u8>>) -> Result<(), Failure> {
        let is_whole_by_its_name = self.part != self.path;
        let done = drawn.and_then(|bytes| {
            if is_whole_by_its_name {
                self.file.set_len(0)?;
            }
            self.file.write_all(&bytes)
        });
        let named = || if is_whole_by_its_name { fs::rename(&self.part, &self.path) } else { Ok(()) };
        let done = done.and_then(|()| named());
        if done.is_ok() {
            // Nothing of ours is left to be removed; another program may have begun one of this name.
            self.part.clone_from(&self.path);
        }
        done.map_err(|e| Failure::failed(format!("--png: cannot write {}: {e}", self.path.display())))
    }
}

/// Open what is no file, to write to it. A link to it, as /dev/stdout is one, must be root's or our own: others'
/// may lead root anywhere. Nor is a link followed to a file or a disk, whose begin would be lost.
fn open_as_it_is(path: &Path, found: &fs::Metadata) -> io::Result<fs::File> {
    // SAFETY: it takes nothing, and never fails.
    let us = unsafe { libc::geteuid() };
    let flags = match found.is_symlink() {
        true if ![0, us].contains(&found.uid()) => {
            return Err(io::Error::other(format!("it is a link of another user's (uid {})", found.uid())));
        }
        true => libc::O_NOCTTY,
        // It has become a link meanwhile.
        false => libc::O_NOCTTY | libc::O_NOFOLLOW,
    };
    let file = fs::File::options().write(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() || kind.is_char_device() {
        return Ok(file);
    }
    Err(io::Error::other("it is a link to a file, or a disk; allowed: a file, a pipe or a terminal"))
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
    use std::os::unix::fs::{lchown, symlink};
    use std::thread;

    use super::*;
    use crate::checks::tests::FakeHost;
    use crate::vmname::tests::fifo;

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
    fn a_link_leads_to_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, link) = (dir.path().join("victim"), dir.path().join("sets.png"));
        fs::write(&victim, "important").unwrap();
        symlink(&victim, &link).unwrap();
        let failure = Png::begin(&link).err().unwrap();
        assert!(failure.status == 2 && failure.line.contains("it is a link to a file"), "{failure:?}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "important");
        fs::remove_file(&link).unwrap();
        symlink("/dev/null", &link).unwrap();
        Png::begin(&link).unwrap().end(Ok(b"new".into())).unwrap();
        let there = fs::symlink_metadata(&link).unwrap();
        assert!(there.is_symlink(), "it stays what it is");
        // Root alone may give it away.
        if lchown(&link, Some(there.uid() + 1), None).is_ok() {
            let failure = Png::begin(&link).err().unwrap();
            assert!(failure.line.contains("a link of another user"), "{failure:?}");
        }
    }

    #[test]
    fn what_was_opened_is_written_to_whatever_has_its_name_by_then() {
        let host = FakeHost::new().file("/victim", "important");
        let (victim, pipe) = (host.host().path("/victim"), fifo(&host, "/sets.png"));
        let from = pipe.clone();
        let reads = thread::spawn(move || fs::read(from));
        let png = Png::begin(&pipe).unwrap();
        fs::remove_file(&pipe).unwrap();
        symlink(&victim, &pipe).unwrap();
        png.end(Ok(b"new".into())).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "important");
        assert_eq!(reads.join().unwrap().unwrap(), b"new");
    }

    #[test]
    fn a_matrix_that_is_none_is_refused_by_name() {
        let error = read(Path::new("/nowhere")).unwrap_err();
        assert!(error.starts_with("--matrix: cannot read /nowhere: "), "{error}");
    }
}
