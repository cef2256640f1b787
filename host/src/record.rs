// SPDX-License-Identifier: GPL-2.0-only
//! `cohort record`: what happens to the VMs of this host, into a file that does not grow beyond a size.
//!
//! The kernel's probe puts each event into a ring buffer; this empties it many times a second. What did not fit there, and what had to make room in the
//! file, is counted, and the file says it.

mod args;
mod owners;

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cohort_recording::event::BYTES;
use cohort_recording::format::SLOT_BYTES;
use cohort_recording::{End, Event, Header, Kind, Pcpu, Writer};
use libbpf_rs::RingBufferBuilder;
use tracing::{debug, info, warn};

pub use args::Record;
use owners::Owners;

use crate::alone;
use crate::checks::Host;
use crate::probe::{self, intf, monotonic_ns, Probe, Reader};
use crate::run::Stops;
use crate::say::{self, Failure};
use crate::top::sample::Sample;
use crate::topology;

/// How often the ring buffer is emptied. It holds more than is known to happen on a large host in that time.
const LOOK: Duration = Duration::from_millis(20);
/// Events taken in one look: where they come as fast as they can be written, whoever asks it to end is heard all the same.
const EVENTS_MAX: usize = 1 << 17;

pub fn run(args: &Record, host: &Host) -> Result<(), Failure> {
    say::start_log(args.verbose);
    write(&args.out, |part, file| record(args, host, part, file))
}

/// Have `body` write the recording. It only borrows the file: once that is closed, others may write it, so it must have its name by then, or be removed.
fn write(out: &Path, body: impl FnOnce(&Path, &File) -> Result<Recorded, Failure>) -> Result<(), Failure> {
    let (part, file) = writable(out)?;
    settle(body(&part, &file), &part, out)
}

/// What is complete gets its name, and nothing half-written stays.
fn settle(recorded: Result<Recorded, Failure>, part: &Path, out: &Path) -> Result<(), Failure> {
    let recorded = recorded.inspect_err(|_| {
        // That it cannot be removed is less than what went wrong.
        let _ = fs::remove_file(part);
    })?;
    fs::rename(part, out).map_err(|error| {
        // Nobody can record that time again.
        Failure::failed(format!(
            "--out {}: the recording is complete, but cannot be given that name: {error}: it stays in {}",
            out.display(),
            part.display()
        ))
    })?;
    // Not every file system does that, nor may every folder be opened. The recording is there all the same.
    if let Err(error) = keep_name(out) {
        debug!("{}: its new name may not be on the disk yet: {error}", out.display());
    }
    recorded.tell(out);
    Ok(())
}

/// Have the disk keep the name as well, which is in the folder: a host that loses its power now would have
/// the recording under its old one.
fn keep_name(out: &Path) -> io::Result<()> {
    // Of a name alone it is the empty path.
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Where the recording is written until it is complete. Known to be writable, and nobody else's, before the kernel is touched.
fn writable(out: &Path) -> Result<(PathBuf, File), Failure> {
    let refused = |why: &dyn std::fmt::Display| Failure::refused(format!("--out {}: {why}", out.display()));
    if out.is_dir() {
        return Err(refused(&"is a folder; allowed: a file"));
    }
    // Renaming would take the link's place, that of /dev/stdout for the whole host.
    if out.is_symlink() {
        return Err(refused(&"is a link; allowed: a file"));
    }
    // /dev/null would be one no more.
    if out.exists() && !out.is_file() {
        return Err(refused(&"is a device or a pipe; allowed: a file"));
    }
    // Of `foo/` and `foo/.` the file's name is `foo`, and only the last renaming would find out.
    let text = out.as_os_str().as_bytes();
    if text.ends_with(b"/") || text.ends_with(b"/.") {
        return Err(refused(&"is the name of a folder; allowed: a file"));
    }
    let name = out.file_name().ok_or_else(|| refused(&"is no file's name"))?;
    let mut part_name = name.to_os_string();
    part_name.push(".part");
    let part = out.with_file_name(part_name);
    let unwritable = |error: io::Error| refused(&format!("cannot be written: {error}"));
    // It has all tenants' names, and when each of their interrupts came: who may read it, root says.
    // Not emptied before it is known that no other recorder writes it.
    let file = alone::open(&part, 0o600).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            refused(&"another `cohort record` writes it: choose another name, or end that one")
        }
        _ => unwritable(error),
    })?;
    file.set_len(0).map_err(unwritable)?;
    Ok((part, file))
}

