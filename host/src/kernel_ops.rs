// SPDX-License-Identifier: GPL-2.0-only
//! Which operations the running kernel's sched_ext has: those of its `struct sched_ext_ops`, which grows from release to release.

use std::collections::BTreeSet;
use std::path::Path;
use std::ptr;

use libbpf_rs::btf::types::{Func, Struct};
use libbpf_rs::btf::Btf;

use crate::bpf::types::sched_ext_ops;

pub type Names = BTreeSet<String>;

/// A task can be queued anew from anywhere, tracing programs included. With it ops.cpu_release is out of date, and the kernel warns of it.
pub const REENQUEUE: &str = "scx_bpf_reenqueue_local___v2";

/// The operations of a kernel whose types this file describes, and [`REENQUEUE`] if it is there; None if that cannot be read.
pub fn of(btf: &Path) -> Option<Names> {
    let btf = Btf::from_path(btf).ok()?;
    let ops: Struct<'_> = btf.type_by_name("sched_ext_ops")?;
    let mut names: Names = ops.iter().filter_map(|member| Some(member.name?.to_str()?.to_string())).collect();
    if btf.type_by_name::<Func<'_>>(REENQUEUE).is_some() {
        names.insert(REENQUEUE.to_string());
    }
    Some(names)
}

/// Leave out what this kernel does not have. libbpf would refuse to load it. What it stands for does not exist there either (cgroups' weights,
/// without CONFIG_EXT_GROUP_SCHED), or the loader has refused hosts that need it (quotas), or it is a refinement (cpu.idle).
pub fn leave_out_missing(ops: &mut sched_ext_ops, kernel: &Names) {
    for (name, op) in [
        ("cgroup_init", &mut ops.cgroup_init),
        ("cgroup_exit", &mut ops.cgroup_exit),
        ("cgroup_move", &mut ops.cgroup_move),
        ("cgroup_set_weight", &mut ops.cgroup_set_weight),
        ("cgroup_set_bandwidth", &mut ops.cgroup_set_bandwidth),
        ("cgroup_set_idle", &mut ops.cgroup_set_idle),
    ] {
        if !kernel.contains(name) {
            *op = ptr::null_mut();
        }
    }
    if kernel.contains(REENQUEUE) {
        ops.cpu_acquire = ptr::null_mut();
        ops.cpu_release = ptr::null_mut();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Types as a kernel describes them: one struct, with members of type void *.
    fn btf_of(name: &str, members: &[&str]) -> Vec<u8> {
        const KIND_PTR: u32 = 2 << 24;
        const KIND_STRUCT: u32 = 4 << 24;
        let mut strings = vec![0u8];
        let mut string = |text: &str| {
            let at = strings.len() as u32;
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            at
        };
        // Type 1, void *; type 2, the struct: name, kind and number of members, size; for each its name, type and offset in bits.
        let mut types = vec![0, KIND_PTR, 0];
        types.extend([string(name), KIND_STRUCT | members.len() as u32, 8 * members.len() as u32]);
        for (i, member) in members.iter().enumerate() {
            types.extend([string(member), 1, 64 * i as u32]);
        }
        const HEADER_LEN: u32 = 24;
        let types_len = 4 * types.len() as u32;
        let magic_version_flags = u32::from_ne_bytes([0x9f, 0xeb, 1, 0]);
        let header = [magic_version_flags, HEADER_LEN, 0, types_len, types_len, strings.len() as u32];
        let words = header.iter().chain(&types).flat_map(|word| word.to_ne_bytes());
        words.chain(strings).collect()
    }

    #[test]
    fn a_kernels_operations_are_those_of_its_types() {
        let names = |content: &[u8]| {
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), content).unwrap();
            of(file.path())
        };
        let found = names(&btf_of("sched_ext_ops", &["enqueue", "cgroup_set_bandwidth"])).unwrap();
        assert!(found.iter().eq(["cgroup_set_bandwidth", "enqueue"]));
        assert_eq!(names(&btf_of("other_ops", &["enqueue"])), None);
        assert_eq!(names(b""), None);
        assert_eq!(of(Path::new("/nonexistent")), None);
    }

    #[test]
    fn what_a_kernel_lacks_is_left_out() {
        let some = || ptr::dangling_mut();
        let mut ops = sched_ext_ops {
            enqueue: some(),
            cgroup_init: some(),
            cgroup_set_idle: some(),
            ..Default::default()
        };
        leave_out_missing(&mut ops, &["enqueue", "cgroup_init"].map(String::from).into());
        assert!(!ops.enqueue.is_null() && !ops.cgroup_init.is_null());
        assert!(ops.cgroup_set_idle.is_null() && ops.cgroup_set_bandwidth.is_null());
    }
}
