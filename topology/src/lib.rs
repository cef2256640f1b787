// SPDX-License-Identifier: GPL-2.0-only
//! Which pCPUs are near which: the map `neighbours` of the scheduler of `bpf/`. Computed here once, for the loader and the simulator.

/// Entries for one pCPU, as in `struct cohort_neighbours` of bpf/intf.h.
pub const MAX: usize = 64;
/// Where there are more pCPUs than entries: how many entries there are at most up to the end of the last-level cache, and of the node.
const MAX_TO_LLC: usize = 32;
const MAX_TO_NODE: usize = 48;

/// Where a pCPU is: any numbers, the same for those that share the thing. Cores of different caches, and caches of different nodes, have different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub core: u32,
    pub llc: u32,
    pub node: u32,
}

/// `struct cohort_neighbours` of bpf/intf.h. Copied into a map as it is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbours {
    pub n: u16,
    pub core_end: u16,
    pub llc_end: u16,
    pub node_end: u16,
    pub cpu: [u16; MAX],
}

impl Neighbours {
    const NONE: Self = Self { n: 0, core_end: 0, llc_end: 0, node_end: 0, cpu: [0; MAX] };

    /// The entries in use.
    pub fn cpus(&self) -> &[u16] {
        &self.cpu[..usize::from(self.n)]
    }

