// SPDX-License-Identifier: GPL-2.0-only
//! Statistics: read from the scheduler's maps, and shown as a table of rates or as JSON.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use libbpf_rs::MapCore;
use serde_json::{json, Map, Value};

use crate::bpf::types::{vm_counts, vm_ctx};
use crate::checks::Host;
use crate::groups::{self, GroupNames, Groups};
use crate::intf;
use crate::maps;
use crate::top::fit;
use crate::vmname::{nameless, VmNames};

/// All counters at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    at: Instant,
    /// Seconds since 1970.
    time_s: f64,
    /// In the order of intf::STATS.
    totals: Vec<u64>,
    /// In the order of their slots.
    vms: Vec<Vm>,
    groups: Groups,
}

/// The scheduler's maps that are read.
pub struct Tables<'map, M> {
    pub vms: &'map M,
    pub stats: &'map M,
    pub entities: &'map M,
}

/// What is remembered from one reading to the next.
#[derive(Default)]
pub struct Names {
    vms: VmNames,
    groups: GroupNames,
}

/// A VM as the scheduler has it.
#[derive(Clone, Debug)]
pub struct Vm {
    pub slot: u32,
    pub name: String,
    pub ctx: vm_ctx,
}

/// Read all counters.
pub fn read<M: MapCore>(
    tables: &Tables<'_, M>,
    host: &Host,
    names: &mut Names,
) -> libbpf_rs::Result<Snapshot> {
    let mut totals = vec![0; intf::STATS.len()];
    // The last one is no counter, see LAYOUT_NUMBER.
    maps::for_each(tables.stats, |id, per_cpu| {
        if let Some(total) = totals.get_mut(id as usize) {
            *total = per_cpu.chunks_exact(size_of::<u64>()).map(u64_from).sum();
        }
    })?;
    // Of now: names and cgroups of thousands of VMs take their time, and rates are of the counters'.
    let (at, now) = (Instant::now(), SystemTime::now());
    let vms = vms(tables.vms, host, &mut names.vms)?;
    let groups = groups::read(tables.entities, host, &mut names.groups)?;
    let time_s = now.duration_since(UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64());
    Ok(Snapshot { at, time_s, totals, vms, groups })
}

/// The VMs in the map `vms`.
pub fn vms(vms: &impl MapCore, host: &Host, names: &mut VmNames) -> libbpf_rs::Result<Vec<Vm>> {
    let mut found = Vec::new();
    // Of another process, then.
    let foreign = host.foreign_process_numbers().is_some();
    let end = |nobody: &[u8]| vm_from(nobody).map_or(0, |nobody| nobody.end);
    maps::for_each_until(vms, end, |slot, bytes| {
        // A slot without a process is being taken at this moment.
        if let Some(ctx) = vm_from(bytes).filter(|ctx| ctx.kvm != 0 && ctx.tgid != 0) {
            let name = if foreign { nameless(ctx.tgid) } else { names.get(host, ctx.tgid, ctx.kvm) };
            found.push(Vm { slot, name, ctx });
        }
    })?;
    let alive: HashSet<_> = found.iter().map(|vm| (vm.ctx.tgid, vm.ctx.kvm)).collect();
    names.keep(|tgid, kvm| alive.contains(&(tgid, kvm)));
    Ok(found)
}

fn u64_from(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |chunk| u64::from_ne_bytes(*chunk))
}

fn vm_from(bytes: &[u8]) -> Option<vm_ctx> {
    if bytes.len() < size_of::<vm_ctx>() {
        return None;
    }
    // SAFETY: there are enough bytes, read_unaligned needs no alignment, and every bit pattern is a valid vm_ctx: it has integers only.
    Some(unsafe { bytes.as_ptr().cast::<vm_ctx>().read_unaligned() })
}

impl Snapshot {
    /// One line of JSON. All counters are cumulative since the scheduler was loaded.
    pub fn json(&self) -> String {
        let total: Map<String, Value> = intf::STATS
            .iter()
            .zip(&self.totals)
            .map(|((name, _), value)| ((*name).to_string(), json!(value)))
            .collect();
        let vms: Vec<Value> = self.vms.iter().map(Vm::json).collect();
        json!({
            "time_s": (self.time_s * 1e3).round() / 1e3,
            "total": total,
            "vms": vms,
            "cgroups": self.groups.json(),
            "taken": self.groups.taken(self.vms.len(), self.vcpus()),
        })
        .to_string()
    }

