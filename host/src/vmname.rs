// SPDX-License-Identifier: GPL-2.0-only
//! What to call a virtual machine: the name its VMM was given, else that of its cgroup, else the VMM program's own with its process number.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use crate::ask::{ask_each, start, Asker, Silent};
use crate::audit::guest_cpu::is_qemu;
use crate::checks::Host;

/// Longer names are cut. libvirt makes a file of each name, so that its names end by then; KubeVirt joins two of up to 63 characters, and
/// it is the second that tells the VMs of a namespace apart.
const NAME_MAX: usize = 255;

/// A command line is read in the process' memory, and one that is stuck may hold that for as long as it is. So it is waited for, and no longer than this; nor so long
/// while the answer for another VM is outstanding.
const PATIENCE: Duration = Duration::from_millis(200);
const PATIENCE_WHEN_STUCK: Duration = Duration::from_millis(5);
/// ... or for all together, where they are read at once.
const PATIENCE_FOR_ALL: Duration = Duration::from_secs(1);

/// The command lines of these processes, word by word, or why they were not read. Many are read at once, so that one that is stuck takes no time from the
/// others.
pub fn cmdlines(host: &Host, pids: impl Iterator<Item = i32>) -> BTreeMap<i32, Result<Vec<String>, Silent>> {
    let there = host.clone();
    ask_each(start, pids, PATIENCE_FOR_ALL, move |pid| there.cmdline(pid))
}

/// Names found so far. A VMM keeps its name; its process number is taken by another one day, hence the VM's identity in the key.
#[derive(Default)]
pub struct VmNames {
    known: HashMap<(i32, u64), String>,
    /// Those whose process does not let its command line be read.
    stuck: HashMap<(i32, u64), Receiver<Option<String>>>,
    /// Has been asked of these, and of VMs that are forgotten but still do not let it go.
    asker: Asker,
}

impl VmNames {
    pub fn get(&mut self, host: &Host, tgid: i32, kvm: u64) -> String {
        let key = (tgid, kvm);
        if let Some(name) = self.known.get(&key) {
            return name.clone();
        }
        let found = match self.stuck.get(&key).map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return nameless(tgid),
            Some(answer) => {
                self.stuck.remove(&key);
                answer.ok().flatten()
            }
            None => self.find(host, key),
        };
        match found {
            Some(name) => self.known.entry(key).or_insert(name).clone(),
            None => nameless(tgid),
        }
    }

    /// None: it says nothing, not yet, or too many are stuck for one more to be asked.
    fn find(&mut self, host: &Host, key: (i32, u64)) -> Option<String> {
        let there = host.clone();
        let answers = self.asker.ask(move || find(&there, key.0));
        let patience = if self.stuck.is_empty() { PATIENCE } else { PATIENCE_WHEN_STUCK };
        match answers.recv_timeout(patience) {
            Ok(found) => found,
            Err(RecvTimeoutError::Timeout) => {
                self.stuck.insert(key, answers);
                None
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Wait for the answers that are outstanding, all together no longer than that: for who needs a name now, and asks but once.
    pub fn wait(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        let known = &mut self.known;
        self.stuck.retain(|key, answers| {
            match answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Some(name)) => {
                    known.insert(*key, name);
                    false
                }
                Err(RecvTimeoutError::Timeout) => true,
                Ok(None) | Err(RecvTimeoutError::Disconnected) => false,
            }
        });
    }

    /// A name that is known by now. Nobody is asked for it: the process may be gone by now, and its number another one's.
    pub fn found(&self, tgid: i32, kvm: u64) -> Option<&str> {
        self.known.get(&(tgid, kvm)).map(String::as_str)
    }

    /// Forget all VMs but these.
    pub fn keep(&mut self, alive: impl Fn(i32, u64) -> bool) {
        self.known.retain(|(tgid, kvm), _| alive(*tgid, *kvm));
        self.stuck.retain(|(tgid, kvm), _| alive(*tgid, *kvm));
    }
}

fn find(host: &Host, tgid: i32) -> Option<String> {
    named(host, tgid, &host.cmdline(tgid))
}

/// What to call a VM whose VMM has this command line.
pub fn name_of(host: &Host, tgid: i32, cmdline: &[String]) -> String {
    named(host, tgid, cmdline).unwrap_or_else(|| nameless(tgid))
}

