// SPDX-License-Identifier: GPL-2.0-only
//! Which of the probe's hooks and of the fields that it reads the running kernel has, and what is not known without them.

use std::ffi::{CStr, CString};
use std::ptr::NonNull;

use libbpf_sys as sys;

use crate::top::sample::Sample;

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

/// Fields of `struct kvm_vcpu` that not every KVM has, as bpf/probe/kernel.h reads them.
pub struct Fields {
    /// All of them, or none is of use.
    pub paths: &'static [&'static str],
    /// Counters that say nothing without them.
    pub counters: &'static [&'static str],
    /// What is not known then.
    pub unknown: &'static str,
}

pub const FIELDS: &[Fields] = &[
    Fields {
        paths: &["preempted", "arch.preempted_in_kernel"],
        counters: &["preemptions_kernel", "wait_kernel_ns"],
        unknown: "whether a preempted vCPU was in its guest's kernel",
    },
    Fields {
        paths: &["stat.generic.blocking"],
        counters: &["blocked_ns", "halts"],
        unknown: "who is halted and who is asleep in the VMM: all of it counts as halted",
    },
    Fields {
        paths: &["stat.generic.halt_poll_success_ns", "stat.generic.halt_poll_fail_ns"],
        counters: &["halt_polled_ns"],
        unknown: "how long KVM polled before a halt",
    },
];

/// What cannot be counted, and why, one sentence each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    pub counters: Vec<&'static str>,
    pub notes: Vec<String>,
}

impl Lost {
    /// All that this kernel has no hook or no field for.
    pub fn of(kernel: &Kernel) -> Self {
        let mut lost = Lost::default();
        for hook in OPTIONAL.iter().filter(|hook| !kernel.has(hook.point) && !hook.counters.is_empty()) {
            lost.add(hook.counters, format!("this kernel has no {}", hook.point.name()));
        }
        for fields in FIELDS {
            if let Some(path) = fields.paths.iter().find(|path| !kernel.vcpu_has(path)) {
                let unknown = fields.unknown;
                lost.add(
                    fields.counters,
                    format!("this kernel's KVM has no {path}, so it is not known {unknown}"),
                );
            }
        }
        lost
    }

    pub fn add(&mut self, counters: &[&'static str], note: String) {
        self.counters.extend(counters);
        self.notes.push(note);
    }
}

/// Of nothing yet but what is missing.
impl From<Lost> for Sample {
    fn from(lost: Lost) -> Self {
        let missing = lost.counters.iter().map(ToString::to_string).collect();
        Sample { missing, notes: lost.notes, ..Sample::default() }
    }
}

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

    /// Does `struct kvm_vcpu` have this field, or field of a field (`arch.preempted_in_kernel`)?
    pub fn vcpu_has(&self, path: &str) -> bool {
        let Some(vcpu) = self.id("kvm_vcpu", sys::BTF_KIND_STRUCT) else { return false };
        path.split('.').try_fold(vcpu, |holder, name| self.member(holder, name)).is_some()
    }