/// A recording that is complete.
struct Recorded {
    secs: f64,
    events: u64,
    overwritten: u64,
    lost: u64,
    bytes: u64,
}

impl Recorded {
    fn tell(&self, out: &Path) {
        let Recorded { secs, events, overwritten, lost, bytes } = *self;
        info!(
            "recorded {secs:.1} s, {events} events, {overwritten} of them replaced by newer ones, {lost} lost, {:.1} MB: {}",
            bytes as f64 / 1e6,
            out.display()
        );
        if lost > 0 {
            warn!("{lost} events were lost because they came too fast: use a larger --ring-kb");
        }
    }
}

fn record(args: &Record, host: &Host, part: &Path, file: &File) -> Result<Recorded, Failure> {
    let unwritten = |error: io::Error| Failure::failed(format!("cannot write {}: {error}", part.display()));
    let mut storage = probe::Storage::default();
    let stops = Stops::listen()?;
    let mut probe = Probe::recording(&mut storage, host, args.ring_bytes())?;
    let mut reader = Reader::default();
    let first = reader.read(&probe, host)?;
    first.notes.iter().for_each(|note| warn!("{note}"));
    let file = BufWriter::new(file);
    let slots_max = args.max_bytes() / SLOT_BYTES as u64;
    let to = Writer::new(file, &header(host, &probe, &first), SLOT_BYTES, slots_max).map_err(unwritten)?;
    let tape = RefCell::new(Tape { to, owners: Owners::default(), joined: false, dropped: 0, failed: None });

    let mut ring = RingBufferBuilder::new();
    ring.add(&probe.skel.maps.probe_events, |bytes| tape.borrow_mut().take(bytes))
        .map_err(|e| Failure::failed(format!("cannot read the probe's events: {e:#}")))?;
    let ring = ring.build().map_err(|e| Failure::failed(format!("cannot read the probe's events: {e:#}")))?;
    let look = |probe: &Probe<'_>, at_most: usize| -> Result<(), Failure> {
        // An error of the callback is in the tape.
        let _ = ring.consume_raw_n(at_most);
        let mut tape = tape.borrow_mut();
        let tape = &mut *tape;
        if let Some(error) = tape.failed.take() {
            return Err(unwritten(error));
        }
        let dropped = dropped(probe);
        tape.to.dropped(dropped);
        // That a vCPU has joined may be among what was lost. If the VMs cannot be looked at now, the next look may see them.
        let lost = tape.dropped != dropped;
        if (tape.joined || lost) && tape.owners.look(host, probe, lost) {
            (tape.joined, tape.dropped) = (false, dropped);
            if let Some(oldest_ns) = tape.to.oldest_ns() {
                tape.owners.forget_before(oldest_ns);
            }
        }
        Ok(())
    };

    look(&probe, EVENTS_MAX)?;
    let vms = first.vms.len();
    info!("recording {vms} VMs into {}", args.out.display());
    let started = Instant::now();
    while !stops.wait(LOOK.min(args.left(started.elapsed()))) && args.left(started.elapsed()) > Duration::ZERO
    {
        look(&probe, EVENTS_MAX)?;
    }
    // Programs that leave the kernel take their time, and so does the disk.
    let secs = started.elapsed().as_secs_f64();
    // What comes after this is in neither: events and counters are of the same time.
    probe.end_recording();
    look(&probe, usize::MAX)?;
    let sample = reader.read(&probe, host)?;
    news(&first, &sample).into_iter().for_each(|note| warn!("{note}"));
    let lost = dropped(&probe);
    drop(ring);
    let Tape { to, owners, .. } = tape.into_inner();
    let (written, overwritten) = (to.written(), to.overwritten());
    let end = End {
        clock_ns: sample.clock_ns,
        dropped: lost,
        overwritten: 0,
        slots: (0, 0),
        scheduler: sample.scheduler.clone(),
        unowned: owners.unowned(),
        vms: owners.into_vms(),
        counted: serde_json::to_value(&sample).unwrap_or_default(),
    };
    let (file, length) = to.finish(end).map_err(unwritten)?;
    let file = file.into_inner().map_err(|error| unwritten(error.into_error()))?;
    file.sync_all().map_err(unwritten)?;
    Ok(Recorded { secs, events: written + lost, overwritten, lost, bytes: length })
}

/// What is to be said at the end and was not so at the begin, such as that VMs or vCPUs have come for which
/// the probe had no room. No event of theirs is counted as lost.
fn news<'a>(first: &Sample, last: &'a Sample) -> Vec<&'a String> {
    last.notes.iter().filter(|note| !first.notes.contains(note)).collect()
}