fn named(host: &Host, tgid: i32, cmdline: &[String]) -> Option<String> {
    let comm = host.comm(tgid).filter(|comm| !comm.is_empty());
    let cgroup = || from_cgroup(&host.read(&format!("/proc/{tgid}/cgroup"))?);
    // Many VMs may be of one program, and one that looks like another is of no use to anybody.
    let program = || comm.map(|comm| format!("{comm}:{tgid}"));
    let name = from_cmdline(cmdline).or_else(cgroup).or_else(program);
    name.map(|name| printable(&name)).filter(|name| !name.is_empty())
}

/// What to call a VM whose process says nothing.
pub fn nameless(tgid: i32) -> String {
    format!("pid {tgid}")
}

/// The name in a VMM's command line: QEMU's `-name NAME` or `-name guest=NAME,…`; Firecracker's `--id NAME`; crosvm's `--name NAME`.
fn from_cmdline(words: &[String]) -> Option<String> {
    let is_qemu = is_qemu(words);
    for (i, word) in words.iter().enumerate() {
        let next = || words.get(i + 1).cloned();
        let name = match word.as_str() {
            "-name" => next().map(|value| qemu_guest(&value)),
            // QEMU takes two dashes as well.
            "--name" if is_qemu => next().map(|value| qemu_guest(&value)),
            "--id" | "--name" => next(),
            _ => word.strip_prefix("--id=").or_else(|| word.strip_prefix("--name=")).map(str::to_string),
        };
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            return Some(name);
        }
    }
    None
}

/// The name in the cgroup of a machine: systemd's `NAME.scope` below `machine.slice` (elsewhere it may be a session's or a pod's), libvirt's `machine-qemu\x2d3\x2dNAME.scope`, and what is below them.
fn from_cgroup(text: &str) -> Option<String> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let parts: Vec<_> = path.split('/').skip_while(|part| *part != "machine.slice").skip(1).collect();
    // Slices hold many machines each, and are none: with the name of one all in it would be called the same.
    let first = || parts.iter().copied().find(|part| !part.ends_with(".slice"));
    let scope = parts.iter().find_map(|part| part.strip_suffix(".scope")).or_else(first)?;
    let name = scope.replace("\\x2d", "-");
    // libvirt puts its driver and a running number before the name.
    let own = name.strip_prefix("machine-").and_then(|rest| {
        let (_driver, rest) = rest.split_once('-')?;
        let (number, name) = rest.split_once('-')?;
        number.parse::<u32>().is_ok().then(|| name.to_string())
    });
    own.or(Some(name)).filter(|name| !name.is_empty())
}

/// QEMU's `-name`: `web`, `guest=web`, `web,debug-threads=on`. A comma inside the name is written twice.
fn qemu_guest(value: &str) -> String {
    const ESCAPED: &str = "\u{0}";
    let options = value.replace(",,", ESCAPED);
    let mut options = options.split(',').enumerate();
    let guest = options.find_map(|(i, option)| match option.split_once('=') {
        Some(("guest", name)) => Some(name),
        None if i == 0 => Some(option),
        _ => None,
    });
    guest.unwrap_or_default().replace(ESCAPED, ",")
}

/// Would a terminal do something else with it than show it?
fn drives_a_terminal(c: char) -> bool {
    match c {
        // What follows is written in the other direction, or on another line.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        _ => c.is_control(),
    }
}

/// Names come from other people's command lines and go to a terminal.
pub fn printable(name: &str) -> String {
    name.chars().map(|c| if drives_a_terminal(c) { '?' } else { c }).take(NAME_MAX).collect()
}

/// Of a path the whole, or those of one VM could not be told apart.
pub fn printable_path(path: &str) -> String {
    path.chars().map(|c| if drives_a_terminal(c) { '?' } else { c }).collect()
}

/// In so many characters: a name that is longer loses its middle, for names of one host often differ in their ends.
pub fn shortened(name: &str, chars_max: usize) -> String {
    let count = name.chars().count();
    if count <= chars_max {
        return name.to_string();
    }
    let tail = chars_max.saturating_sub(1) / 2;
    let head = chars_max.saturating_sub(1 + tail);
    let cut = if chars_max == 0 { "" } else { "…" };
    name.chars().take(head).collect::<String>() + cut + &name.chars().skip(count - tail).collect::<String>()
}

#[cfg(test)]
pub mod tests {
    use std::thread;

    use super::*;
    use crate::ask::tests::stuck;
    use crate::checks::tests::FakeHost;

    fn name(cmdline: &str) -> Option<String> {
        from_cmdline(&cmdline.split(' ').map(str::to_string).collect::<Vec<_>>())
    }

