// SPDX-License-Identifier: GPL-2.0-only
//! `cohort run`: check, load, watch, end.
//!
//! No scheduling decision needs this process: it may be stopped, starve or die. It only prints, and decides when the scheduler goes.

mod reporter;

use std::collections::VecDeque;
use std::fs::{self, File};
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ratatui::crossterm::terminal::disable_raw_mode;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{info, warn};

use crate::checks::Host;
use crate::cli::Run;
use crate::intf;
use crate::load::{self, Config, Ending, Place, Storage};
use crate::monitor;
use crate::say::{self, Failure};
use crate::service::{self, Service};
use crate::sets::{Auto, Teller, Told};
use crate::stats::{self, Tables};
use crate::topology;
use reporter::{reader_has_gone, Reporter};

/// How often to look whether the kernel put the scheduler out, or KVM appeared.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Who is asked again after so long is asked by somebody who waits, and not twice for the same reason.
const INSISTS_AFTER: Duration = Duration::from_secs(1);

/// A pCPU that has just come online may be without its caches in sysfs for a moment.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// More restarts than this in RESTART_SPAN are a fault, not hotplug.
const RESTARTS_MAX: usize = 10;
const RESTART_SPAN: Duration = Duration::from_secs(60);

/// Why one turn of the scheduler ended.
enum End {
    Signal(i32),
    ReaderGone,
    Outdated(&'static str),
    Ejected(Ending),
    /// The host has become one that is refused.
    Refused(String),
}

pub fn run(args: &Run, host: &Host) -> Result<(), Failure> {
    say::start_log(args.verbose);
    if let Some(interval) = args.monitor {
        return monitor::watch(host, interval, args.json, &Stops::listen_twice()?);
    }
    if args.check {
        return check(&obstacles(args, host));
    }
    if let Some(refusal) = host.refusals().into_iter().next() {
        return Err(Failure::refused(refusal));
    }
    let axes = args.policy.axes()?;
    let config = Config {
        policy: args.policy.policy.clone(),
        uncaught: args.policy.uncaught(&axes)?,
        axes,
        sbco_alpha: args.policy.sbco_alpha,
        traffic: args.policy.traffic(),
        timing: args.timing.clone(),
        verbose: args.verbose,
    };
    let mut service = Service::from_environment();
    let stops = if service.is_managed() { Stops::of_a_service("cohort")? } else { Stops::listen_twice()? };
    let mut reporter = args.stats.map(|interval| Reporter::new(interval, args.json));
    let mut teller = match (&args.policy.sets, config.axes.gang()) {
        (Some(path), _) => Some(Teller::from_file(path.clone())?),
        (None, "partial-auto") => {
            Some(Teller::auto(Auto::new(args.policy.split), args.policy.faults_per_s()))
        }
        (None, "partial") => {
            warn!("no --sets: nobody is in a set, and each vCPU runs for itself");
            None
        }
        (None, _) => None,
    };
    let result = keep_scheduling(&config, host, &stops, &mut reporter, &mut service, &mut teller);
    if let Some(reporter) = reporter {
        reporter.finish();
    }
    result
}

/// Everything for which a run with these flags would be refused: the host's part, then the file of `--sets`.
fn obstacles(args: &Run, host: &Host) -> Vec<String> {
    let sets = args.policy.sets.clone().and_then(|path| Teller::from_file(path).err());
    host.refusals().into_iter().chain(sets.map(|failure| failure.line)).collect()
}

/// Print every obstacle but the last, which becomes the failure.
fn check(refusals: &[String]) -> Result<(), Failure> {
    let Some((last, others)) = refusals.split_last() else {
        info!("this host can run the scheduler");
        return Ok(());
    };
    for refusal in others {
        tracing::error!("{refusal}");
    }
    Err(Failure::refused(last.clone()))
}

fn keep_scheduling(
    config: &Config,
    host: &Host,
    stops: &Stops,
    reporter: &mut Option<Reporter>,
    service: &mut Service,
    teller: &mut Option<Teller>,
) -> Result<(), Failure> {
    let mut restarts = VecDeque::new();
    loop {
        match schedule(config, host, stops, reporter, service, teller)? {
            End::Signal(signal) => {
                service.stopping();
                let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
                info!("ended by {name}: the kernel's own scheduler has taken over");
                return Ok(());
            }
            End::ReaderGone => {
                info!("ended because nobody reads the statistics: the kernel's own scheduler has taken over");
                return Ok(());
            }
            End::Outdated(why) => info!("{why}"),
            End::Refused(why) => {
                return Err(Failure::refused(format!("{why}; the kernel's own scheduler has taken over")));
            }
            End::Ejected(ending) if ending.wants_restart() => {
                info!("ended by the kernel ({ending}): starting again")
            }
            // A failure would be started again by systemd.
            End::Ejected(ending) if ending.is_by_hand() => {
                info!("ended by hand ({ending}): the kernel's own scheduler has taken over");
                return Ok(());
            }
            End::Ejected(ending) => {
                return Err(Failure::failed(format!(
                    "the kernel put the scheduler out: {ending}; the kernel's own scheduler has taken over: its log (journalctl -k) says more"
                )));
            }
        }
        service.status("loading the scheduler again");
        let now = Instant::now();
        restarts.retain(|at: &Instant| now.duration_since(*at) < RESTART_SPAN);
        restarts.push_back(now);
        if restarts.len() > RESTARTS_MAX {
            return Err(Failure::failed(format!(
                "gave up after {RESTARTS_MAX} restarts in {} s, for which the lines above have the reasons; the kernel's own scheduler has taken over: \
                 start it again when the host stays as it is",
                RESTART_SPAN.as_secs()
            )));
        }
    }
}

/// Load the scheduler and watch it until something ends it.
fn schedule(
    config: &Config,
    host: &Host,
    stops: &Stops,
    reporter: &mut Option<Reporter>,
    service: &mut Service,
    teller: &mut Option<Teller>,
) -> Result<End, Failure> {
    let place = Place::of(host)?;
    if !place.kvm {
        warn!("the kvm module is not loaded: there is no vCPU to see until it is; the scheduler will then be loaded again by itself");
    }
    let config = &config.at(&place);
    let mut storage = Storage::default();
    let skel = load::load(&mut storage, config, &place, &mut || service.begins(Instant::now()))?;
    if let Some(signal) = stops.signal() {
        return Ok(End::Signal(signal));
    }
    let mut online = Online::of(host.online_cpus());
    topology::tell(&skel.maps.neighbours, &topology::read(host, intf::MAX_CPUS)).map_err(|e| {
        Failure::failed(format!("cannot tell the scheduler which CPUs are near which: {e:#}"))
    })?;
    service.begins(Instant::now());
    // Another scheduler may have come since the checks.
    let attached = load::attach(skel, config, &place);
    let mut running = attached.map_err(|failure| host.other_scheduler().map_or(failure, Failure::refused))?;
    // What goes wrong while the kernel enables it, the kernel tells by ending it, not by refusing it.
    if let Some(ending) = running.ending() {
        running.detach();
        return Ok(End::Ejected(ending));
    }
    info!("scheduling with policy {}", config.policy);
    info!("{}", config.axes);
    service.ready(&format!("scheduling with policy {}", config.policy));

    if let Some(reporter) = reporter.as_mut() {
        reporter.start();
    }
    if let Some(teller) = teller.as_mut() {
        teller.start(running.sees_faults());
    }
    let end = loop {
        let next = reporter.as_ref().map_or(LOOK_EVERY, |r| r.due_in().min(LOOK_EVERY));
        stops.wait(next);
        service.alive(Instant::now());
        if let Some(signal) = stops.signal() {
            break End::Signal(signal);
        }
        if let Some(ending) = running.ending() {
            break End::Ejected(ending);
        }
        if let Some(why) = place.outdated_by(config, host) {
            break End::Outdated(why);
        }
        let maps = &running.skel.maps;
        let news = online.look(host.online_cpus(), Instant::now());
        if news != News::Nothing {
            // Switching SMT on brings pCPUs, and shows a moment later. Switching it off is what the refusal tells to do.
            if let Some(why) = (news == News::Came).then(|| host.core_scheduling()).flatten() {
                break End::Refused(why);
            }
            if let Err(error) = topology::tell(&maps.neighbours, &topology::read(host, intf::MAX_CPUS)) {
                warn!("cannot tell the scheduler of CPUs that came or went: {error:#}");
            }
        }
        if let Some(teller) = teller.as_mut() {
            let told =
                Told { vms: &maps.vms, set_of: &maps.set_of, traffic: &maps.traffic, faults: &maps.faults };
            teller.tell(&told, host);
        }
        if let Some(reporter) = reporter.as_mut() {
            let tables = Tables { vms: &maps.vms, stats: &maps.stats, entities: &maps.entities };
            reporter.report(|names| stats::read(&tables, host, names));
        }
        if reader_has_gone(reporter, service.is_managed()) {
            break End::ReaderGone;
        }
    };
    running.detach();
    Ok(end)
}

/// The pCPUs that are online, as they come and go.
struct Online {
    cpus: Option<String>,
    tell_again: Option<Instant>,
    /// Some have come, and are to be told once more.
    has_come: bool,
}

/// What is to be told of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Nothing,
    Went,
    Came,
}

