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
const PAUSES: u16 = 60_000;
/// Whoever interrupts makes one slower, so the fastest counts.
const TRIES: u32 = 20;
const PAGE: usize = 4096;
/// `mov cx, PAUSES; again: test [si], ax; pause; dec cx; jnz again; hlt`: a load beside each PAUSE, as in a kernel's loops.
const LOOP: [u8; 11] =
    [0xb9, PAUSES.to_le_bytes()[0], PAUSES.to_le_bytes()[1], 0x85, 0x04, 0xf3, 0x90, 0x49, 0x75, 0xf9, 0xf4];

/// Returns picoseconds for each turn of the loop. KVM's filter must be off, or as wide as it gets.
pub fn ps_per_pause() -> Result<u64> {
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
    let mut fastest_ns = u128::MAX;
    for _ in 0..TRIES {
        let mut regs = vcpu.get_regs().context("no registers")?;
        (regs.rip, regs.rflags, regs.rsi) = (0, 2, 0x800);
        vcpu.set_regs(&regs).context("no registers")?;
        let begin = Instant::now();
        match vcpu.run().context("the virtual machine does not run")? {
            VcpuExit::Hlt => fastest_ns = fastest_ns.min(begin.elapsed().as_nanos()),
            other => bail!("the virtual machine ended with {other:?}"),
        }
    }
    drop(vcpu);
    drop(vm);
    // SAFETY: mapped above, and its only user is gone.
    unsafe { munmap(page, PAGE) }.context("the page stays")?;
    let ps = fastest_ns * 1000 / u128::from(PAUSES);
    Ok(u64::try_from(ps)?)
}
