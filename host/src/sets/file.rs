// SPDX-License-Identifier: GPL-2.0-only
//! `--sets FILE`: read at the start, and again whenever it changes. A mistake in it at the start is refused; later it is told, and what was read before holds.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cohort_sets::{Given, Sets};
use tracing::warn;

use crate::say::Failure;
use crate::stats::Vm;

/// What tells one version of a file from another: which file it is, when that was changed last, and how long it is. When it was written may be
/// any time that somebody has set, the same for one file and for the next that takes its place.
type Stamp = Option<(u64, u64, i64, i64, u64)>;

pub struct SetsFile {
    path: PathBuf,
    stamp: Stamp,
    given: Given,
}

impl SetsFile {
    pub fn open(path: PathBuf) -> Result<Self, Failure> {
        let stamp = stamp_of(&path);
        let given = read(&path).map_err(Failure::refused)?;
        Ok(Self { path, stamp, given })
    }

    pub fn path(&self) -> String {
        self.path.display().to_string()
    }

    /// Read it again if it has changed. Return true if other sets may hold now.
    pub fn has_changed(&mut self) -> bool {
        let stamp = stamp_of(&self.path);
        if stamp == self.stamp {
            return false;
        }
        self.stamp = stamp;
        match read(&self.path) {
            Ok(given) => {
                self.given = given;
                true
            }
            Err(line) => {
                warn!("{line}; the sets stay as they are");
                false
            }
        }
    }

    pub fn sets_of(&self, vm: &Vm) -> Sets {
        self.given.of(&vm.name, vm.ctx.vcpu_end as usize)
    }
}

fn stamp_of(path: &Path) -> Stamp {
    let meta = fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec(), meta.len()))
}

fn read(path: &Path) -> Result<Given, String> {
    let text =
        fs::read_to_string(path).map_err(|e| format!("--sets: cannot read {}: {e}", path.display()))?;
    Given::parse(&text).map_err(|e| format!("--sets: {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(name: &str, vcpus: u32) -> Vm {
        let ctx = crate::bpf::types::vm_ctx { vcpu_end: vcpus, ..Default::default() };
        Vm { slot: 1, name: name.into(), ctx }
    }

    #[test]
    fn a_change_is_seen_and_a_mistake_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sets");
        fs::write(&path, "web: 0,1\n").unwrap();
        let mut file = SetsFile::open(path.clone()).unwrap();
        assert_eq!(file.sets_of(&vm("web", 4)), [vec![0, 1]]);
        assert!(!file.has_changed());
        fs::write(&path, "web: 0-2\n# longer\n").unwrap();
        assert!(file.has_changed());
        assert_eq!(file.sets_of(&vm("web", 4)), [vec![0, 1, 2]]);
        fs::write(&path, "web\n").unwrap();
        assert!(!file.has_changed());
        fs::remove_file(&path).unwrap();
        assert!(!file.has_changed());
        assert_eq!(file.sets_of(&vm("web", 4)), [vec![0, 1, 2]]);
    }

    #[test]
    fn another_file_in_its_place_is_a_change_whatever_its_time_and_length() {
        let dir = tempfile::tempdir().unwrap();
        let (path, next) = (dir.path().join("sets"), dir.path().join("next"));
        let write = |path: &Path, text: &str| {
            fs::write(path, text).unwrap();
            // As in a store of packages.
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        };
        write(&path, "web: 0,1\n");
        write(&next, "web: 2,3\n");
        let mut file = SetsFile::open(path.clone()).unwrap();
        fs::rename(&next, &path).unwrap();
        assert!(file.has_changed());
        assert_eq!(file.sets_of(&vm("web", 4)), [vec![2, 3]]);
        assert!(!file.has_changed());
    }

    #[test]
    fn a_mistake_at_the_start_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sets");
        let refusal = |path: &Path| SetsFile::open(path.to_path_buf()).err().unwrap();
        assert!(refusal(&path).line.starts_with("--sets: cannot read"));
        fs::write(&path, "\nweb: x\n").unwrap();
        let failure = refusal(&path);
        assert_eq!(failure.status, 2);
        assert!(failure.line.contains("line 2: vCPUs \"x\"; allowed: "), "{}", failure.line);
    }
}