impl Online {
    /// As the kernel writes them; None: it does not say.
    fn of(cpus: Option<String>) -> Self {
        Online { cpus, tell_again: None, has_come: false }
    }

    fn look(&mut self, cpus: Option<String>, now: Instant) -> News {
        if cpus != self.cpus {
            self.has_come |= has_come(self.cpus.as_deref(), cpus.as_deref());
            self.cpus = cpus;
            self.tell_again = Some(now + SETTLED_AFTER);
        } else if self.tell_again.take_if(|at| *at <= now).is_none() {
            return News::Nothing;
        }
        let news = if self.has_come { News::Came } else { News::Went };
        self.has_come &= self.tell_again.is_some();
        news
    }
}

/// Is one there that was not before? Where that is not known, it may be.
fn has_come(before: Option<&str>, now: Option<&str>) -> bool {
    let (Some(before), Some(now)) = (before, now) else { return true };
    let [before, now] = [before, now].map(|cpus| topology::cpu_list(cpus, intf::MAX_CPUS));
    now.iter().any(|cpu| before.binary_search(cpu).is_err())
}

/// What a SIGHUP is.
#[derive(Clone, Copy)]
enum Hangup {
    /// The terminal is gone, and with it whoever wanted this.
    Stops,
    /// Somebody asks the service of that name to read its configuration anew. To end for that would leave the host
    /// without it: an end that was asked for is no failure, after which systemd would start it again.
    WantsReload(&'static str),
}

/// SIGINT, SIGTERM and SIGHUP, as something to wait for.
pub struct Stops {
    came: Receiver<()>,
    wake: Sender<()>,
    signal: Arc<AtomicUsize>,
}

impl Stops {
    /// Listen from now on. A SIGHUP that whoever started us (nohup) made us ignore stays ignored; SIGINT does not, because shells make their
    /// background jobs ignore it, and a scheduler must be easy to stop.
    pub fn listen() -> Result<Self, Failure> {
        Stops::start(false, Hangup::Stops)
    }