    fn vcpus(&self) -> u32 {
        self.vms.iter().map(|vm| vm.ctx.nr_vcpus).sum()
    }

    /// What happened since `before`, as rates.
    pub fn table(&self, before: &Snapshot) -> String {
        let secs = self.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let mut out = String::new();
        let vcpus = self.vcpus();
        let _ = writeln!(out, "{} VM(s), {vcpus} vCPU(s), {secs:.1} s", self.vms.len());

        let rates = intf::STATS.iter().zip(self.totals.iter().zip(&before.totals));
        let rates = rates.map(|((name, _), (now, then))| (name, now.saturating_sub(*then) as f64 / secs));
        let mut width = 0;
        for (name, rate) in rates.filter(|(_, rate)| *rate > 0.0) {
            let item = format!("{name} {}/s", number(rate));
            if width + item.len() + 2 > LINE_MAX {
                out.push('\n');
                width = 0;
            }
            let gap = if width == 0 { "  " } else { ", " };
            let _ = write!(out, "{gap}{item}");
            width += item.len() + 2;
        }
        if width > 0 {
            out.push('\n');
        }

        if !self.vms.is_empty() {
            let _ = writeln!(
                out,
                "{:<24} {:>5} {:>6} {:>7} {:>7} {:>10} {:>8} {:>8} {:>9}",
                "VM", "vCPUs", "weight", "CPU %", "wait %", "switches/s", "PLE/s", "boosts/s", "stacked/s"
            );
        }
        for vm in &self.vms {
            // Both are in the order of the slots.
            let then = before.vms.binary_search_by_key(&vm.slot, |then| then.slot).map(|at| &before.vms[at]);
            let then =
                then.ok().filter(|then| then.is_same(vm)).map(|then| then.ctx.counts).unwrap_or_default();
            let _ = writeln!(out, "{}", vm.row(&then, secs));
        }
        out
    }
}

/// Totals are wrapped at this width.
const LINE_MAX: usize = 92;
/// Of a name, in columns of the terminal; its head is as wide.
const NAME_WIDTH: u16 = 24;

impl Vm {
    /// Not merely the same slot, taken by another VM since.
    fn is_same(&self, other: &Vm) -> bool {
        (self.slot, self.ctx.kvm, self.ctx.generation) == (other.slot, other.ctx.kvm, other.ctx.generation)
    }

    fn json(&self) -> Value {
        let (c, n) = (&self.ctx, &self.ctx.counts);
        json!({
            "vm": self.slot,
            "tgid": c.tgid,
            "name": self.name,
            "weight": c.weight,
            "vcpus": c.nr_vcpus,
            "cpu_s": n.runtime_ns as f64 / 1e9,
            "wait_s": n.wait_ns as f64 / 1e9,
            "switches": n.switches,
            "ple": n.ple,
            "boosts": n.boosts,
            "stacked": n.stacked,
            "preempted_in_kernel": n.preempted_in_kernel,
        })
    }

    fn row(&self, then: &vm_counts, secs: f64) -> String {
        let (c, n) = (&self.ctx, &self.ctx.counts);
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / secs;
        let vcpus = f64::from(c.nr_vcpus.max(1));
        let cpu = rate(n.runtime_ns, then.runtime_ns) / 1e9 * 100.0;
        let wait = rate(n.wait_ns, then.wait_ns) / 1e9 * 100.0 / vcpus;
        let name = fit(&self.name, NAME_WIDTH);
        format!(
            "{name} {:>5} {:>6} {cpu:>7.1} {wait:>7.1} {:>10} {:>8} {:>8} {:>9}",
            c.nr_vcpus,
            c.weight,
            number(rate(n.switches, then.switches)),
            number(rate(n.ple, then.ple)),
            number(rate(n.boosts, then.boosts)),
            number(rate(n.stacked, then.stacked)),
        )
    }
}

