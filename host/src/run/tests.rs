// SPDX-License-Identifier: GPL-2.0-only
//! What a check refuses, and what signals do, each tried on a process of its own.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};

use super::*;
use crate::checks::tests::FakeHost;
use crate::{cli, top};

#[test]
fn a_check_refuses_the_sets_that_a_run_refuses() {
    let (host, dir) = (FakeHost::good(), tempfile::tempdir().unwrap());
    let path = dir.path().join("sets");
    let line = ["cohort", "run", "--check", "--policy", "partial", "--sets", path.to_str().unwrap()];
    let args = match cli::parse(line.map(Into::into)).unwrap().command {
        cli::Command::Run(args) => args,
        _ => unreachable!(),
    };
    let told = || obstacles(&args, &host.host());
    assert!(told()[0].starts_with("--sets: cannot read"), "{:?}", told());
    fs::write(&path, "web: x\n").unwrap();
    assert!(told()[0].contains("line 1: vCPUs \"x\""), "{:?}", told());
    assert_eq!(check(&told()).unwrap_err().status, 2);
    fs::write(&path, "web: 0,1\n").unwrap();
    assert_eq!(check(&told()), Ok(()));
}

#[test]
fn cookies_are_asked_for_when_pcpus_come_and_not_when_they_go() {
    let (begin, at) = (Instant::now(), |cpus: &str| Some(cpus.to_string()));
    let mut online = Online::of(at("0-7"));
    let mut look = |cpus, ms| online.look(cpus, begin + Duration::from_millis(ms));
    assert_eq!(look(at("0-7"), 0), News::Nothing);
    // SMT is switched off, one pCPU after the other: it is still on while the first ones go.
    assert_eq!(look(at("0-6"), 200), News::Went);
    assert_eq!(look(at("0-4,6"), 400), News::Went);
    assert_eq!(look(at("0-4,6"), 600), News::Nothing);
    assert_eq!(look(at("0-4,6"), 1400), News::Went, "again when it has settled");
    assert_eq!(look(at("0-4,6"), 1600), News::Nothing);
    // And on: one that comes is asked for again a second later, though another goes meanwhile.
    assert_eq!(look(at("0-6"), 2000), News::Came);
    assert_eq!(look(at("0-5"), 2200), News::Came);
    assert_eq!(look(at("0-5"), 3200), News::Came);
    assert_eq!(look(at("0-5"), 4400), News::Nothing);
    assert_eq!(look(at("0-4"), 4600), News::Went);
    assert_eq!(look(None, 4800), News::Came, "nobody knows");
}

/// In the environment of a process that started() has made. Without it nobody sends the signals that the tests
/// below wait for, as when all that are ignored are run: then they wait for none.
const SIGNALLED: &str = "COHORT_TEST_IS_SIGNALLED";
/// Nor does who is never told to end outlive the test that has failed to do so.
const ENDS_AFTER: Duration = Duration::from_secs(60);

fn is_signalled() -> bool {
    std::env::var_os(SIGNALLED).is_some()
}

/// One of these tests in a process of its own that listens to signals by now, and what it prints then.
fn started(test: &str) -> (Child, impl Iterator<Item = String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("run::tests::{test}"), "--ignored", "--nocapture"])
        .env(SIGNALLED, "yes")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "ready"));
    (child, lines)
}

fn send(signal: &str, child: &Child) {
    // The shell's own kill: the program is not on every machine.
    let kill = format!("kill -{signal} {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

#[test]
#[ignore = "the next test runs it, in a process of its own"]
fn stuck() {
    if !is_signalled() {
        return;
    }
    let _stops = Stops::listen_twice().unwrap();
    println!("\nready");
    thread::sleep(ENDS_AFTER);
}

#[test]
fn a_second_signal_ends_who_is_stuck() {
    let (mut child, _lines) = started("stuck");
    // One that comes with the first, as from a terminal and whoever started us, is the first.
    send("TERM", &child);
    send("TERM", &child);
    thread::sleep(INSISTS_AFTER);
    assert!(child.try_wait().unwrap().is_none());
    send("TERM", &child);
    assert_eq!(child.wait().unwrap().code(), Some(128 + SIGTERM));
}

/// Waits to be told to end, and says by what it was.
fn wait_for_the_end(listen: fn() -> Result<Stops, Failure>) {
    if !is_signalled() {
        return;
    }
    say::start_log(0);
    // Who runs the tests may have had it ignored, as nohup does.
    // SAFETY: nobody handles it in this process so far, and no memory is touched.
    unsafe { libc::signal(SIGHUP, libc::SIG_DFL) };
    let stops = listen().unwrap();
    println!("\nready");
    let begin = Instant::now();
    while !stops.wait(LOOK_EVERY) && begin.elapsed() < ENDS_AFTER {}
    println!("\nended by {:?}", stops.signal());
}

/// Begins a session: with a terminal of its own, both ends of which are returned, or without.
fn begin_session(with_terminal: bool) -> Option<[File; 2]> {
    // SAFETY: it takes nothing, and changes nothing in memory.
    let session = unsafe { libc::setsid() };
    assert!(session > 0, "it leads a group already");
    with_terminal.then(|| {
        let open = |path: &str| File::options().read(true).write(true).open(path).unwrap();
        let ours = open("/dev/ptmx");
        let (mut number, unlocked): (libc::c_int, libc::c_int) = (-1, 0);
        // SAFETY: the kernel reads an int, which lives across the call.
        assert_eq!(unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked) }, 0);
        // SAFETY: the kernel writes an int, which lives across the call.
        assert_eq!(unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCGPTN, &raw mut number) }, 0);
        // The first that is opened in a session is the session's.
        let theirs = open(&format!("/dev/pts/{number}"));
        [ours, theirs]
    })
}