    /// As the bytes of the map's value.
    pub fn bytes(&self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        let words = [self.n, self.core_end, self.llc_end, self.node_end].into_iter().chain(self.cpu);
        for (to, word) in bytes.chunks_exact_mut(2).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn push(&mut self, cpus: impl IntoIterator<Item = usize>, end: usize) -> u16 {
        for cpu in cpus {
            let at = usize::from(self.n);
            if at >= end.min(MAX) {
                break;
            }
            self.cpu[at] = cpu as u16;
            self.n += 1;
        }
        self.n
    }
}

/// The table, by pCPU; `None`: a pCPU that does not exist or is not to be used, which has no neighbours and is nobody's.
pub fn neighbours(places: &[Option<Place>]) -> Vec<Neighbours> {
    let others = places.iter().flatten().count().saturating_sub(1);
    let (to_llc, to_node) = if others > MAX { (MAX_TO_LLC, MAX_TO_NODE) } else { (MAX, MAX) };
    let one = |(cpu, place): (usize, &Option<Place>)| {
        let Some(mine) = place else { return Neighbours::NONE };
        let has = |other: usize, is: &dyn Fn(&Place) -> bool| places[other].as_ref().is_some_and(is);
        // From the next higher number on, and round.
        let class = |is: &dyn Fn(&Place) -> bool| -> Vec<usize> {
            (1..places.len()).map(|i| (cpu + i) % places.len()).filter(|other| has(*other, is)).collect()
        };
        // How many of those come before this pCPU.
        let rank = |is: &dyn Fn(&Place) -> bool| (0..cpu).filter(|other| has(*other, is)).count();
        let core = |p: &Place| p.core == mine.core;
        let llc = |p: &Place| p.llc == mine.llc;
        let node = |p: &Place| p.node == mine.node;
        let mut table = Neighbours::NONE;
        table.core_end = table.push(class(&core), MAX);
        // Those of one core would begin with the same one in the cache, those of one cache with the same one in the node, and so on.
        let in_llc = rotated(class(&|p| llc(p) && !core(p)), rank(&core));
        table.llc_end = table.push(in_llc, to_llc);
        let in_node = class(&|p| node(p) && !llc(p));
        table.node_end = table.push(some(places, in_node, rank(&llc), to_node, &table, |p| p.llc), to_node);
        let remote = class(&|p| !node(p));
        table.push(some(places, remote, rank(&node), MAX, &table, |p| p.node), MAX);
        table
    };
    places.iter().enumerate().map(one).collect()
}

fn rotated(mut cpus: Vec<usize>, by: usize) -> Vec<usize> {
    if !cpus.is_empty() {
        let by = by % cpus.len();
        cpus.rotate_left(by);
    }
    cpus
}

/// All of these pCPUs, begun `by` further on; or, if there are more than fit, some of each group, the groups in turn, and evenly apart within a group.
fn some(
    places: &[Option<Place>],
    cpus: Vec<usize>,
    by: usize,
    end: usize,
    table: &Neighbours,
    group_of: impl Fn(&Place) -> u32,
) -> Vec<usize> {
    let room = end.saturating_sub(usize::from(table.n));
    if cpus.len() <= room {
        return rotated(cpus, by);
    }
    let mut groups: Vec<(Option<u32>, Vec<usize>)> = Vec::new();
    for cpu in cpus {
        let group = places[cpu].as_ref().map(&group_of);
        match groups.iter_mut().find(|(known, _)| *known == group) {
            Some((_, members)) => members.push(cpu),
            None => groups.push((group, vec![cpu])),
        }
    }
    let count = groups.len();
    groups.rotate_left(by % count.max(1));
    // How many of each: one more for each in turn, while it has some.
    let mut counts = vec![0; count];
    let mut left = room;
    while left > 0 {
        for (count, (_, members)) in counts.iter_mut().zip(&groups) {
            if left > 0 && *count < members.len() {
                *count += 1;
                left -= 1;
            }
        }
    }
    let mut chosen = Vec::new();
    for round in 0..counts.iter().copied().max().unwrap_or(0) {
        for (count, (_, members)) in counts.iter().zip(&groups).filter(|(count, _)| round < **count) {
            chosen.push(members[(by + round * members.len() / count) % members.len()]);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbered node by node, cache by cache, core by core.
    fn host(nodes: u32, llcs: u32, cores: u32, threads: u32) -> Vec<Option<Place>> {
        let at = |cpu: u32| Place {
            core: cpu / threads,
            llc: cpu / (threads * cores),
            node: cpu / (threads * cores * llcs),
        };
        (0..nodes * llcs * cores * threads).map(|cpu| Some(at(cpu))).collect()
    }

    /// No pCPU twice, not itself, and each in the class it belongs to.
    fn check(places: &[Option<Place>], table: &[Neighbours]) {
        assert_eq!(places.len(), table.len());
        for (cpu, n) in table.iter().enumerate() {
            let Some(mine) = places[cpu] else {
                assert_eq!(n.n, 0);
                continue;
            };
            let mut seen = vec![false; places.len()];
            seen[cpu] = true;
            assert!(n.core_end <= n.llc_end && n.llc_end <= n.node_end && n.node_end <= n.n);
            for (at, other) in n.cpus().iter().enumerate() {
                let place = places[usize::from(*other)].unwrap();
                assert!(!std::mem::replace(&mut seen[usize::from(*other)], true), "{other} twice, of {cpu}");
                let (core, llc) = (at < usize::from(n.core_end), at < usize::from(n.llc_end));
                let node = at < usize::from(n.node_end);
                assert_eq!(core, place.core == mine.core, "{cpu}: {other}");
                assert_eq!(llc, place.llc == mine.llc, "{cpu}: {other}");
                assert_eq!(node, place.node == mine.node, "{cpu}: {other}");
            }
        }
    }

    #[test]
    fn nearest_first_and_each_begins_elsewhere() {
        let places = host(2, 2, 2, 2);
        let table = neighbours(&places);
        check(&places, &table);
        assert_eq!(table[0].cpus(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(table[5].cpus(), [4, 7, 6, 1, 2, 3, 0, 13, 14, 15, 8, 9, 10, 11, 12]);
        assert_eq!(table[7].cpus()[..4], [6, 5, 4, 3]);
        assert_eq!((table[5].core_end, table[5].llc_end, table[5].node_end, table[5].n), (1, 3, 7, 15));
    }

    #[test]
    fn a_pcpu_alone_has_none() {
        assert_eq!(neighbours(&host(1, 1, 1, 1)), [Neighbours::NONE]);
        assert!(neighbours(&[]).is_empty());
    }

    #[test]
    fn sixty_five_pcpus_all_fit_and_one_more_does_not() {
        let table = neighbours(&host(1, 1, 65, 1));
        assert_eq!((table[3].n, table[3].llc_end), (64, 64));
        let table = neighbours(&host(1, 1, 66, 1));
        assert_eq!((table[3].n, table[3].llc_end), (32, 32));
        assert_eq!(table[65].cpus()[..2], [0, 1]);
    }

    #[test]
    fn of_a_large_host_there_is_some_of_everything() {
        // 1,024 pCPUs: 4 nodes, 8 caches of 16 cores of 2.
        let places = host(4, 8, 16, 2);
        let table = neighbours(&places);
        check(&places, &table);
        for n in &table {
            assert_eq!((n.core_end, n.llc_end, n.node_end, n.n), (1, 31, 48, 64));
        }
        // 17 of seven caches, 16 of three nodes, in turn, and none of them next to one another.
        assert_eq!(table[0].cpus()[31..39], [32, 64, 96, 128, 160, 192, 224, 32 + 32 / 3]);
        assert_eq!(table[0].cpus()[48..52], [256, 512, 768, 256 + 256 / 6]);
        assert_eq!(table[1].cpus()[48..52], [513, 769, 257, 513 + 256 / 6]);
        // Each pCPU is among the neighbours of as many as any other.
        let mut known = vec![0; places.len()];
        for n in &table {
            n.cpus().iter().for_each(|cpu| known[usize::from(*cpu)] += 1);
        }
        assert_eq!((known.iter().min(), known.iter().max()), (Some(&64), Some(&64)));
    }

    #[test]
    fn all_siblings_of_a_wide_core_come_first() {
        let places = host(2, 2, 2, 40);
        let table = neighbours(&places);
        check(&places, &table);
        assert_eq!((table[0].core_end, table[0].llc_end, table[0].node_end, table[0].n), (39, 39, 48, 64));
    }

    #[test]
    fn numbers_with_gaps_and_asymmetric_hosts() {
        // A node with one core of two threads, another with three cores of one; pCPU 2 does not exist.
        let at = |core, llc, node| Some(Place { core, llc, node });
        let places = [at(9, 1, 1), at(9, 1, 1), None, at(3, 7, 0), at(4, 7, 0), at(5, 8, 0)];
        let table = neighbours(&places);
        check(&places, &table);
        assert_eq!(table[4].cpus(), [3, 5, 1, 0]);
        assert_eq!((table[4].core_end, table[4].llc_end, table[4].node_end), (0, 1, 2));
    }

    #[test]
    fn bytes_are_those_of_the_struct() {
        let n = neighbours(&host(1, 1, 2, 2))[1];
        let bytes = n.bytes();
        let words: Vec<u16> = bytes.chunks_exact(2).map(|b| u16::from_ne_bytes([b[0], b[1]])).collect();
        assert_eq!(words[..7], [3, 1, 3, 3, 0, 3, 2]);
        assert_eq!(bytes.len(), 136);
    }
}
