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
        Self { source, rearm, names: VmNames::default(), due: Instant::now() }
    }

    /// The scheduler starts, knowing no sets.
    pub fn start(&mut self) {
        self.due = Instant::now();
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

    fn try_rearm<M: MapCore>(&mut self, maps: &Told<M>, host: &Host) -> libbpf_rs::Result<()> {
        let Some(rearm) = &mut self.rearm else { return Ok(()) };
        // Another process' pages would be taken.
        if !rearm.is_due() || host.foreign_process_numbers().is_some() {
            return Ok(());
        }
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
