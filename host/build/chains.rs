// SPDX-License-Identifier: GPL-2.0-only
//! Chains of functions that call one another.

use std::collections::{BTreeMap, BTreeSet};

/// Which functions each function calls.
pub type Calls<F> = BTreeMap<F, BTreeSet<F>>;

/// Finds the dearest chains.
pub struct Chains<'a, F> {
    calls: &'a Calls<F>,
    /// Of one function.
    cost: &'a dyn Fn(F) -> usize,
    /// By where they begin, and what they cost.
    known: BTreeMap<F, (usize, Vec<F>)>,
    /// On the way to the function that is looked at: to come to one of these again is to go round for ever.
    visited: Vec<F>,
}

impl<'a, F: Copy + Ord> Chains<'a, F> {
    pub fn of(calls: &'a Calls<F>, cost: &'a dyn Fn(F) -> usize) -> Self {
        Chains { calls, cost, known: BTreeMap::new(), visited: Vec::new() }
    }

    /// The dearest one that begins with that function, and what it costs.
    ///
    /// # Errors
    /// It leads to functions that call one another in a circle: they are these, and the first of them again.
    pub fn dearest(&mut self, from: F) -> Result<(usize, Vec<F>), Vec<F>> {
        if let Some(chain) = self.known.get(&from) {
            return Ok(chain.clone());
        }
        let begin = self.visited.iter().position(|function| *function == from);
        self.visited.push(from);
        if let Some(begin) = begin {
            return Err(std::mem::take(&mut self.visited).split_off(begin));
        }
        let mut below = (0, Vec::new());
        for called in self.calls.get(&from).into_iter().flatten() {
            let chain = self.dearest(*called)?;
            if chain.0 > below.0 {
                below = chain;
            }
        }
        self.visited.pop();
        let mut chain = vec![from];
        chain.extend(below.1);
        let found = ((self.cost)(from) + below.0, chain);
        self.known.insert(from, found.clone());
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(pairs: &[(u32, u32)]) -> Calls<u32> {
        let mut calls = Calls::new();
        for (from, to) in pairs {
            calls.entry(*from).or_default().insert(*to);
        }
        calls
    }

    #[test]
    fn the_longest_chain_is_found_also_where_ways_meet() {
        let calls = calls(&[(1, 2), (1, 3), (2, 4), (3, 2), (4, 5)]);
        let mut chains = Chains::of(&calls, &|_| 1);
        assert_eq!(chains.dearest(1), Ok((5, vec![1, 3, 2, 4, 5])));
        assert_eq!(chains.dearest(3), Ok((4, vec![3, 2, 4, 5])));
        assert_eq!(chains.dearest(7), Ok((1, vec![7])), "it calls nobody, and nobody calls it");
    }

    #[test]
    fn a_short_chain_can_cost_more_than_a_long_one() {
        let calls = calls(&[(1, 2), (2, 3), (3, 4), (1, 9)]);
        let mut chains = Chains::of(&calls, &|function| function as usize);
        assert_eq!(chains.dearest(1), Ok((10, vec![1, 2, 3, 4])));
        let mut chains = Chains::of(&calls, &|function| if function == 9 { 10 } else { 1 });
        assert_eq!(chains.dearest(1), Ok((11, vec![1, 9])));
    }

    #[test]
    fn functions_that_call_one_another_in_a_circle_are_named() {
        let itself = calls(&[(1, 2), (2, 2)]);
        assert_eq!(Chains::of(&itself, &|_| 1).dearest(1), Err(vec![2, 2]));
        let round = calls(&[(1, 2), (2, 3), (3, 4), (4, 2), (5, 6)]);
        let mut chains = Chains::of(&round, &|_| 1);
        assert_eq!(chains.dearest(1), Err(vec![2, 3, 4, 2]), "who leads there is not of the circle");
        assert_eq!(chains.dearest(5), Ok((2, vec![5, 6])), "nothing is left of the way to it");
    }
}
