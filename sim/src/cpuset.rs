// SPDX-License-Identifier: GPL-2.0-only
//! A set of pCPUs.

use crate::ids::CpuId;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet {
    words: Vec<u64>,
}

impl CpuSet {
    pub fn new() -> Self {
        Self::default()
    }

    /// All of 0 to n - 1.
    pub fn first(n: usize) -> Self {
        (0..n).map(CpuId::from).collect()
    }

    pub fn insert(&mut self, cpu: CpuId) {
        let word = cpu.index() / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu.0 % 64);
    }

    pub fn remove(&mut self, cpu: CpuId) {
        if let Some(word) = self.words.get_mut(cpu.index() / 64) {
            *word &= !(1 << (cpu.0 % 64));
        }
    }

    pub fn has(&self, cpu: CpuId) -> bool {
        self.words.get(cpu.index() / 64).is_some_and(|word| word >> (cpu.0 % 64) & 1 == 1)
    }

    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.checked_sub(1)?;
                Some(CpuId(index as u32 * 64 + bit))
            })
        })
    }

    /// The first one that is in both sets, at `from` or after it, then from the start again.
    pub fn first_in_both(&self, other: &Self, from: CpuId) -> Option<CpuId> {
        let both = |range: std::ops::Range<usize>, mask: u64| {
            let mut mask = mask;
            for index in range {
                let common = self.words.get(index).copied().unwrap_or(0)
                    & other.words.get(index).copied().unwrap_or(0)
                    & mask;
                if common != 0 {
                    return Some(CpuId(index as u32 * 64 + common.trailing_zeros()));
                }
                mask = u64::MAX;
            }
            None
        };
        let (start, end) = (from.index() / 64, self.words.len().max(other.words.len()));
        both(start..end, u64::MAX << (from.0 % 64)).or_else(|| both(0..(start + 1).min(end), u64::MAX))
    }

    pub fn words(&self) -> &[u64] {
        &self.words
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut set = Self::new();
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}
