// SPDX-License-Identifier: GPL-2.0-only
//! How long a guest takes for a PAUSE that does not exit, in a virtual machine of one page.
//!
//! A pause filter counts PAUSEs; what matters to a scheduler is how long a vCPU may spin before it is caught. Hardware takes
//! 40 to 140 cycles for one, an emulator something else again on each machine: so it is measured where it is used.

use std::time::Instant;

use anyhow::{bail, Context, Result};
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit};
use rustix::mm::{mmap_anonymous, munmap, MapFlags, ProtFlags};

/// As many as the filter counts at most, and as fit a 16-bit counter.
const PAUSES_MAX: u16 = 60_000;
/// Whoever interrupts makes one slower, so the fastest counts: so many tries, and more of short loops.
const TRIES_MIN: u32 = 20;
const TRIES_MAX: u32 = 1_000;
const PAGE: usize = 4096;
/// `again: test [si], ax; pause; dec cx; jnz again; hlt`: a load beside each PAUSE, as in a kernel's loops.
const LOOP: [u8; 8] = [0x85, 0x04, 0xf3, 0x90, 0x49, 0x75, 0xf9, 0xf4];

/// Returns picoseconds for each turn of the loop. KVM's filter must be off, or catch no loop of fewer than `filter` PAUSEs.
pub fn ps_per_pause(filter: u16) -> Result<u64> {
    // What an entry and an exit take is in both, and not in their difference.
    let long = filter.saturating_sub(1).min(PAUSES_MAX);
    let short = long / 4;
    if short == 0 {
        bail!("a filter of {filter} PAUSEs is too short to time one");
    }
    let kvm = Kvm::new().context("/dev/kvm cannot be opened")?;
    let vm = kvm.create_vm().context("KVM makes no virtual machine")?;
    // SAFETY: a fresh anonymous mapping, nobody else's memory.
    let page = unsafe {
        mmap_anonymous(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }
    .context("no memory for a page")?;
    // SAFETY: the page is ours, writable, and longer than the program.
    unsafe { std::ptr::copy_nonoverlapping(LOOP.as_ptr(), page.cast::<u8>(), LOOP.len()) };
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: PAGE as u64,
        userspace_addr: page as u64,
    };
    // SAFETY: the page stays mapped until the virtual machine is gone.
    unsafe { vm.set_user_memory_region(region) }.context("KVM takes no memory")?;
    let mut vcpu = vm.create_vcpu(0).context("KVM makes no vCPU")?;
    let mut sregs = vcpu.get_sregs().context("no segments")?;
    (sregs.cs.base, sregs.cs.selector) = (0, 0);
    vcpu.set_sregs(&sregs).context("no segments")?;
    let tries = (TRIES_MIN * u32::from(PAUSES_MAX) / u32::from(long)).clamp(TRIES_MIN, TRIES_MAX);
    let mut fastest_ns = |pauses: u16| -> Result<u128> {
        let mut fastest_ns = u128::MAX;
        for _ in 0..tries {
            let mut regs = vcpu.get_regs().context("no registers")?;
            (regs.rip, regs.rflags, regs.rsi, regs.rcx) = (0, 2, 0x800, u64::from(pauses));
            vcpu.set_regs(&regs).context("no registers")?;
            let begin = Instant::now();
            match vcpu.run().context("the virtual machine does not run")? {
                VcpuExit::Hlt => fastest_ns = fastest_ns.min(begin.elapsed().as_nanos()),
                other => bail!("the virtual machine ended with {other:?}"),
            }
        }
        Ok(fastest_ns)
    };
    let more_ns = fastest_ns(long)?.saturating_sub(fastest_ns(short)?);
    drop(vcpu);
    drop(vm);
    // SAFETY: mapped above, and its only user is gone.
    unsafe { munmap(page, PAGE) }.context("the page stays")?;
    Ok(u64::try_from(more_ns * 1000 / u128::from(long - short))?)
}