    /// Make a file such that who opens it to read waits for a writer.
    pub fn fifo(host: &FakeHost, path: &str) -> std::path::PathBuf {
        let path = host.host().path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a path that ends with 0, and nothing else is looked at.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        path
    }

    #[test]
    fn vmms_say_the_name_each_in_its_way() {
        assert_eq!(name("qemu-system-x86_64 -smp 2 -name web -m 256M").as_deref(), Some("web"));
        assert_eq!(name("/usr/bin/kvm -name guest=web,debug-threads=on").as_deref(), Some("web"));
        assert_eq!(name("ld.so --library-path x qemu -name a,,b,process=z").as_deref(), Some("a,b"));
        assert_eq!(name("qemu -name debug-threads=on,guest=web").as_deref(), Some("web"));
        assert_eq!(name("qemu-system-x86_64 --name web -m 256M").as_deref(), Some("web"));
        assert_eq!(name("/usr/bin/kvm --name guest=web,debug-threads=on").as_deref(), Some("web"));
        assert_eq!(name("qemu-kvm --name a,,b,process=z").as_deref(), Some("a,b"));
        assert_eq!(name("crosvm run --name guest=web,a,,b").as_deref(), Some("guest=web,a,,b"));
        assert_eq!(name("crosvm run --name=guest=web").as_deref(), Some("guest=web"));
        assert_eq!(name("firecracker --api-sock /s --id fc1").as_deref(), Some("fc1"));
        assert_eq!(name("firecracker --id=fc2").as_deref(), Some("fc2"));
        assert_eq!(name("crosvm run --name vm1").as_deref(), Some("vm1"));
        assert_eq!(name("qemu -smp 2"), None);
        assert_eq!(name("qemu -name"), None);
    }

    #[test]
    fn a_cgroup_of_its_own_has_its_name() {
        assert_eq!(from_cgroup("0::/machine.slice/web.scope\n").as_deref(), Some("web"));
        assert_eq!(from_cgroup("4:cpu:/a\n0::/machine.slice/web/vcpu0\n").as_deref(), Some("web"));
        let nested = |rest: &str| from_cgroup(&format!("0::/machine.slice/machine-ch.slice{rest}\n"));
        assert_eq!(nested("/ch@a.service").as_deref(), Some("ch@a.service"));
        assert_eq!(nested("/machine-ch-b.slice/b.scope/vcpu0").as_deref(), Some("b"));
        assert_eq!(nested(""), None, "a slice is no machine");
        for other in ["0::/\n", "0::/machine.slice\n", "0::/user.slice/user-0.slice/session-1.scope\n", ""] {
            assert_eq!(from_cgroup(other), None, "{other}");
        }
        let host = FakeHost::new()
            .file("/proc/7/comm", "qemu-system-x86\n")
            .file("/proc/7/cgroup", "0::/machine.slice/web.scope\n");
        assert_eq!(VmNames::default().get(&host.host(), 7, 1), "web");
    }

    #[test]
    fn two_without_a_name_are_their_programs_and_told_apart() {
        let host = ["/proc/7", "/proc/12345"].iter().fold(FakeHost::new(), |host, dir| {
            host.file(&format!("{dir}/comm"), "cloud-hyperviso\n")
                .file(&format!("{dir}/cmdline"), "ch\0--kernel\0x\0")
        });
        let mut names = VmNames::default();
        assert_eq!(names.get(&host.host(), 7, 1), "cloud-hyperviso:7");
        assert_eq!(names.get(&host.host(), 12345, 2), "cloud-hyperviso:12345");
        assert_eq!(names.get(&host.host(), 8, 1), "pid 8");
    }

