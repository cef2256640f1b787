// SPDX-License-Identifier: GPL-2.0-only
//! Which of the probe's hooks the running kernel has, and what is not known without them.

use std::ffi::CString;
use std::ptr::NonNull;

use libbpf_sys as sys;

/// A hook that not every kernel has.
pub struct Hook {
    /// The probe's program.
    pub program: &'static str,
    pub point: Point,
    /// Counters that stay 0 without it; see `Counters`.
    pub counters: &'static [&'static str],
}

#[derive(Clone, Copy, Debug)]
pub enum Point {
    /// A function of the kernel's or of KVM's.
    Function(&'static str),
    Tracepoint(&'static str),
}

pub const OPTIONAL: &[Hook] = &[
    Hook {
        program: "probe_migrate",
        point: Point::Tracepoint("sched_migrate_task"),
        counters: &["migrations"],
    },
    Hook {
        program: "probe_spin",
        point: Point::Function("kvm_vcpu_on_spin"),
        counters: &["ple", "ple_kernel", "ple_chains", "ple_chain_max"],
    },
    Hook {
        program: "probe_yield_to",
        point: Point::Function("yield_to"),
        counters: &["yields_asked", "yields_granted"],
    },
    Hook {
        program: "probe_irq",
        point: Point::Tracepoint("kvm_apic_accept_irq"),
        counters: &["ipis_sent", "ipis_preempted", "ipi_wait_ns"],
    },
    Hook {
        program: "probe_hv_flush",
        point: Point::Tracepoint("kvm_hv_flush_tlb"),
        counters: &["tlb_hypercalls"],
    },
    Hook { program: "probe_hv_flush_ex", point: Point::Tracepoint("kvm_hv_flush_tlb_ex"), counters: &[] },
    Hook {
        program: "probe_pv_flush",
        point: Point::Tracepoint("kvm_pv_tlb_flush"),
        counters: &["tlb_deferred"],
    },
    Hook { program: "probe_hypercall", point: Point::Tracepoint("kvm_hypercall"), counters: &["kicks"] },
];

impl Point {
    pub fn name(self) -> &'static str {
        match self {
            Point::Function(name) | Point::Tracepoint(name) => name,
        }
    }
}

/// What the running kernel and its KVM say of their functions and tracepoints.
pub struct Kernel {
    base: NonNull<sys::btf>,
    kvm: Option<NonNull<sys::btf>>,
}

impl Kernel {
    pub fn running() -> Option<Self> {
        // SAFETY: takes nothing; returns null or types that are ours to free.
        let base = NonNull::new(unsafe { sys::btf__load_vmlinux_btf() })?;
        // SAFETY: a C string and types that live across the call, and then as long as what is returned: see drop().
        let kvm = NonNull::new(unsafe { sys::btf__load_module_btf(c"kvm".as_ptr(), base.as_ptr()) });
        Some(Kernel { base, kvm })
    }

    pub fn has(&self, point: Point) -> bool {
        match point {
            Point::Function(name) => self.knows(name, sys::BTF_KIND_FUNC),
            Point::Tracepoint(name) => self.knows(&format!("btf_trace_{name}"), sys::BTF_KIND_TYPEDEF),
        }
    }

    /// Does sched_switch tell the state in which the thread leaves (since 5.18)? Its function then has a fifth parameter.
    pub fn switch_tells_state(&self) -> bool {
        let Some(typedef) = self.id("btf_trace_sched_switch", sys::BTF_KIND_TYPEDEF) else { return false };
        // SAFETY: ids come from these types or are checked by libbpf, which returns null for one that does not exist; each type is followed
        // by what its kind says, here by a reference.
        unsafe {
            let typedef = sys::btf__type_by_id(self.base.as_ptr(), typedef);
            if typedef.is_null() {
                return false;
            }
            let pointer = sys::btf__type_by_id(self.base.as_ptr(), (*typedef).__bindgen_anon_1.type_);
            if pointer.is_null() {
                return false;
            }
            let function = sys::btf__type_by_id(self.base.as_ptr(), (*pointer).__bindgen_anon_1.type_);
            !function.is_null() && (*function).info & 0xffff >= 5
        }
    }

    fn knows(&self, name: &str, kind: u32) -> bool {
        self.id(name, kind).is_some()
    }

    fn id(&self, name: &str, kind: u32) -> Option<u32> {
        let name = CString::new(name).ok()?;
        let find = |types: NonNull<sys::btf>| {
            // SAFETY: types that live as long as self, and a C string that lives across the call.
            let id = unsafe { sys::btf__find_by_name_kind(types.as_ptr(), name.as_ptr(), kind) };
            u32::try_from(id).ok().filter(|id| *id > 0)
        };
        find(self.base).or_else(|| self.kvm.and_then(find))
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: ours, freed once, the one that refers to the other first.
        unsafe {
            if let Some(kvm) = self.kvm {
                sys::btf__free(kvm.as_ptr());
            }
            sys::btf__free(self.base.as_ptr());
        }
    }
}