    /// The type of a struct's member, which may be in an unnamed struct or union inside it.
    fn member(&self, holder: u32, name: &str) -> Option<u32> {
        // KVM's types go on where the kernel's end: one numbering.
        let types = self.kvm.unwrap_or(self.base).as_ptr();
        // SAFETY: types that live as long as self; libbpf answers with an error for a number that does not exist.
        let holder = u32::try_from(unsafe { sys::btf__resolve_type(types, holder) }).ok()?;
        // SAFETY: as above; null if there is no such type.
        let holder = unsafe { sys::btf__type_by_id(types, holder).as_ref() }?;
        if !matches!(holder.info >> 24 & 0x1f, sys::BTF_KIND_STRUCT | sys::BTF_KIND_UNION) {
            return None;
        }
        let count = (holder.info & 0xffff) as usize;
        let first = std::ptr::from_ref(holder).wrapping_add(1).cast::<sys::btf_member>();
        // SAFETY: a struct or union is followed by its members, as many as it says; libbpf has checked that when it read the types.
        let members = unsafe { std::slice::from_raw_parts(first, count) };
        members.iter().find_map(|member| {
            // SAFETY: types that live as long as self; null if there is no such text, else a C string of theirs.
            let called = unsafe {
                let text = sys::btf__name_by_offset(types, member.name_off);
                if text.is_null() {
                    c""
                } else {
                    CStr::from_ptr(text)
                }
            };
            match called.to_bytes() {
                [] => self.member(member.type_, name),
                called => (called == name.as_bytes()).then_some(member.type_),
            }
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::counters::COUNTERS;

    const VCPU: &[&CStr] = &[c"kvm", c"preempted"];
    const ARCH: &[&CStr] = &[c"preempted_in_kernel"];
    const GENERIC: &[&CStr] = &[c"halt_poll_success_ns", c"halt_poll_fail_ns", c"blocking"];

    /// A kernel without any hook, and its KVM's vCPUs: their own fields, those of `arch`, and of an unnamed struct in `stat.generic`.
    fn kernel(vcpu: &[&'static CStr], arch: &[&'static CStr], generic: &[&'static CStr]) -> Kernel {
        let made = |id: i32| {
            assert!(id > 0, "{id}");
            id
        };
        // SAFETY: types of our own, which the Kernel frees; C strings that live for ever.
        unsafe {
            let base = NonNull::new(sys::btf__new_empty()).unwrap();
            let number = made(sys::btf__add_int(base.as_ptr(), c"long".as_ptr(), 8, 0));
            let kvm = NonNull::new(sys::btf__new_empty_split(base.as_ptr())).unwrap();
            let holder = |name: &CStr, fields: &[(&CStr, i32)]| {
                let id = made(sys::btf__add_struct(kvm.as_ptr(), name.as_ptr(), 8 * fields.len() as u32));
                for (at, (field, kind)) in (0u32..).zip(fields) {
                    assert_eq!(sys::btf__add_field(kvm.as_ptr(), field.as_ptr(), *kind, 64 * at, 0), 0);
                }
                id
            };
            let numbers = |names: &[&'static CStr]| -> Vec<(&'static CStr, i32)> {
                names.iter().map(|name| (*name, number)).collect()
            };
            let unnamed = holder(c"", &numbers(generic));
            let generic = holder(c"kvm_vcpu_stat_generic", &[(c"", unnamed)]);
            let stat = holder(c"kvm_vcpu_stat", &[(c"generic", generic)]);
            let arch = holder(c"kvm_vcpu_arch", &numbers(arch));
            let arch = made(sys::btf__add_const(kvm.as_ptr(), arch));
            let mut fields = numbers(vcpu);
            fields.extend([(c"arch", arch), (c"stat", stat)]);
            holder(c"kvm_vcpu", &fields);
            Kernel { base, kvm: Some(kvm) }
        }
    }

    /// Counters and notes that are lost for want of a field.
    fn lost(kernel: &Kernel) -> Lost {
        let mut lost = Lost::of(kernel);
        let hooks: usize = OPTIONAL.iter().map(|hook| hook.counters.len()).sum();
        lost.counters.drain(..hooks);
        lost.notes.retain(|note| note.contains("KVM"));
        lost
    }

    #[test]
    fn a_kvm_with_all_fields_loses_nothing() {
        let kernel = kernel(VCPU, ARCH, GENERIC);
        assert!(kernel.vcpu_has("preempted") && kernel.vcpu_has("stat.generic.blocking"));
        assert!(!kernel.vcpu_has("stat.blocking") && !kernel.vcpu_has("preempted.blocking"));
        assert_eq!(lost(&kernel), Lost::default());
    }

    #[test]
    fn what_needs_a_field_that_is_not_there_is_lost_with_a_note() {
        let counters = |kernel: &Kernel| lost(kernel).counters;
        assert_eq!(counters(&kernel(VCPU, &[], GENERIC)), ["preemptions_kernel", "wait_kernel_ns"]);
        assert_eq!(counters(&kernel(&VCPU[..1], ARCH, GENERIC)), ["preemptions_kernel", "wait_kernel_ns"]);
        assert_eq!(counters(&kernel(VCPU, ARCH, &GENERIC[..2])), ["blocked_ns", "halts"]);
        assert_eq!(counters(&kernel(VCPU, ARCH, &GENERIC[1..])), ["halt_polled_ns"]);
        let lost = lost(&kernel(VCPU, ARCH, &[]));
        assert_eq!(lost.counters, ["blocked_ns", "halts", "halt_polled_ns"]);
        assert_eq!(
            lost.notes[0],
            "this kernel's KVM has no stat.generic.blocking, so it is not known who is halted and who is asleep in the VMM: \
             all of it counts as halted"
        );
        assert_eq!(lost.notes.len(), 2);
    }

    #[test]
    fn what_is_lost_is_a_counter() {
        let counters =
            OPTIONAL.iter().map(|hook| hook.counters).chain(FIELDS.iter().map(|fields| fields.counters));
        for name in counters.flatten().filter(|name| **name != "ple_chain_max") {
            assert!(COUNTERS.iter().any(|counter| counter.name == *name), "{name}");
        }
    }
}
