// SPDX-License-Identifier: GPL-2.0-only
//! Sets of vCPUs that run together (`--gang partial`): from a file or found (auto.rs), told to the scheduler while it runs.

mod auto;
mod board;
mod canvas;
mod file;
mod picture;
mod rearm;
pub mod show;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use cohort_sets::{entry, first_of_each, Sets};
use libbpf_rs::MapCore;
use tracing::{info, warn};

use crate::checks::Host;
use crate::intf;
use crate::say::Failure;
use crate::stats::{self, Vm};
use crate::vmname::VmNames;

pub use auto::Auto;
use board::Board;
use file::SetsFile;
use rearm::Rearm;

/// How often to look for VMs that have come, and at the file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Where the sets come from.
enum Source {
    File(SetsFile),
    Auto(Auto),
}

/// Tells the scheduler about sets, now and then.
pub struct Teller {
    source: Source,
    /// Makes pages fault, if faults count.
    rearm: Option<Rearm>,
    /// The scheduler that runs sees faults.
    sees_faults: bool,
    names: VmNames,
    due: Instant,
}

/// The scheduler's maps that this is about.
pub struct Told<'a, M> {
    pub vms: &'a M,
    pub set_of: &'a M,
    pub traffic: &'a M,
    pub faults: &'a M,
}

impl Teller {
    pub fn from_file(path: PathBuf) -> Result<Self, Failure> {
        Ok(Self::new(Source::File(SetsFile::open(path)?), None))
    }

    /// `faults_per_s`: so many may be provoked in each VM, so that shared pages are seen.
    pub fn auto(auto: Auto, faults_per_s: Option<u64>) -> Self {
        Self::new(Source::Auto(auto), faults_per_s.map(Rearm::new))
    }

    fn new(source: Source, rearm: Option<Rearm>) -> Self {
        Self { source, rearm, sees_faults: false, names: VmNames::default(), due: Instant::now() }
    }

    /// The scheduler starts, knowing no sets. `sees_faults`: it sees when a vCPU faults on its guest's page.
    pub fn start(&mut self, sees_faults: bool) {
        self.due = Instant::now();
        self.sees_faults = sees_faults;
        if let Source::Auto(auto) = &mut self.source {
            auto.start();
        }
    }

    /// Tell what has changed, if it is time to look.
    pub fn tell<M: MapCore>(&mut self, maps: &Told<M>, host: &Host) {
        if let Err(error) = self.try_rearm(maps, host) {
            warn!("cannot make pages fault: {error:#}");
        }
        let now = Instant::now();
        if now < self.due {
            return;
        }
        self.due = now + LOOK_EVERY;
        if let Err(error) = self.try_tell(maps, host) {
            warn!("cannot tell the scheduler which vCPUs are sets: {error:#}");
        }
    }

    /// Is it time to make pages fault?
    fn rearms(&self, host: &Host) -> bool {
        // Guests would pay for faults that nobody sees, and more and more of their memory be taken for want of them.
        if !self.sees_faults {
            return false;
        }
        // Another process' pages would be taken.
        self.rearm.as_ref().is_some_and(|rearm| rearm.is_due() && host.foreign_process_numbers().is_none())
    }

    fn try_rearm<M: MapCore>(&mut self, maps: &Told<M>, host: &Host) -> libbpf_rs::Result<()> {
        if !self.rearms(host) {
            return Ok(());
        }
        let Some(rearm) = &mut self.rearm else { return Ok(()) };
        rearm.look(&stats::vms(maps.vms, host, &mut self.names)?, maps.faults, host)
    }

    fn try_tell<M: MapCore>(&mut self, maps: &Told<M>, host: &Host) -> libbpf_rs::Result<()> {
        let all = stats::vms(maps.vms, host, &mut self.names)?;
        match &mut self.source {
            Source::File(file) => {
                if file.has_changed() {
                    info!("sets read anew from {}", file.path());
                }
            }
            Source::Auto(auto) => {
                if !auto.look(&all, maps.traffic)? {
                    return Ok(());
                }
            }
        }
        let board = Board::open(maps.set_of)?;
        for vm in &all {
            let sets = match &self.source {
                Source::File(file) => file.sets_of(vm),
                Source::Auto(auto) => auto.sets_of(vm),
            };
            write(&board, vm, &sets);
        }
        Ok(())
    }
}

/// Write down a VM's sets, where its vCPUs are in the scheduler's maps.
fn write(board: &Board, vm: &Vm, sets: &Sets) {
    let vcpus = vm.ctx.vcpu_end as usize;
    for (vcpu, first) in first_of_each(sets, vcpus).into_iter().enumerate() {
        let block = vm.ctx.blocks.get(vcpu / intf::VCPU_BLOCK as usize).copied().unwrap_or(0);
        let Some(block) = block.checked_sub(1) else { continue };
        let index = block * intf::VCPU_BLOCK + vcpu as u32 % intf::VCPU_BLOCK;
        board.put(index, first.map_or(0, |first| entry(vm.ctx.generation, vm.slot, first)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::tests::FakeHost;

    #[test]
    fn pages_are_made_to_fault_only_where_that_is_seen() {
        let host = FakeHost::new();
        let mut teller = Teller::auto(Auto::new(1.5), Some(5000));
        teller.start(false);
        assert!(!teller.rearms(&host.host()));
        teller.start(true);
        assert!(teller.rearms(&host.host()));
        // The scheduler was loaded anew, and the kernel refused the program that sees faults.
        teller.start(false);
        assert!(!teller.rearms(&host.host()));
        teller.start(true);
        assert!(!teller.rearms(&host.in_a_container().host()), "other processes' pages");
        let mut teller = Teller::auto(Auto::new(1.5), None);
        teller.start(true);
        assert!(!teller.rearms(&FakeHost::new().host()), "interrupts alone count");
    }
}
