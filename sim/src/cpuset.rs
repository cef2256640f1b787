// SPDX-License-Identifier: GPL-2.0-only
//! A set of pCPUs.

use crate::ids::CpuId;

#[derive(Debug, Default)]
pub struct CpuSet {
    words: Vec<u64>,
    len: u32,
}

impl Clone for CpuSet {
    fn clone(&self) -> Self {
        Self { words: self.words.clone(), len: self.len }
    }

    /// Into the memory that it has.
    fn clone_from(&mut self, other: &Self) {
        self.words.clone_from(&other.words);
        self.len = other.len;
    }
}

impl PartialEq for CpuSet {
    fn eq(&self, other: &Self) -> bool {
        // One of them may have more room.
        self.len == other.len && self.words.iter().zip(&other.words).all(|(a, b)| a == b)
    }
}

impl Eq for CpuSet {}

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
        let bit = 1 << (cpu.0 % 64);
        self.len += u32::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }

    pub fn remove(&mut self, cpu: CpuId) {
        if let Some(word) = self.words.get_mut(cpu.index() / 64) {
            let bit = 1 << (cpu.0 % 64);
            self.len -= u32::from(*word & bit != 0);
            *word &= !bit;
        }
    }

    pub fn has(&self, cpu: CpuId) -> bool {
        self.words.get(cpu.index() / 64).is_some_and(|word| word >> (cpu.0 % 64) & 1 == 1)
    }

    pub fn len(&self) -> usize {
        self.len as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
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
        let end = self.words.len().min(other.words.len());
        let start = (from.index() / 64).min(end);
        let both = |index: usize, mask: u64| {
            let common = self.words[index] & other.words[index] & mask;
            (common != 0).then(|| CpuId(index as u32 * 64 + common.trailing_zeros()))
        };
        let after = u64::MAX << (from.0 % 64);
        let mask = |index: usize| if index == start { after } else { u64::MAX };
        let late = (start..end).find_map(|index| both(index, mask(index)));
        late.or_else(|| (0..end.min(start + 1)).find_map(|index| both(index, u64::MAX)))
    }

    /// Those in `first..first + size`, beginning at `from`, which is one of these, and going around.
    pub fn around(&self, first: u32, size: u32, from: CpuId) -> impl Iterator<Item = CpuId> + '_ {
        self.range(from.0, first + size).chain(self.range(first, from.0))
    }

    fn range(&self, start: u32, end: u32) -> impl Iterator<Item = CpuId> + '_ {
        let words = start as usize / 64..(end as usize).div_ceil(64).min(self.words.len());
        words.flat_map(move |index| {
            let mut left = self.words[index];
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.checked_sub(1)?;
                Some(index as u32 * 64 + bit)
            })
            .filter(move |cpu| (start..end).contains(cpu))
            .map(CpuId)
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_begin_anywhere_and_go_around() {
        let set: CpuSet = [3, 64, 70, 200].map(CpuId).into_iter().collect();
        let around = |from: u32| set.around(60, 200, CpuId(from)).map(|cpu| cpu.0).collect::<Vec<_>>();
        assert_eq!(around(60), [64, 70, 200]);
        assert_eq!(around(70), [70, 200, 64]);
        assert_eq!(around(201), [64, 70, 200]);
        assert_eq!(set.iter().map(|cpu| cpu.0).collect::<Vec<_>>(), [3, 64, 70, 200]);
    }

    #[test]
    fn the_first_in_both_is_the_next_one() {
        let a: CpuSet = [3, 64, 70, 200].map(CpuId).into_iter().collect();
        let b: CpuSet = [3, 5, 70].map(CpuId).into_iter().collect();
        for (from, expected) in [(0, 3), (3, 3), (4, 70), (70, 70), (71, 3), (500, 3)] {
            assert_eq!(a.first_in_both(&b, CpuId(from)), Some(CpuId(expected)), "from {from}");
        }
        assert_eq!(a.first_in_both(&CpuSet::new(), CpuId(0)), None);
    }

    #[test]
    fn members_are_counted_once() {
        let mut set = CpuSet::first(70);
        set.insert(CpuId(5));
        assert_eq!(set.len(), 70);
        set.remove(CpuId(5));
        set.remove(CpuId(5));
        set.remove(CpuId(500));
        assert_eq!(set.len(), 69);
    }
}
