// SPDX-License-Identifier: GPL-2.0-only
//! Chains of functions that call one another.

use std::collections::{BTreeMap, BTreeSet};

/// Which functions each function calls.
pub type Calls<F> = BTreeMap<F, BTreeSet<F>>;

/// Finds the longest chains.
pub struct Chains<'a, F> {
    calls: &'a Calls<F>,
    /// By where they begin.
    known: BTreeMap<F, Vec<F>>,
    /// On the way to the function that is looked at: to come to one of these again is to go round for ever.
    visited: Vec<F>,
}

impl<'a, F: Copy + Ord> Chains<'a, F> {
    pub fn of(calls: &'a Calls<F>) -> Self {
        Chains { calls, known: BTreeMap::new(), visited: Vec::new() }
    }

    /// The longest one that begins with that function.
    ///
    /// # Errors
    /// It leads to functions that call one another in a circle: they are these, and the first of them again.
    pub fn longest(&mut self, from: F) -> Result<Vec<F>, Vec<F>> {
        if let Some(chain) = self.known.get(&from) {
            return Ok(chain.clone());
        }
        let begin = self.visited.iter().position(|function| *function == from);
        self.visited.push(from);
        if let Some(begin) = begin {
            return Err(std::mem::take(&mut self.visited).split_off(begin));
        }
        let mut below = Vec::new();
        for called in self.calls.get(&from).into_iter().flatten() {
            let chain = self.longest(*called)?;
            if chain.len() > below.len() {
                below = chain;
            }
        }
        self.visited.pop();
        let mut chain = vec![from];
        chain.extend(below);
        self.known.insert(from, chain.clone());
        Ok(chain)
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
        let mut chains = Chains::of(&calls);
        assert_eq!(chains.longest(1), Ok(vec![1, 3, 2, 4, 5]));
        assert_eq!(chains.longest(3), Ok(vec![3, 2, 4, 5]));
        assert_eq!(chains.longest(7), Ok(vec![7]), "it calls nobody, and nobody calls it");
    }

    #[test]
    fn functions_that_call_one_another_in_a_circle_are_named() {
        let itself = calls(&[(1, 2), (2, 2)]);
        assert_eq!(Chains::of(&itself).longest(1), Err(vec![2, 2]));
        let round = calls(&[(1, 2), (2, 3), (3, 4), (4, 2), (5, 6)]);
        let mut chains = Chains::of(&round);
        assert_eq!(chains.longest(1), Err(vec![2, 3, 4, 2]), "who leads there is not of the circle");
        assert_eq!(chains.longest(5), Ok(vec![5, 6]), "nothing is left of the way to it");
    }
}
