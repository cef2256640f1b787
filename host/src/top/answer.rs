// SPDX-License-Identifier: GPL-2.0-only
//! `cohort top --batch --json --answer PATH`: a sample for whoever connects to a Unix socket, taken then and at no other time.
//!
//! Who measures a program so gets the counters right before it and right after it, and nothing is read while it runs.

use std::fs;
use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{sync_channel, Receiver};
use std::thread;
use std::time::Duration;

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

fn answer(mut stream: UnixStream, line: &str) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(line.as_bytes())
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
}