struct Tape<W> {
    to: Writer<W>,
    owners: Owners,
    joined: bool,
    /// Events lost until the owners were looked at last.
    dropped: u64,
    failed: Option<io::Error>,
}

impl<W: Write + Seek> Tape<W> {
    /// One event of the ring buffer. Not 0 ends this look at it.
    fn take(&mut self, bytes: &[u8]) -> i32 {
        let Some(bytes) = bytes.first_chunk::<BYTES>() else { return 0 };
        match Event::from_bytes(*bytes) {
            Some(event) if event.kind == Kind::Joined => {
                self.owners.joined(event);
                self.joined = true;
            }
            Some(event) if event.kind == Kind::Gone => self.owners.left(event),
            _ => {}
        }
        match self.to.put(bytes) {
            Ok(()) => 0,
            Err(error) => {
                self.failed = Some(error);
                -1
            }
        }
    }
}

/// Events for which the ring buffer had no room so far.
fn dropped(probe: &Probe<'_>) -> u64 {
    probe.skel.maps.bss_data.as_deref().map_or(0, |bss| {
        // SAFETY: the kernel writes it at any time, hence volatile; any bytes are a valid integer.
        unsafe { std::ptr::read_volatile(&bss.events_dropped) }
    })
}

/// Those that are online, by number.
fn pcpus(host: &Host, nr_cpus: u32) -> Vec<Pcpu> {
    let places = topology::read(host, intf::PROBE_MAX_CPUS);
    let pcpus = places.iter().enumerate().filter_map(|(cpu, place)| {
        let place = (*place)?;
        Some(Pcpu { cpu: cpu as u32, core: place.core, llc: place.llc, node: place.node })
    });
    let pcpus: Vec<Pcpu> = pcpus.collect();
    if !pcpus.is_empty() {
        return pcpus;
    }
    // sysfs does not say; the probe knows how many there can be.
    (0..nr_cpus).map(|cpu| Pcpu { cpu, core: cpu, ..Pcpu::default() }).collect()
}

