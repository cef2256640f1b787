// SPDX-License-Identifier: GPL-2.0-only
//! Pages fault again: SPCD's re-arming ("partial" paper, section 2.2), so that touches of what KVM has mapped long ago are seen (bpf/shared_pages.h).
//!
//! `PAGEMAP_SCAN` of /proc/PID/pagemap, asked to write-protect, announces that for its range to whoever has mapped the process' memory, KVM too, and then leaves
//! out all memory that its owner has not given to userfaultfd: KVM drops what it has mapped there, and nothing else changes. Writing 4 to /proc/PID/clear_refs
//! has KVM drop all of it, and write-protects every page of the process besides, each of which then faults in the host as well.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags};
use tracing::{debug, warn};

use super::auto::{life_of, Life};
use crate::ask::Asker;
use crate::checks::Host;
use crate::stats::Vm;

/// How often a part of each VM's memory is taken.
const EVERY: Duration = Duration::from_millis(200);
/// A part is taken so many times before it is the next one's turn: a page tells something from the second time on.
const ROUNDS: u32 = 8;
/// When no fault has come of taking all of a VM's memory so many times in a row, it is left alone until one comes: nobody touches it, or nobody sees that.
const UNSEEN_MAX: u32 = 3;
const PAGE: u64 = 4096;
/// A guest's memory is the VMM's large mappings.
const MAPPING_MIN: u64 = 2 << 20;

/// Of one VM: which part of its memory is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    /// In bytes of the mappings, one behind the other.
    from: u64,
    len: u64,
    rounds: u32,
    /// When it was last taken.
    faults: u64,
    /// The last taking has come to its end.
    was_taken: bool,
    /// So many times in a row all of it was taken, and no fault came of it.
    unseen: u32,
}

pub struct Rearm {
    /// So many faults are wanted at most of each VM, each time.
    budget: u64,
    due: Instant,
    /// By slot.
    vms: BTreeMap<u32, Taken>,
    asker: Asker,
    /// It was said that faults come of nothing.
    told_unseen: bool,
}

/// A VM's window, and how the last taking of it went.
type Done = (Window, io::Result<()>);

/// A VMM that is stuck may hold its memory for as long as it is, and with it who takes a part: nobody waits for that.
struct Taken {
    life: Life,
    window: Window,
    going: Option<Receiver<Done>>,
    told: bool,
}

impl Rearm {
    pub fn new(faults_per_s: u64) -> Self {
        let budget = (faults_per_s * EVERY.as_millis() as u64 / 1000).max(1);
        let (vms, asker) = (BTreeMap::new(), Asker::default());
        Self { budget, due: Instant::now(), vms, asker, told_unseen: false }
    }

    pub fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Take a part of each VM's memory. `faults`: the map of that name.
    pub fn look(&mut self, vms: &[Vm], faults: &impl MapCore, host: &Host) -> libbpf_rs::Result<()> {
        self.due = Instant::now() + EVERY;
        self.keep(vms);
        for vm in vms.iter().filter(|vm| vm.ctx.nr_vcpus > 1) {
            let bytes = faults.lookup(&vm.slot.to_ne_bytes(), MapFlags::ANY)?;
            let count =
                bytes.as_ref().and_then(|bytes| bytes.first_chunk()).map_or(0, |b| u64::from_ne_bytes(*b));
            let (life, budget, pid, host) = (life_of(vm), self.budget, vm.ctx.tgid, host.clone());
            let taken =
                self.vms.entry(vm.slot).or_insert_with(|| Taken::new(life, Window::new(count, budget)));
            let take = move |window: &mut Window| window.take(count, budget, pid, &host);
            taken.go_on(&mut self.asker, &vm.name, count, take);
            if count == 0 && taken.window.is_in_vain(count) && !self.told_unseen {
                self.told_unseen = true;
                warn!(
                    "{}: none of its pages was seen to fault, though all were made to: they are left alone until one is",
                    vm.name
                );
            }
        }
        Ok(())
    }

    /// Forget those that are gone, also where another one has their slot.
    fn keep(&mut self, vms: &[Vm]) {
        self.vms.retain(|slot, taken| vms.iter().any(|vm| vm.slot == *slot && life_of(vm) == taken.life));
    }
}

impl Taken {
    fn new(life: Life, window: Window) -> Self {
        Self { life, window, going: None, told: false }
    }

