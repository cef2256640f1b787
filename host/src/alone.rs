// SPDX-License-Identifier: GPL-2.0-only
//! A file that one program alone writes until it has its name.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;

/// How often the file may be renamed by another program while it is opened.
const TRIES: usize = 8;

/// Open it, with what is in it. In a folder of others' it may be a link to a file of root's, be that a
/// symbolic one or a second name of that file, a pipe at which nobody reads, or a file of somebody else, who
/// would read what we write: none of them is written to. `mode` is who may read and write what is made, as
/// far as the umask lets them.
///
/// # Errors
/// `WouldBlock`: another program writes it.
pub fn open(path: &Path, mode: u32) -> io::Result<File> {
    for _ in 0..TRIES {
        let mut options = File::options();
        let careful = options.write(true).mode(mode).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let made = careful.create_new(true).open(path);
        let was_there = matches!(&made, Err(error) if error.kind() == io::ErrorKind::AlreadyExists);
        let opened = if was_there { careful.create_new(false).open(path) } else { made };
        let file = match opened {
            // It was renamed meanwhile.
            Err(error) if was_there && error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        let is = file.metadata()?;
        if !is.is_file() {
            return Err(io::Error::other(format!(
                "{} is a device or a pipe; allowed: a file",
                path.display()
            )));
        }
        if is.nlink() > 1 {
            return Err(io::Error::other(format!(
                "{} is a file that has another name as well (a hard link): remove one of them",
                path.display()
            )));
        }
        if was_there && is_foreign(path, is.uid()) {
            return Err(io::Error::other(format!(
                "{} belongs to another user (uid {}): remove it, or choose another name",
                path.display(),
                is.uid()
            )));
        }
        // Where the file system has no locks it goes on without.
        if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            break;
        }
        // Whoever had it may have given it its name meanwhile: then it is complete, and another one is begun.
        let is_still = |now: fs::Metadata| (now.dev(), now.ino()) == (is.dev(), is.ino());
        if !fs::symlink_metadata(path).is_ok_and(is_still) {
            continue;
        }
        // Left by a program that was killed, and readable to others: who has opened it would read on.
        if was_there && is.mode() & 0o777 & !mode != 0 {
            fs::remove_file(path)?;
            continue;
        }
        return Ok(file);
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Is a file's owner somebody else than we are?
fn is_foreign(path: &Path, owner: u32) -> bool {
    // SAFETY: it takes nothing, and never fails.
    let us = unsafe { libc::geteuid() };
    // To an NFS server root may be nobody, and a disk without owners has a single one: see who we are there.
    owner != us && owner_here(path).ok() != Some(owner)
}

/// Who owns what we make in that file's folder.
fn owner_here(path: &Path) -> io::Result<u32> {
    let mut name = path.as_os_str().to_os_string();
    name.push(format!(".{}", std::process::id()));
    let made = File::options().write(true).create_new(true).mode(0o600).open(&name)?;
    fs::remove_file(&name)?;
    Ok(made.metadata()?.uid())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink, PermissionsExt};

    use super::*;

    #[test]
    fn one_program_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.part");
        let first = open(&path, 0o600).unwrap();
        assert_eq!(open(&path, 0o600).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // It has its name; what has the old one is another file.
        fs::rename(&path, dir.path().join("a")).unwrap();
        let second = open(&path, 0o600).unwrap();
        assert_ne!(first.metadata().unwrap().ino(), second.metadata().unwrap().ino());
    }

    #[test]
    fn nobody_else_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.part");
        let mode = |file: &File| file.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode(&open(&path, 0o600).unwrap()), 0o600);
        // Left by one that was killed, and opened by somebody.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let opened = File::open(&path).unwrap();
        let file = open(&path, 0o600).unwrap();
        assert_eq!(mode(&file), 0o600);
        assert_ne!(file.metadata().unwrap().ino(), opened.metadata().unwrap().ino());
    }

    #[test]
    fn a_file_of_another_user_is_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.part");
        let us = fs::metadata(dir.path()).unwrap().uid();
        assert!(is_foreign(&path, us + 1) && !is_foreign(&path, us));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
        fs::write(&path, "theirs").unwrap();
        // Root alone may give a file away.
        if chown(&path, Some(us + 1), None).is_ok() {
            assert!(open(&path, 0o600).unwrap_err().to_string().contains("belongs to another user"));
            assert_eq!(fs::read(&path).unwrap(), b"theirs");
        }
    }

    #[test]
    fn what_a_link_leads_to_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, path) = (dir.path().join("victim"), dir.path().join("a.part"));
        fs::write(&victim, "important").unwrap();
        symlink(&victim, &path).unwrap();
        assert!(open(&path, 0o600).is_err());
        assert_eq!(fs::read(&victim).unwrap(), b"important");
        fs::remove_file(&path).unwrap();
        fs::hard_link(&victim, &path).unwrap();
        assert!(open(&path, 0o600).unwrap_err().to_string().contains("another name as well"));
        assert_eq!(fs::read(&victim).unwrap(), b"important");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(open(&path, 0o600).is_err());
    }
}