/// `first`: a sample of when the recording begins.
fn header(host: &Host, probe: &Probe<'_>, first: &Sample) -> Header {
    Header {
        version: env!("CARGO_PKG_VERSION").into(),
        time_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64()),
        clock_ns: monotonic_ns(),
        kernel: host.read("/proc/sys/kernel/osrelease").unwrap_or_default(),
        machine: host.read("/proc/sys/kernel/hostname").unwrap_or_default(),
        scheduler: host.loaded_scheduler().unwrap_or_else(|| "fair".into()),
        pcpus: pcpus(host, probe.nr_cpus),
        missing: first.missing.clone(),
        notes: first.notes.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::tests::FakeHost;

    #[test]
    fn pcpus_are_those_online_also_beyond_what_the_scheduler_handles() {
        let host = FakeHost::new()
            .file("/sys/devices/system/cpu/possible", "0-2047\n")
            .file("/sys/devices/system/cpu/online", "0-2,1500-1501\n");
        let numbers =
            |host: &FakeHost| -> Vec<u32> { pcpus(&host.host(), 3).iter().map(|pcpu| pcpu.cpu).collect() };
        assert_eq!(numbers(&host), [0, 1, 2, 1500, 1501]);
        assert_eq!(numbers(&FakeHost::new()), [0, 1, 2], "sysfs says nothing");
    }

    #[test]
    fn where_nothing_can_be_written_is_said_before_the_kernel_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        let failure = writable(dir.path()).unwrap_err();
        assert!(failure.status == 2 && failure.line.contains("is a folder"), "{failure:?}");
        let failure = writable(&dir.path().join("no/such/file")).unwrap_err();
        assert!(failure.status == 2 && failure.line.contains("cannot be written"), "{failure:?}");
        let failure = writable(Path::new("/dev/null")).unwrap_err();
        assert!(failure.status == 2 && failure.line.contains("is a device"), "{failure:?}");
        std::os::unix::fs::symlink("a.rec", dir.path().join("latest.rec")).unwrap();
        let failure = writable(&dir.path().join("latest.rec")).unwrap_err();
        assert!(failure.status == 2 && failure.line.contains("is a link"), "{failure:?}");
        fs::remove_file(dir.path().join("latest.rec")).unwrap();
        fs::write(dir.path().join("a.rec"), "old").unwrap();
        for name in ["new/", "new//", "new/.", "a.rec/"] {
            let failure = writable(&dir.path().join(name)).unwrap_err();
            assert!(
                failure.status == 2 && failure.line.contains("the name of a folder"),
                "{name}: {failure:?}"
            );
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was made");
        let (part, _) = writable(&dir.path().join("a.rec")).unwrap();
        assert_eq!(part, dir.path().join("a.rec.part"));
    }

    #[test]
    fn only_what_is_not_complete_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("a.rec");
        let complete = || Recorded { secs: 1.0, events: 1, overwritten: 0, lost: 0, bytes: 3 };
        let (part, _) = writable(&out).unwrap();
        // Made meanwhile.
        fs::create_dir(&out).unwrap();
        let failure = settle(Ok(complete()), &part, &out).unwrap_err();
        assert!(failure.status == 1 && failure.line.contains(part.to_str().unwrap()), "{failure:?}");
        assert!(part.exists());

        let (part, _) = writable(&dir.path().join("b.rec")).unwrap();
        let why = Failure::failed("cannot write");
        assert_eq!(settle(Err(Failure::failed("cannot write")), &part, &dir.path().join("b.rec")), Err(why));
        assert!(!part.exists());

        let out = dir.path().join("c.rec");
        let (part, _) = writable(&out).unwrap();
        settle(Ok(complete()), &part, &out).unwrap();
        assert!(out.exists() && !part.exists());
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&out).unwrap());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_name_is_kept_by_the_folder_that_has_it() {
        let dir = tempfile::tempdir().unwrap();
        keep_name(&dir.path().join("a.rec")).unwrap();
        keep_name(Path::new("a.rec")).unwrap();
        // Not the file's own fault, and no reason to fail once it has its name.
        assert!(keep_name(&dir.path().join("none/a.rec")).is_err());
    }

    #[test]
    fn a_recorder_does_not_spoil_anothers_file() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("a.rec");
        // Left behind by one that was killed.
        fs::write(dir.path().join("a.rec.part"), "old").unwrap();
        let (part, mut file) = writable(&out).unwrap();
        file.write_all(b"new").unwrap();
        let failure = writable(&out).unwrap_err();
        assert!(
            failure.status == 2 && failure.line.contains("another `cohort record` writes it"),
            "{failure:?}"
        );
        assert_eq!(fs::read(&part).unwrap(), b"new");
        drop(file);
        assert!(writable(&out).is_ok());
    }

    #[test]
    fn a_recorder_that_fails_removes_nobody_elses_file() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("a.rec");
        let failed = write(&out, |part, file| {
            // What has the file is gone before the probe has left the kernel.
            drop(BufWriter::new(file));
            assert!(part.exists());
            let failure = writable(&out).unwrap_err();
            assert!(failure.line.contains("another `cohort record` writes it"), "{failure:?}");
            Err(Failure::failed("cannot write"))
        });
        assert_eq!(failed, Err(Failure::failed("cannot write")));
        let (part, _file) = writable(&out).unwrap();
        assert!(part.exists());
    }

    #[test]
    fn what_has_come_up_since_the_begin_is_told_at_the_end() {
        let sample = |notes: &[&str]| Sample {
            notes: notes.iter().map(ToString::to_string).collect(),
            ..Sample::default()
        };
        let first = sample(&["this kernel has no yield_to"]);
        assert!(news(&first, &first).is_empty(), "it was told already");
        let last = sample(&["this kernel has no yield_to", "more VMs than the probe follows: 3 left out"]);
        assert_eq!(news(&first, &last), ["more VMs than the probe follows: 3 left out"]);
    }

    #[test]
    fn events_of_the_ring_buffer_are_those_of_the_file() {
        let to = Writer::new(io::Cursor::new(Vec::new()), &Header::default(), SLOT_BYTES, 4).unwrap();
        let mut tape = Tape { to, owners: Owners::default(), joined: false, dropped: 0, failed: None };
        let event = Event { time_ns: 5, cpu: 1, vcpu: 2, kind: Kind::Joined, a: 0, b: 3 };
        assert_eq!(tape.take(&event.to_bytes()), 0);
        assert_eq!(tape.take(&[1, 2, 3]), 0, "too short to be one");
        assert!(tape.joined && tape.to.written() == 1);
        assert_eq!(tape.take(&Event { time_ns: 7, kind: Kind::Gone, ..event }.to_bytes()), 0);
        assert_eq!(tape.owners.unowned(), [(2, 5), (2, 8)], "nobody looked who that was");
    }
}
