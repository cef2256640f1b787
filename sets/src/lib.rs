// SPDX-License-Identifier: GPL-2.0-only
//! Sets of vCPUs that are to run together ("partial" paper): who communicates with whom, a tree of it, the sets in that tree; and how the scheduler is
//! told. One implementation, for the loader, the simulator and Python.

mod finder;
mod given;
mod matrix;
mod tree;

pub use finder::{Finder, PERIOD_S};
pub use given::{Given, GivenError};
pub use matrix::{Matrix, MatrixError};
pub use tree::{Node, Tree};

/// vCPUs of one VM, as MAX_VCPUS in bpf/intf.h.
pub const VCPUS_MAX: usize = 256;

/// The paper's t: a subtree is split if one of its children depends that much more on itself.
pub const SPLIT_DEFAULT: f64 = 1.5;

/// The sets of a VM: lists of vCPU numbers, each in order, in the order of their first.
pub type Sets = Vec<Vec<u32>>;

/// An element of the scheduler's map `set_of`, for a vCPU in a set whose first vCPU is `first`: for that VM, as long as it is that one.
pub fn entry(generation: u32, vm: u32, first: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(vm) << 16 | u64::from(first + 1)
}

/// The first vCPU of the set of each of `vcpus` vCPUs; None: it is in no set, or in one by itself, which is the same.
pub fn first_of_each(sets: &[Vec<u32>], vcpus: usize) -> Vec<Option<u32>> {
    let mut firsts = vec![None; vcpus];
    for set in sets.iter().filter(|set| set.len() > 1) {
        let first = set.iter().min().copied();
        for vcpu in set {
            if let Some(to) = firsts.get_mut(*vcpu as usize) {
                *to = first;
            }
        }
    }
    firsts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_names_vm_and_set() {
        assert_eq!(entry(3, 0x0123, 4), 0x0000_0003_0123_0005);
    }

    #[test]
    fn each_knows_the_first_of_its_set() {
        let firsts = first_of_each(&[vec![3, 1], vec![2], vec![0, 9]], 5);
        assert_eq!(firsts, [Some(0), Some(1), None, Some(1), None]);
    }
}
