// SPDX-License-Identifier: GPL-2.0-only
//! `cohort top --batch --json --answer PATH`: a sample for whoever connects to a Unix socket, taken then and at no other time.
//!
//! Who measures a program so gets the counters right before it and right after it, and nothing is read while it runs.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{sync_channel, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::batch;
use super::columns::Column;
use super::rates::between;
use super::source::Source;
use crate::run::Stops;
use crate::say::Failure;

/// Who asks takes the answer within this time, or goes without.
const PATIENCE: Duration = Duration::from_secs(2);
/// Connections that may wait; further ones wait in the kernel.
const WAITING_MAX: usize = 16;
/// What fits into any of the kernel's buffers.
const WRITE_MAX: usize = 8 << 10;
const NOTHING_TO_DO: Duration = Duration::from_secs(3600);

/// The socket, there for as long as this lives.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        // Somebody else may have removed it already.
        let _ = fs::remove_file(&self.0);
    }
}

pub fn serve(
    path: &Path,
    columns: &[&Column],
    source: &mut Source<'_>,
    stops: &Stops,
) -> Result<(), Failure> {
    let (_socket, asking) = listen(path, stops)?;
    let mut before = source.first(stops)?;
    info!("answering at {}", path.display());
    while !stops.wait(NOTHING_TO_DO) {
        for stream in asking.try_iter() {
            let Some(sample) = source.look()? else { return Ok(()) };
            let interval = between(&before, &sample);
            if let Err(error) = answer(stream, &batch::json(&sample, &interval, columns)) {
                warn!("who asked did not take the answer: {error}");
            }
            before = sample;
        }
    }
    Ok(())
}

/// Those who connect, from now on; each ends the present `stops.wait()`.
fn listen(path: &Path, stops: &Stops) -> Result<(Socket, Receiver<UnixStream>), Failure> {
    unlink_stale(path);
    let failed = |e: io::Error| {
        let why =
            if e.kind() == io::ErrorKind::AddrInUse { "exists already".to_string() } else { e.to_string() };
        Failure::refused(format!("--answer {}: {why}: name a file that can be made", path.display()))
    };
    let listener = UnixListener::bind(path).map_err(failed)?;
    let socket = Socket(path.to_path_buf());
    let (send, asking) = sync_channel(WAITING_MAX);
    let wake = stops.waker();
    thread::spawn(move || {
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => {
                    if send.send(stream).is_err() || wake.send(()).is_err() {
                        return;
                    }
                }
                // Out of file descriptors, for instance: not at full speed.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    });
    Ok((socket, asking))
}

/// Remove the socket of one that was killed: nobody listens there any more.
fn unlink_stale(path: &Path) {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refuses = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    // By a socket of another kind: who listens there is not asked for a sample.
    if is_socket && UnixDatagram::unbound().and_then(|socket| socket.connect(path)).is_err_and(refuses) {
        // If it cannot be removed, that it exists is the reason to refuse.
        let _ = fs::remove_file(path);
    }
}

/// Within PATIENCE as a whole, for others wait: who takes a byte now and then does not get all of it.
fn answer(mut stream: UnixStream, line: &str) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        // The kernel waits so long for each of its buffers: one at a time.
        match stream.write(&rest[..rest.len().min(WRITE_MAX)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn who_connects_wakes_the_waiter_and_is_answered() {
        let path = std::env::temp_dir().join(format!("cohort-answer-{}", std::process::id()));
        let stops = Stops::listen().unwrap();
        let (socket, asking) = listen(&path, &stops).unwrap();
        let again = listen(&path, &stops).map(|_| ()).unwrap_err();
        assert!(again.line.contains("exists already") && again.status == 2, "{again:?}");
        let mut asks = UnixStream::connect(&path).unwrap();
        assert!(!stops.wait(Duration::from_secs(60)), "woken, but not asked to stop");
        answer(asking.recv().unwrap(), "{}\n").unwrap();
        let mut text = String::new();
        asks.read_to_string(&mut text).unwrap();
        assert_eq!(text, "{}\n");
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn what_one_that_was_killed_left_behind_is_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("answer");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let stops = Stops::listen().unwrap();
        let (_socket, _asking) = listen(&path, &stops).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "important").unwrap();
        assert!(listen(&file, &stops).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "important");
    }

    #[test]
    fn who_does_not_read_goes_without() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let error = answer(ours, &"x".repeat(16 << 20)).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{error}");
    }
}
