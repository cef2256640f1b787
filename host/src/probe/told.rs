// SPDX-License-Identifier: GPL-2.0-only
//! What the guests of this host are told of KVM: their CPUID, as KVM keeps it. Asked once; nothing stays in the kernel.

use std::io::Read;
use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::Iter;

use super::guest_bpf::GuestSkelBuilder;
use super::load::refusal;
use crate::checks::Host;
use crate::say;

/// struct probe_told (bpf/probe/intf.h) has so many 32-bit words.
const WORDS: usize = 5;

/// What a vCPU's guest is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Of its VMM.
    pub pid: i32,
    /// Register eax of KVM's leaf.
    pub features: u32,
    /// Registers eax and ebx of Hyper-V's leaf of recommendations, if it is told of Hyper-V.
    pub hyper_v: Option<(u32, u32)>,
}

/// All vCPUs that are inside KVM; or why they cannot be seen, in words.
pub fn told(host: &Host) -> Result<Vec<Told>, String> {
    if let Some(refusal) = refusal(host) {
        return Err(refusal);
    }
    if let Some(why) = host.foreign_process_numbers() {
        return Err(why.into());
    }
    say::keep_libbpf_quiet();
    ask().map_err(|error| format!("the kernel refused to be asked: {error:#}"))
}

fn ask() -> libbpf_rs::Result<Vec<Told>> {
    let mut storage = MaybeUninit::uninit();
    let skel = GuestSkelBuilder::default().open(&mut storage)?.load()?;
    let link = skel.progs.probe_told_guests.attach()?;
    let mut bytes = Vec::new();
    Iter::new(&link)?.read_to_end(&mut bytes)?;
    Ok(from_bytes(&bytes))
}

fn from_bytes(bytes: &[u8]) -> Vec<Told> {
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |chunk| u32::from_ne_bytes(*chunk));
    let one = |record: &[u8]| {
        let words: Vec<u32> = record.chunks_exact(4).map(word).collect();
        let [tgid, features, hyper_v, recommended, spins] = *words else { return None };
        Some(Told { pid: tgid as i32, features, hyper_v: (hyper_v != 0).then_some((recommended, spins)) })
    };
    bytes.chunks_exact(4 * WORDS).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_the_kernel_writes_them() {
        let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let two = bytes(&[7, 0x2ab, 0, 0, 0, 8, 0, 1, 4, 0xfff]);
        let first = Told { pid: 7, features: 0x2ab, hyper_v: None };
        assert_eq!(from_bytes(&two), [first, Told { pid: 8, features: 0, hyper_v: Some((4, 0xfff)) }]);
        assert_eq!(from_bytes(&two[..39]), [first], "one that is cut off is none");
        assert_eq!(from_bytes(&[]), []);
    }
}