/// A rate in few digits: 0, 0.4, 37, 16483.
fn number(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 {
        format!("{rate:.1}")
    } else {
        format!("{rate:.0}")
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::time::Duration;

    pub fn snapshot(at: Instant, switches: u64, vms: Vec<Vm>) -> Snapshot {
        let mut totals = vec![0; intf::STATS.len()];
        totals[0] = switches;
        Snapshot { at, time_s: 1.5, totals, vms, groups: Groups::default() }
    }

    fn vm(name: &str, generation: u32, ctx: vm_ctx) -> Vm {
        Vm {
            slot: 3,
            name: name.into(),
            ctx: vm_ctx { kvm: 0xffff, generation, tgid: 42, weight: 100, nr_vcpus: 2, ..ctx },
        }
    }

    #[test]
    fn json_has_every_counter_by_its_name() {
        let counts = vm_counts { runtime_ns: 1_500_000_000, ple: 7, ..vm_counts::default() };
        let ctx = vm_ctx { counts, ..vm_ctx::default() };
        let line = snapshot(Instant::now(), 9, vec![vm("web", 1, ctx)]).json();
        assert!(!line.contains('\n'));
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["time_s"], 1.5);
        assert_eq!(value["total"].as_object().unwrap().len(), intf::STATS.len());
        assert_eq!(value["total"]["switches"], 9);
        let vm = &value["vms"][0];
        assert_eq!((&vm["vm"], &vm["tgid"], &vm["name"]), (&json!(3), &json!(42), &json!("web")));
        assert_eq!((&value["taken"]["vms"], &value["taken"]["vcpus"]), (&json!(1), &json!(2)));
        assert_eq!((&vm["cpu_s"], &vm["ple"], &vm["vcpus"]), (&json!(1.5), &json!(7), &json!(2)));
    }

    #[test]
    fn table_shows_rates_per_second() {
        let start = Instant::now();
        let then = vm_counts { runtime_ns: 1_000_000_000, wait_ns: 0, ple: 100, ..vm_counts::default() };
        let now =
            vm_counts { runtime_ns: 4_000_000_000, wait_ns: 2_000_000_000, ple: 300, ..vm_counts::default() };
        let [then, now] = [then, now].map(|counts| vm_ctx { counts, ..vm_ctx::default() });
        let before = snapshot(start, 1_000, vec![vm("web", 1, then)]);
        let after = snapshot(start + Duration::from_secs(2), 5_000, vec![vm("web", 1, now)]);
        let table = after.table(&before);
        assert!(table.contains("switches 2000/s"), "{table}");
        let row: Vec<_> = table.lines().last().unwrap().split_whitespace().collect();
        // 3 s of CPU in 2 s; 2 s of waiting of 2 vCPUs in 2 s; 200 exits in 2 s.
        assert_eq!(row, ["web", "2", "100", "150.0", "50.0", "0", "100", "0", "0"]);
    }

    #[test]
    fn rates_are_below_their_heads_also_behind_wide_names() {
        let start = Instant::now();
        let vms = || vec![vm("日本語", 1, vm_ctx::default())];
        let later = start + Duration::from_secs(2);
        let table = snapshot(later, 0, vms()).table(&snapshot(start, 0, vms()));
        // Its three characters take six columns.
        let begin = format!("日本語{} {:>5} ", " ".repeat(18), 2);
        assert!(table.lines().last().unwrap().starts_with(&begin), "{table}");
    }

    #[test]
    fn a_slot_taken_by_a_new_vm_counts_from_zero() {
        let start = Instant::now();
        let [old, new] = [1_000, 10]
            .map(|ple| vm_ctx { counts: vm_counts { ple, ..vm_counts::default() }, ..vm_ctx::default() });
        let before = snapshot(start, 0, vec![vm("old", 1, old)]);
        let after = snapshot(start + Duration::from_secs(1), 0, vec![vm("new", 2, new)]);
        let table = after.table(&before);
        assert_eq!(table.lines().last().unwrap().split_whitespace().nth(6), Some("10"), "{table}");
    }

    #[test]
    fn a_map_of_another_layout_is_not_read() {
        assert!(vm_from(&[0; size_of::<vm_ctx>() - 1]).is_none());
        let mut bytes = [0u8; 512];
        bytes[..8].copy_from_slice(&77u64.to_ne_bytes());
        assert_eq!(vm_from(&bytes).unwrap().kvm, 77);
    }

    #[test]
    fn every_counter_is_in_the_user_guide() {
        let guide = include_str!("../../docs/cohort.md");
        for (name, _) in intf::STATS {
            assert!(guide.contains(&format!("| `{name}` |")), "docs/cohort.md does not describe {name}");
        }
        let value: Value =
            serde_json::from_str(&snapshot(Instant::now(), 0, vec![vm("", 1, vm_ctx::default())]).json())
                .unwrap();
        let fields = [&value["vms"][0], &value["taken"], &groups::tests::limited_json()];
        for name in fields.into_iter().flat_map(|fields| fields.as_object().unwrap().keys()) {
            assert!(guide.contains(&format!("| `{name}` |")), "docs/cohort.md does not describe {name}");
        }
    }
}