    /// The same; and a signal that comes INSISTS_AFTER the first or later ends the process at once, be it in the verifier or stuck at a terminal that takes
    /// no more. For who has nothing to finish: what the kernel has of it goes with it.
    pub fn listen_twice() -> Result<Self, Failure> {
        Stops::start(true, Hangup::Stops)
    }

    /// The same for who was started by a service manager, which ends it by SIGTERM: a SIGHUP ends nothing.
    fn of_a_service(name: &'static str) -> Result<Self, Failure> {
        Stops::start(true, Hangup::WantsReload(name))
    }

    /// The same for who serves others, as that service or at a terminal. Without a terminal it cannot be that one's end which a SIGHUP tells.
    pub fn of_a_server(service: &'static str) -> Result<Self, Failure> {
        if has_terminal() {
            Stops::listen_twice()
        } else {
            Stops::of_a_service(service)
        }
    }

    fn start(twice: bool, hangup: Hangup) -> Result<Self, Failure> {
        let wanted =
            [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| *signal != SIGHUP || !is_ignored(SIGHUP));
        let mut signals =
            Signals::new(wanted).map_err(|e| Failure::failed(format!("cannot listen to signals: {e}")))?;
        mask_hangup(libc::SIG_UNBLOCK);
        let signal = Arc::new(AtomicUsize::new(0));
        let (notify, came) = channel();
        let seen = Arc::clone(&signal);
        let wake = notify.clone();
        thread::spawn(move || {
            let mut first: Option<Instant> = None;
            for number in signals.forever() {
                if let (SIGHUP, Hangup::WantsReload(name)) = (number, hangup) {
                    info!("SIGHUP: there is nothing to reload; `systemctl restart {name}` applies changes");
                    continue;
                }
                if twice && first.is_some_and(|at| at.elapsed() >= INSISTS_AFTER) {
                    // A terminal that takes nothing more can be set all the same; if there is none, nothing was set.
                    let _ = disable_raw_mode();
                    process::exit(128 + number);
                }
                first.get_or_insert_with(Instant::now);
                seen.store(number as usize, Ordering::Relaxed);
                if notify.send(()).is_err() {
                    return;
                }
            }
        });
        Ok(Stops { came, wake, signal })
    }

    /// Wait that long, or until asked to stop. Return true if asked.
    pub fn wait(&self, time: Duration) -> bool {
        if !self.asked() {
            match self.came.recv_timeout(time) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                // Cannot be while `wake` is there; were it to, this must not become a busy loop.
                Err(RecvTimeoutError::Disconnected) => thread::sleep(time),
            }
        }
        self.asked()
    }

    /// What ends the present `wait()` early, or the next one.
    pub fn waker(&self) -> Sender<()> {
        self.wake.clone()
    }

    pub fn asked(&self) -> bool {
        self.signal().is_some()
    }

    fn signal(&self) -> Option<i32> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            number => Some(number as i32),
        }
    }
}

/// Call it before all else. A SIGHUP that comes before the process listens would end it, for which a service is not to end: it waits until then.
/// At a terminal it ends the process, as it would later.
pub fn hold_hangup() {
    if service::is_managed() || !has_terminal() {
        mask_hangup(libc::SIG_BLOCK);
    }
}

/// `how`: SIG_BLOCK or SIG_UNBLOCK, for this thread and those that it starts from now on.
fn mask_hangup(how: libc::c_int) {
    // SAFETY: zeros are a set of signals, an empty one; the calls read and write it, it lives across them, and nobody need ask for the mask before.
    unsafe {
        let mut hangup: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut hangup, SIGHUP);
        libc::pthread_sigmask(how, &raw const hangup, std::ptr::null_mut());
    }
}

/// Is there a terminal that tells this process of its end, wherever input and output are?
fn has_terminal() -> bool {
    // The kernel opens it for nobody who has none.
    File::open("/dev/tty").is_ok()
}

/// Does this process ignore the signal?
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let hex = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let set = hex.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    set & (1 << (signal - 1)) != 0
}

#[cfg(test)]
mod tests;