/// Waits as `cohort top --listen` does.
fn exporter(with_terminal: bool) {
    if !is_signalled() {
        return;
    }
    let _terminal = begin_session(with_terminal);
    wait_for_the_end(|| {
        let line = ["cohort", "top", "--listen", "127.0.0.1:9479"];
        match cli::parse(line.map(Into::into)).unwrap().command {
            cli::Command::Top(args) => top::stops(&args),
            _ => unreachable!(),
        }
    });
}

/// What it has said, now that this signal has ended it in good order.
fn ended(mut child: Child, mut lines: impl Iterator<Item = String>, by: i32) -> String {
    assert!(lines.any(|line| line == format!("ended by Some({by})")));
    assert!(child.wait().unwrap().success());
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    log
}

#[test]
#[ignore = "a test below runs it, in a process of its own"]
fn service() {
    wait_for_the_end(|| Stops::of_a_service("cohort"));
}

#[test]
#[ignore = "a test below runs it, in a process of its own"]
fn at_a_terminal() {
    wait_for_the_end(Stops::listen_twice);
}

#[test]
#[ignore = "a test below runs it, in a process of its own"]
fn exporter_at_a_terminal() {
    exporter(true);
}

#[test]
#[ignore = "a test below runs it, in a process of its own"]
fn exporter_without_a_terminal() {
    exporter(false);
}

#[test]
fn a_service_does_not_end_when_it_is_asked_to_reload() {
    let (mut child, lines) = started("service");
    send("HUP", &child);
    thread::sleep(INSISTS_AFTER);
    send("HUP", &child);
    thread::sleep(LOOK_EVERY);
    assert!(child.try_wait().unwrap().is_none());
    // The first that is to end it: it ends in good order.
    send("TERM", &child);
    let log = ended(child, lines, SIGTERM);
    let told = log.lines().filter(|line| line.contains("nothing to reload")).collect::<Vec<_>>();
    assert!(told.len() == 2 && told[0].contains("`systemctl restart cohort`"), "{log}");

    let (child, lines) = started("at_a_terminal");
    send("HUP", &child);
    ended(child, lines, SIGHUP);
}

#[test]
fn who_serves_is_a_service_unless_it_has_a_terminal() {
    let (child, lines) = started("exporter_without_a_terminal");
    send("HUP", &child);
    // Of two signals that are there at once, either may be told first.
    thread::sleep(LOOK_EVERY);
    send("TERM", &child);
    let log = ended(child, lines, SIGTERM);
    assert!(log.contains("nothing to reload") && log.contains("`systemctl restart cohort-metrics`"), "{log}");

    let (child, lines) = started("exporter_at_a_terminal");
    send("HUP", &child);
    ended(child, lines, SIGHUP);
}

#[test]
#[ignore = "the next test runs it, in a process of its own"]
fn service_that_begins() {
    if !is_signalled() {
        return;
    }
    begin_session(false);
    hold_hangup();
    // To this thread: the others of a test's process do not hold it.
    // SAFETY: it takes a number, and changes nothing in memory.
    assert_eq!(unsafe { libc::raise(SIGHUP) }, 0);
    wait_for_the_end(|| Stops::of_a_service("cohort"));
}

#[test]
fn a_service_that_is_asked_to_reload_before_it_listens_is_told_when_it_does() {
    let (child, lines) = started("service_that_begins");
    thread::sleep(LOOK_EVERY);
    send("TERM", &child);
    let log = ended(child, lines, SIGTERM);
    assert!(log.contains("nothing to reload"), "{log}");
}
