// SPDX-License-Identifier: GPL-2.0-only
//! Passing requests on to agents behind Unix sockets: QEMU's end of each guest's port.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use serde_json::{json, Value};

use crate::exec::{hurry, lock};

/// One connection, shared by all requests to that guest; answers find their asker by id.
struct Link {
    writer: Mutex<UnixStream>,
    /// `None` once the connection is lost: nobody may wait on it any more.
    waiting: Mutex<Option<HashMap<u64, Sender<Value>>>>,
}

#[derive(Default)]
pub struct Relay {
    links: Mutex<HashMap<String, Arc<Link>>>,
    next_id: AtomicU64,
}

impl Relay {
    pub fn forward(&self, socket: &str, op: &Value, sample: &[String]) -> Result<Value> {
        hurry();
        let link = self.link(socket)?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = channel();
        lock(&link.waiting).as_mut().context("the guest is gone")?.insert(id, sender);
        let mut line = json!({ "id": id, "op": op, "sample": sample }).to_string();
        line.push('\n');
        lock(&link.writer).write_all(line.as_bytes()).context("the guest's port does not take requests")?;
        receiver.recv().context("the guest went away before it answered")
    }

    fn link(&self, socket: &str) -> Result<Arc<Link>> {
        let mut links = lock(&self.links);
        if let Some(link) = links.get(socket) {
            if lock(&link.waiting).is_some() {
                return Ok(Arc::clone(link));
            }
        }
        let stream = UnixStream::connect(socket).with_context(|| format!("cannot connect to {socket}"))?;
        let reader = BufReader::new(stream.try_clone()?);
        let link = Arc::new(Link { writer: Mutex::new(stream), waiting: Mutex::new(Some(HashMap::new())) });
        links.insert(socket.to_owned(), Arc::clone(&link));
        let for_reader = Arc::clone(&link);
        std::thread::spawn(move || read_answers(reader, &for_reader));
        Ok(link)
    }
}

fn read_answers(reader: BufReader<UnixStream>, link: &Link) {
    hurry();
    for line in reader.split(b'\n') {
        let Ok(line) = line else { break };
        // Half a line, from before this connection, is nobody's answer; it may begin inside of a character.
        let Ok(answer) = serde_json::from_slice::<Value>(&line) else { continue };
        let Some(id) = answer.get("id").and_then(Value::as_u64) else { continue };
        if let Some(sender) = lock(&link.waiting).as_mut().and_then(|waiting| waiting.remove(&id)) {
            // Its asker may have gone: then nobody wants the answer.
            let _ = sender.send(answer);
        }
    }
    // Dropping the senders wakes all who wait.
    *lock(&link.waiting) = None;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    fn socket(name: &str) -> (PathBuf, UnixListener) {
        let path = std::env::temp_dir().join(format!("cohort-lab-{name}-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        (path, listener)
    }

    #[test]
    fn answers_in_any_order_find_their_askers() {
        let (path, listener) = socket("order");
        let guest = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut requests: Vec<Value> = BufReader::new(&stream)
                .lines()
                .take(3)
                .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
                .collect();
            requests.reverse();
            let mut writer = &stream;
            // The second byte of a character, and the rest of that line.
            writer.write_all(b"\xb5s of an earlier connection\"}\n{\"id\": 999999}\n").unwrap();
            for request in requests {
                writeln!(writer, "{}", json!({ "id": request["id"], "ok": request["op"] })).unwrap();
            }
        });
        let relay = Relay::default();
        let path = path.to_str().unwrap();
        std::thread::scope(|scope| {
            for number in 0..3 {
                let relay = &relay;
                scope.spawn(move || {
                    let answer = relay.forward(path, &json!(number), &[]).unwrap();
                    assert_eq!(answer["ok"], json!(number));
                });
            }
        });
        guest.join().unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_guest_that_goes_away_is_an_error_and_may_come_back() {
        let (path, listener) = socket("gone");
        let guest = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            BufReader::new(&stream).lines().next();
            drop(stream);
            let (stream, _) = listener.accept().unwrap();
            let line = BufReader::new(&stream).lines().next().unwrap().unwrap();
            let request: Value = serde_json::from_str(&line).unwrap();
            writeln!(&stream, "{}", json!({ "id": request["id"], "ok": 1 })).unwrap();
        });
        let relay = Relay::default();
        let path = path.to_str().unwrap();
        assert!(relay.forward(path, &json!("ping"), &[]).is_err());
        assert_eq!(relay.forward(path, &json!("ping"), &[]).unwrap()["ok"], json!(1));
        guest.join().unwrap();
        assert!(relay.forward("/does/not/exist.sock", &json!("ping"), &[]).is_err());
        std::fs::remove_file(path).unwrap();
    }
}