    #[test]
    fn a_name_that_is_too_long_loses_its_middle() {
        assert_eq!(shortened("web", 3), "web");
        assert_eq!(shortened("qemu-system-x86:1234", 16), "qemu-sys…86:1234");
        assert_ne!(shortened("cloud-hyperviso:4194303", 16), shortened("cloud-hyperviso:4194302", 16));
        let lengths = |name: &str| (0..8).map(|n| shortened(name, n).chars().count()).collect::<Vec<_>>();
        assert_eq!(lengths("日本語日本語日本語"), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn long_names_that_differ_in_their_ends_alone_are_two() {
        // A namespace and a name, as KubeVirt joins them.
        let name = |vm: &str| format!("{}_{}-{vm}", "n".repeat(63), "v".repeat(61));
        let host = ["7", "8"].into_iter().fold(FakeHost::new(), |host, vm| {
            host.file(&format!("/proc/{vm}/cmdline"), &format!("qemu\0-name\0guest={}\0", name(vm)))
        });
        let mut names = VmNames::default();
        assert_eq!(names.get(&host.host(), 7, 1), name("7"));
        assert_eq!(names.get(&host.host(), 8, 2), name("8"));
        assert_eq!(printable(&"n".repeat(1000)).len(), NAME_MAX, "it has an end");
    }

    #[test]
    fn a_machines_cgroup_names_it() {
        assert_eq!(from_cgroup("0::/machine.slice/a.scope\n").as_deref(), Some("a"));
        let libvirt = "0::/machine.slice/machine-qemu\\x2d12\\x2dweb\\x2d1.scope/libvirt/emulator\n";
        assert_eq!(from_cgroup(libvirt).as_deref(), Some("web-1"));
        assert_eq!(from_cgroup("0::/user.slice/user-0.slice/session-1.scope\n"), None);
        assert_eq!(from_cgroup("1:cpu:/machine.slice/a.scope\n"), None);
    }

    #[test]
    fn a_name_cannot_drive_the_terminal() {
        let host = FakeHost::new().file("/proc/7/cmdline", "qemu\0-name\0a\x1b[2Jb\0");
        assert_eq!(VmNames::default().get(&host.host(), 7, 1), "a?[2Jb");
        // Nor have the columns behind it written from right to left.
        let host = FakeHost::new().file("/proc/7/cmdline", "qemu\0-name\0a\u{202e}b\u{2066}c\0");
        assert_eq!(VmNames::default().get(&host.host(), 7, 1), "a?b?c");
    }

    #[test]
    fn a_process_that_is_stuck_keeps_nobody_waiting() {
        let host = FakeHost::new().file("/proc/8/cmdline", "qemu\0-name\0web\0");
        let path = fifo(&host, "/proc/7/cmdline");
        let mut names = VmNames::default();
        assert_eq!(names.get(&host.host(), 7, 1), "pid 7");
        assert_eq!(names.get(&host.host(), 8, 1), "web");
        assert_eq!(names.get(&host.host(), 7, 1), "pid 7", "asked once");
        std::fs::write(&path, "qemu\0-name\0late\0").unwrap();
        while names.get(&host.host(), 7, 1) == "pid 7" {
            thread::yield_now();
        }
        assert_eq!(names.get(&host.host(), 7, 1), "late");
        assert!(names.stuck.is_empty());
    }

    #[test]
    fn while_too_many_are_stuck_further_vms_have_no_name() {
        let host = FakeHost::new().file("/proc/8/cmdline", "qemu\0-name\0web\0");
        let (asker, mut holds) = stuck();
        let mut names = VmNames { asker, ..VmNames::default() };
        assert_eq!(names.get(&host.host(), 8, 1), "pid 8");
        assert!(names.stuck.is_empty(), "it was not asked");
        holds.pop();
        while names.get(&host.host(), 8, 1) == "pid 8" {
            thread::yield_now();
        }
        assert_eq!(names.get(&host.host(), 8, 1), "web");
        assert_eq!(names.asker.outstanding(), holds.len());
    }

    #[test]
    fn who_asks_but_once_waits_for_a_name_that_comes_late() {
        let host = FakeHost::new();
        let path = fifo(&host, "/proc/7/cmdline");
        let mut names = VmNames::default();
        assert_eq!(names.get(&host.host(), 7, 1), "pid 7");
        names.wait(Duration::ZERO);
        assert_eq!(names.get(&host.host(), 7, 1), "pid 7", "it has said nothing yet");
        let writer = thread::spawn(move || std::fs::write(path, "qemu\0-name\0late\0"));
        names.wait(Duration::from_secs(60));
        writer.join().unwrap().unwrap();
        assert_eq!(names.get(&host.host(), 7, 1), "late");
    }

    #[test]
    fn a_reused_process_number_is_another_vm() {
        let host = FakeHost::new().file("/proc/7/cmdline", "qemu\0-name\0old\0");
        let mut names = VmNames::default();
        assert_eq!(names.get(&host.host(), 7, 1), "old");
        let host = host.file("/proc/7/cmdline", "qemu\0-name\0new\0");
        assert_eq!(names.get(&host.host(), 7, 1), "old", "asked once");
        assert_eq!(names.get(&host.host(), 7, 2), "new");
        names.keep(|_, kvm| kvm == 2);
        assert_eq!(names.known.len(), 1);
    }
}