    /// Take a part, if the last taking is over, and something may come of it. `faults`: so many have come by now.
    fn go_on(
        &mut self,
        asker: &mut Asker,
        name: &str,
        faults: u64,
        take: impl FnOnce(&mut Window) -> io::Result<()> + Send + 'static,
    ) {
        match self.going.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return,
            Some(Ok((window, result))) => {
                self.window = window;
                if let Err(error) = result {
                    self.tell(name, &error);
                }
            }
            // There was no thread for it, or too many are stuck: it is this one's turn again.
            Some(Err(TryRecvError::Disconnected)) | None => {}
        }
        self.going = None;
        if self.window.is_in_vain(faults) {
            return;
        }
        let mut window = self.window.clone();
        self.going = Some(asker.ask(move || {
            let result = take(&mut window);
            (window, result)
        }));
    }

    fn tell(&mut self, name: &str, error: &io::Error) {
        // A VM that ends while we look is still in the list.
        if !self.told && !matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) {
            let remedy = remedy(error);
            warn!("{name}: cannot make its pages fault again, so that they are not seen to be shared: {error}{remedy}");
        }
        self.told = true;
    }
}

/// /proc/PID/pagemap is readable for its owner alone, and who opens it must have the right to trace the process.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            ": run with the capabilities CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE; cohort.service has \
             the first only by a drop-in, [Service] CapabilityBoundingSet=CAP_DAC_READ_SEARCH"
        }
        _ => "",
    }
}

impl Window {
    /// As many pages as may fault.
    fn new(faults: u64, budget: u64) -> Self {
        Self { from: 0, len: budget * PAGE, rounds: 0, faults, was_taken: false, unseen: 0 }
    }

    /// So many faults have come by now. Would nothing come of it to take all of it once more?
    fn is_in_vain(&self, faults: u64) -> bool {
        faults == self.faults && self.unseen >= UNSEEN_MAX
    }

    fn take(&mut self, faults: u64, budget: u64, pid: i32, host: &Host) -> io::Result<()> {
        let pagemap = File::open(host.path(&format!("/proc/{pid}/pagemap")))?;
        let mappings = mappings(&host.read(&format!("/proc/{pid}/maps")).unwrap_or_default());
        let before = std::mem::replace(&mut self.faults, faults);
        // A scheduler that was loaded anew counts from 0.
        let new = faults.checked_sub(before).unwrap_or(faults);
        self.move_on(new, budget, mappings.iter().map(|mapping| mapping.end - mapping.start).sum());
        debug!("process {pid}: {new} faults; takes {} KiB from {} KiB on", self.len >> 10, self.from >> 10);
        parts(&mappings, self.from, self.len).into_iter().try_for_each(|part| drop_mapped(&pagemap, part))?;
        self.was_taken = true;
        Ok(())
    }

    /// So many faults have come since the last time: too many, and less is taken; few, and more is. What has been taken often enough makes room for the next.
    fn move_on(&mut self, faults: u64, budget: u64, total: u64) {
        // What the kernel did not let us take tells nothing.
        let all_was_taken = std::mem::take(&mut self.was_taken) && self.len >= total && total > 0;
        self.unseen = if faults == 0 && all_was_taken { self.unseen + 1 } else { 0 };
        if faults > budget {
            self.len = (self.len / 2).max(PAGE);
        } else if faults <= budget / 2 {
            self.len *= 2;
        }
        self.len = self.len.min(total).next_multiple_of(PAGE).max(PAGE);
        self.rounds += 1;
        if self.rounds > ROUNDS {
            self.rounds = 1;
            self.from += self.len;
        }
        // All of it is always the same part.
        if self.from >= total || self.len >= total {
            self.from = 0;
        }
    }
}

/// What a guest's memory may be in, of /proc/PID/maps: large, read and written.
fn mappings(maps: &str) -> Vec<Range<u64>> {
    let mapping = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
        (rest.starts_with("rw") && range.end.checked_sub(range.start)? >= MAPPING_MIN).then_some(range)
    };
    maps.lines().filter_map(mapping).collect()
}

/// `len` bytes from `from` on of mappings that are thought one behind the other.
fn parts(mappings: &[Range<u64>], from: u64, len: u64) -> Vec<Range<u64>> {
    let mut before = 0;
    let mut found = Vec::new();
    for mapping in mappings {
        let size = mapping.end - mapping.start;
        let (first, last) = (from.max(before), (from + len).min(before + size));
        if first < last {
            found.push(mapping.start + first - before..mapping.start + last - before);
        }
        before += size;
    }
    found
}

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct PmScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// _IOWR('f', 16, struct pm_scan_arg), since Linux 6.7.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const PM_SCAN_WP_MATCHING: u64 = 1;

