// SPDX-License-Identifier: GPL-2.0-only
//! What systemd is told when it has started `cohort run`: that the scheduler is in charge, that this process still looks after it, and that it ends.
//! Without systemd nobody is told, and nothing else changes.

use std::env;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tracing::debug;

/// Half of the time that systemd allows, as it recommends.
const PART: u32 = 2;

/// In the environment of who is to tell systemd.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Hands states to whoever waits for them.
type Send = Box<dyn FnMut(&[NotifyState])>;

/// Has systemd started this process?
pub fn is_managed() -> bool {
    env::var_os(SOCKET).is_some()
}

pub struct Service {
    /// systemd has started this process, and waits for what it tells.
    is_managed: bool,
    /// How often to say that we are alive; None: nobody waits for it.
    every: Option<Duration>,
    /// Whether systemd has been told that we are ready. Until then TimeoutStartSec= holds; a first word of being alive would start the watchdog as well.
    is_ready: bool,
    said: Instant,
    send: Send,
}

impl Service {
    /// As the environment says.
    pub fn from_environment() -> Self {
        let send = |states: &[NotifyState]| {
            if let Err(error) = sd_notify::notify(states) {
                debug!("cannot tell the service manager: {error}");
            }
        };
        Service { is_managed: is_managed(), ..Service::new(sd_notify::watchdog_enabled(), Box::new(send)) }
    }

    fn new(watchdog: Option<Duration>, send: Send) -> Self {
        let every = watchdog.map(|time| time / PART);
        Service { is_managed: false, every, is_ready: false, said: Instant::now(), send }
    }

    /// It is for systemd to end this process, and for nobody else.
    pub fn is_managed(&self) -> bool {
        self.is_managed
    }

    /// The scheduler is attached.
    pub fn ready(&mut self, status: &str) {
        self.is_ready = true;
        self.said = Instant::now();
        (self.send)(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// The process is where it can see the scheduler's end; call it oftener than half the watchdog's time.
    pub fn alive(&mut self, now: Instant) {
        if self.every.is_some_and(|every| now.duration_since(self.said) >= every) {
            self.begins(now);
        }
    }

    /// Something begins that may take long: it has all of the watchdog's time, if that has begun.
    pub fn begins(&mut self, now: Instant) {
        if self.is_ready && self.every.is_some() {
            self.said = now;
            (self.send)(&[NotifyState::Watchdog]);
        }
    }

    /// The scheduler is gone for a moment, or for good.
    pub fn status(&mut self, status: &str) {
        (self.send)(&[NotifyState::Status(status)]);
    }

    pub fn stopping(&mut self) {
        (self.send)(&[NotifyState::Stopping]);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    fn service(watchdog: Option<Duration>) -> (Service, Rc<RefCell<Vec<String>>>) {
        let said = Rc::new(RefCell::new(Vec::new()));
        let log = Rc::clone(&said);
        let send = move |states: &[NotifyState]| {
            log.borrow_mut().extend(states.iter().map(|state| state.to_string().trim_end().to_string()));
        };
        (Service::new(watchdog, Box::new(send)), said)
    }

    /// One that has been loaded, and what it says from then on.
    fn ready(watchdog: Duration) -> (Service, Rc<RefCell<Vec<String>>>) {
        let (mut service, said) = service(Some(watchdog));
        service.ready("scheduling");
        said.borrow_mut().clear();
        (service, said)
    }

    #[test]
    fn loading_may_take_longer_than_the_watchdogs_time() {
        let (mut service, said) = service(Some(Duration::from_secs(3)));
        service.begins(Instant::now());
        service.alive(Instant::now() + Duration::from_secs(4));
        assert!(said.borrow().is_empty(), "systemd's watchdog begins with the first word: {said:?}");
        service.ready("scheduling");
        service.begins(Instant::now());
        assert_eq!(*said.borrow(), ["READY=1", "STATUS=scheduling", "WATCHDOG=1"]);
    }

    #[test]
    fn a_start_may_take_as_long_as_all_of_its_tries() {
        let unit = include_str!("../systemd/cohort.service");
        let seconds = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.parse::<u64>().ok());
        // load() tries four times, and then it is attached: later each of these has the watchdog's time.
        let each = seconds("WatchdogSec=").unwrap();
        assert!(seconds("TimeoutStartSec=").unwrap() >= 5 * each);
    }

    #[test]
    fn each_event_is_told_once() {
        let (mut service, said) = service(None);
        service.ready("scheduling with policy cohort");
        service.status("loading again");
        service.alive(Instant::now() + Duration::from_secs(1000));
        service.begins(Instant::now());
        service.stopping();
        let wanted =
            ["READY=1", "STATUS=scheduling with policy cohort", "STATUS=loading again", "STOPPING=1"];
        assert_eq!(*said.borrow(), wanted);
    }

    #[test]
    fn each_part_of_loading_has_the_watchdogs_whole_time() {
        let (mut service, said) = ready(Duration::from_secs(60));
        let start = service.said;
        // Just not due when the scheduler ends; then two tries of 50 s each, and the usual look.
        for (at_s, count) in [(29, 1), (79, 2)] {
            service.begins(start + Duration::from_secs(at_s));
            assert_eq!(said.borrow().len(), count);
        }
        service.alive(start + Duration::from_secs(108));
        assert_eq!(said.borrow().len(), 2, "said 29 s before");
        service.alive(start + Duration::from_secs(109));
        assert_eq!(*said.borrow(), ["WATCHDOG=1"; 3]);
    }

    #[test]
    fn the_watchdog_hears_us_twice_in_its_time() {
        let (mut service, said) = ready(Duration::from_secs(10));
        let start = service.said;
        for ms in (0..20_000).step_by(200) {
            service.alive(start + Duration::from_millis(ms));
        }
        assert_eq!(*said.borrow(), ["WATCHDOG=1"; 3]);
    }
}
