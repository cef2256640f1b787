// SPDX-License-Identifier: GPL-2.0-only
//! A set of pCPUs, as the kernel writes it: `0-3,8`.

use std::collections::BTreeSet;
use std::fmt;

/// The kernel has no larger numbers; a damaged file must not cost memory.
const CPU_MAX: u32 = 8191;

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// What is not of the form is left out.
    pub fn parse(text: &str) -> Self {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            Some(first..=last.min(CPU_MAX))
        };
        CpuSet(text.split(',').filter_map(range).flatten().collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pCPU, if there is one only.
    pub fn only(&self) -> Option<u32> {
        self.0.first().copied().filter(|_| self.len() == 1)
    }

    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    pub fn and(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.intersection(&other.0).copied().collect())
    }

    pub fn or(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.union(&other.0).copied().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for cpu in &self.0 {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
                _ => ranges.push((*cpu, *cpu)),
            }
        }
        let word = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
        f.write_str(&ranges.into_iter().map(word).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_as_read() {
        for text in ["", "0", "0-3", "0-3,8", "1,3,5-6"] {
            assert_eq!(CpuSet::parse(text).to_string(), text);
        }
        assert_eq!(CpuSet::parse("3,1-2\n").to_string(), "1-3");
    }

    #[test]
    fn what_is_no_list_is_empty_and_none_is_endless() {
        for text in ["x", "4-1", "-", "1-", ",,"] {
            assert!(CpuSet::parse(text).is_empty(), "{text}");
        }
        assert_eq!(CpuSet::parse("0-4294967295").len(), 8192);
    }

    #[test]
    fn one_pcpu_or_several() {
        assert_eq!(CpuSet::parse("7").only(), Some(7));
        assert_eq!(CpuSet::parse("7,8").only(), None);
        assert_eq!(CpuSet::parse("0-3").and(&CpuSet::parse("2-5")).to_string(), "2-3");
        assert_eq!(CpuSet::parse("0").or(&CpuSet::parse("2")).to_string(), "0,2");
    }
}