/// Have KVM drop what it has mapped of that part of a process' memory.
fn drop_mapped(pagemap: &File, part: Range<u64>) -> io::Result<()> {
    let mut arg = PmScanArg {
        size: size_of::<PmScanArg>() as u64,
        flags: PM_SCAN_WP_MATCHING,
        start: part.start,
        end: part.end,
        ..PmScanArg::default()
    };
    // SAFETY: a file that is open, and a struct of the size that it says, which lives across the call; the kernel writes nothing else.
    let result = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &mut arg) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::ask::tests::stuck;
    use crate::ask::AT_ONCE;
    use crate::checks::tests::FakeHost;

    #[test]
    fn large_mappings_that_are_written_may_be_memory() {
        let maps = "7f0000000000-7f0008000000 rw-p 00000000 00:00 0\n\
                    7f0010000000-7f0010200000 rw-s 00000000 00:01 7 /dev/zero (deleted)\n\
                    7f0020000000-7f0020800000 r--p 00000000 00:00 0\n\
                    7f0030000000-7f00301ff000 rw-p 00000000 00:00 0 [heap]\n";
        assert_eq!(mappings(maps), [0x7f00_0000_0000..0x7f00_0800_0000, 0x7f00_1000_0000..0x7f00_1020_0000]);
    }

    #[test]
    fn the_service_reads_what_is_its_owners_only_where_it_is_told_to() {
        let unit = include_str!("../../systemd/cohort.service");
        let has: Vec<&str> =
            unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet=")).collect();
        let has = |name: &str| has.iter().any(|line| line.split(' ').any(|word| word == name));
        assert!(has("CAP_SYS_PTRACE") && !has("CAP_DAC_READ_SEARCH"));
        let drop_in = "CapabilityBoundingSet=CAP_DAC_READ_SEARCH";
        assert!(include_str!("../../../docs/install.md").lines().any(|line| line.trim() == drop_in));
        for denied in [libc::EACCES, libc::EPERM] {
            let remedy = remedy(&io::Error::from_raw_os_error(denied));
            assert!(remedy.contains("CAP_SYS_PTRACE") && remedy.ends_with(drop_in), "{remedy}");
        }
        assert_eq!(remedy(&io::Error::from_raw_os_error(libc::ENOTTY)), "");
    }

    #[test]
    fn a_part_may_reach_over_several_mappings() {
        let mappings = [100..200, 500..550, 900..1000];
        assert_eq!(parts(&mappings, 0, 1000), mappings);
        assert_eq!(parts(&mappings, 90, 70), [190..200, 500..550, 900..910]);
        assert_eq!(parts(&mappings, 250, 5), []);
    }

    #[test]
    fn a_part_is_as_large_as_the_faults_allow() {
        let total = 1000 * PAGE;
        let mut window = Window::new(0, 100);
        window.move_on(10, 100, total);
        assert_eq!((window.from, window.len / PAGE), (0, 200));
        window.move_on(101, 100, total);
        assert_eq!((window.from, window.len / PAGE), (0, 100));
        // Between half of it and all of it nothing changes, until the next part's turn.
        for _ in 0..ROUNDS - 2 {
            window.move_on(80, 100, total);
            assert_eq!((window.from, window.len / PAGE), (0, 100));
        }
        window.move_on(80, 100, total);
        assert_eq!((window.from, window.len / PAGE), (100 * PAGE, 100));
        for _ in 0..10 {
            window.move_on(0, 100, total);
        }
        assert_eq!((window.from, window.len), (0, total), "all of it");
        for _ in 0..20 {
            window.move_on(1000, 100, total);
        }
        assert_eq!(window.len, PAGE, "never nothing");
    }

    #[test]
    fn memory_that_is_never_seen_to_fault_is_left_alone() {
        let (budget, total) = (100, 1000 * PAGE);
        let mut window = Window::new(0, budget);
        let mut looks = 0;
        while !window.is_in_vain(0) {
            window.move_on(0, budget, total);
            window.was_taken = true;
            looks += 1;
        }
        // It doubles four times, and then all of it is taken.
        assert_eq!((looks, window.from, window.len), (4 + UNSEEN_MAX, 0, total));
        // No thread is made for it.
        let (mut asker, mut taken) = (Asker::default(), Taken::new((7, 1), window.clone()));
        taken.go_on(&mut asker, "a", 0, |_| Ok(()));
        assert!(taken.going.is_none());
        // Its vCPUs run again, say.
        taken.go_on(&mut asker, "a", 1, |_| Ok(()));
        assert!(taken.going.is_some(), "it begins again");
        window.move_on(1, budget, total);
        assert_eq!((window.unseen, window.is_in_vain(0)), (0, false));
        // Who has no memory that could be taken has not shown anything.
        let mut window = Window::new(0, budget);
        for _ in 0..20 {
            window.move_on(0, budget, 0);
            window.was_taken = true;
        }
        assert!(!window.is_in_vain(0));
    }

    #[test]
    fn a_vm_that_has_anothers_slot_and_address_begins_anew() {
        let vm = |generation: u32| Vm {
            slot: 3,
            name: "a".into(),
            ctx: crate::bpf::types::vm_ctx { kvm: 7, generation, ..Default::default() },
        };
        let mut rearm = Rearm::new(1000);
        rearm.vms.insert(3, Taken::new(life_of(&vm(1)), Window::new(0, 100)));
        rearm.keep(&[vm(1)]);
        assert_eq!(rearm.vms.len(), 1);
        // As a VMM that is started again at once.
        rearm.keep(&[vm(2)]);
        assert!(rearm.vms.is_empty());
    }

    #[test]
    fn what_could_not_be_taken_is_not_memory_that_was_not_seen_to_fault() {
        // A file on which the kernel knows no PAGEMAP_SCAN, as before Linux 6.7.
        let host = FakeHost::new()
            .file("/proc/7/pagemap", "")
            .file("/proc/7/maps", "7f0000000000-7f0000200000 rw-p 00000000 00:00 0\n");
        let mut window = Window::new(0, 1000);
        for _ in 0..3 * UNSEEN_MAX {
            assert!(window.take(0, 1000, 7, &host.host()).is_err());
        }
        assert_eq!((window.len, window.unseen), (2 << 20, 0), "all of it was tried");
        assert!(!window.is_in_vain(0));
    }

    #[test]
    fn a_scheduler_that_counts_from_0_again_has_not_seen_too_many_faults() {
        let host = FakeHost::new()
            .file("/proc/7/pagemap", "")
            .file("/proc/7/maps", "7f0000000000-7f0000200000 rw-p 00000000 00:00 0\n");
        let mut window = Window::new(500, 100);
        assert!(window.take(3, 100, 7, &host.host()).is_err(), "it cannot be taken; what is wanted counts");
        assert_eq!((window.faults, window.len / PAGE), (3, 200), "few faults have come: more is taken");
    }

    #[test]
    fn who_is_stuck_is_not_waited_for_and_goes_on_later() {
        let (goes_on, stuck) = channel::<()>();
        let (mut asker, mut taken) = (Asker::default(), Taken::new((7, 1), Window::new(0, 100)));
        taken.go_on(&mut asker, "a", 0, move |window| {
            window.from = 5;
            stuck.recv().map_err(io::Error::other)
        });
        taken.go_on(&mut asker, "a", 0, |_| unreachable!("it is stuck"));
        assert_eq!(taken.window, Window::new(0, 100));
        goes_on.send(()).unwrap();
        let (again, taken_again) = channel();
        while taken.window.from == 0 {
            let again = again.clone();
            taken.go_on(&mut asker, "a", 0, move |window| again.send(window.from).map_err(io::Error::other));
        }
        assert_eq!(taken_again.recv(), Ok(5), "from where it was");
        assert!(!taken.told);
    }

    #[test]
    fn while_too_many_are_stuck_no_more_memory_is_taken() {
        let (mut asker, mut holds) = stuck();
        let mut taken = Taken::new((7, 1), Window::new(0, 100));
        let take = |window: &mut Window| {
            window.from = 5;
            Ok(())
        };
        for _ in 0..3 {
            taken.go_on(&mut asker, "a", 0, take);
        }
        assert_eq!((asker.outstanding(), taken.window.from), (AT_ONCE, 0));
        holds.pop();
        while taken.window.from == 0 {
            taken.go_on(&mut asker, "a", 0, take);
        }
    }

    #[test]
    fn a_process_without_userfaultfd_keeps_its_memory() {
        let memory = vec![42u8; 4 << 20];
        let start = (memory.as_ptr() as u64).next_multiple_of(PAGE);
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        match drop_mapped(&pagemap, start..start + (2 << 20)) {
            // A kernel before 6.7 does not know it.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTTY), "{error}"),
            Ok(()) => assert!(memory.iter().all(|byte| *byte == 42)),
        }
    }
}
