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

/// Open it, with what is in it. In a folder of others' it may be a link to a file of root's, or a pipe at which nobody reads: neither is followed.
///
/// # Errors
/// `WouldBlock`: another program writes it.
pub fn open(path: &Path) -> io::Result<File> {
    for _ in 0..TRIES {
        let mut options = File::options();
        let careful = options.write(true).create(true).truncate(false);
        let file = careful.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
        let is = file.metadata()?;
        if !is.is_file() {
            return Err(io::Error::other(format!(
                "{} is a device or a pipe; allowed: a file",
                path.display()
            )));
        }
        // Where the file system has no locks it goes on without.
        if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            break;
        }
        // Whoever had it may have given it its name meanwhile: then it is complete, and another one is begun.
        let is_still = |now: fs::Metadata| (now.dev(), now.ino()) == (is.dev(), is.ino());
        if fs::symlink_metadata(path).is_ok_and(is_still) {
            return Ok(file);
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn one_program_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.part");
        let first = open(&path).unwrap();
        assert_eq!(open(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // It has its name; what has the old one is another file.
        fs::rename(&path, dir.path().join("a")).unwrap();
        let second = open(&path).unwrap();
        assert_ne!(first.metadata().unwrap().ino(), second.metadata().unwrap().ino());
    }

    #[test]
    fn what_a_link_leads_to_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, path) = (dir.path().join("victim"), dir.path().join("a.part"));
        fs::write(&victim, "important").unwrap();
        symlink(&victim, &path).unwrap();
        assert!(open(&path).is_err());
        assert_eq!(fs::read(&victim).unwrap(), b"important");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(open(&path).is_err());
    }
}
