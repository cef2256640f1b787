// SPDX-License-Identifier: GPL-2.0-only
//! Sets as a user writes them: a line per VM, `NAME: 0-3 4,6 5,7`, a set after the other. `NAME: all` is one set of all its vCPUs. Vcpus that are not named
//! are in no set, and so are those of VMs that are not. A VM is called as in the statistics; `*` is any VM that has no line of its own.

use std::collections::BTreeMap;
use std::fmt;

use crate::{Sets, VCPUS_MAX};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Of {
    All,
    These(Sets),
}

/// The sets of all VMs, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    vms: BTreeMap<String, Of>,
}

impl Given {
    pub fn parse(text: &str) -> Result<Self, GivenError> {
        let mut vms = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let refuse = |what: String| GivenError(format!("line {}: {what}", index + 1));
            let line = without_comment(line).trim();
            if line.is_empty() {
                continue;
            }
            // A name may have a colon; the sets have none.
            let (name, sets) = line
                .rsplit_once(':')
                .ok_or_else(|| refuse(format!("{line:?}; allowed: NAME: SET SET, as in \"web: 0-3 4,5\"")))?;
            let name = name.trim();
            if name.is_empty() {
                return Err(refuse("no VM is named; allowed: a VM's name, or * for all others".into()));
            }
            let of = parse_sets(sets).map_err(refuse)?;
            if vms.insert(name.to_string(), of).is_some() {
                return Err(refuse(format!("VM {name:?} again; allowed: one line for each")));
            }
        }
        Ok(Self { vms })
    }

    /// The sets of a VM of that name with so many vCPUs.
    pub fn of(&self, name: &str, vcpus: usize) -> Sets {
        match self.vms.get(name).or_else(|| self.vms.get("*")) {
            None => Sets::new(),
            Some(Of::All) => vec![(0..vcpus as u32).collect()],
            Some(Of::These(sets)) => {
                let there = |set: &Vec<u32>| -> Vec<u32> {
                    set.iter().copied().filter(|vcpu| (*vcpu as usize) < vcpus).collect()
                };
                sets.iter().map(there).filter(|set| !set.is_empty()).collect()
            }
        }
    }

    /// The VMs named.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.vms.keys().map(String::as_str).filter(|name| *name != "*")
    }
}

/// A VM's name may have a `#`, as in `ci#12`: one begins a comment at the line's begin or after a space only.
fn without_comment(line: &str) -> &str {
    let begins = |at: &usize| line[..*at].chars().next_back().is_none_or(char::is_whitespace);
    let end = line.match_indices('#').map(|(at, _)| at).find(begins);
    &line[..end.unwrap_or(line.len())]
}

fn parse_sets(text: &str) -> Result<Of, String> {
    if text.trim() == "all" {
        return Ok(Of::All);
    }
    let mut sets = Sets::new();
    let mut seen = [false; VCPUS_MAX];
    for word in text.split_whitespace() {
        let mut set = Vec::new();
        for part in word.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.parse().ok().filter(|vcpu: &usize| *vcpu < VCPUS_MAX);
            let range = number(first).zip(number(last)).filter(|(first, last)| first <= last);
            let (first, last) = range.ok_or_else(|| {
                format!("vCPUs {part:?}; allowed: numbers from 0 to {}, ranges as 0-3, or all", VCPUS_MAX - 1)
            })?;
            for (vcpu, seen) in seen.iter_mut().enumerate().take(last + 1).skip(first) {
                if std::mem::replace(seen, true) {
                    return Err(format!("vCPU {vcpu} again; allowed: each in one set"));
                }
                set.push(vcpu as u32);
            }
        }
        set.sort_unstable();
        sets.push(set);
    }
    sets.sort();
    Ok(Of::These(sets))
}

/// What is wrong with sets that were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenError(pub String);

impl fmt::Display for GivenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GivenError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_vm() {
        let given =
            Given::parse("# two\nweb: 4-7 0,2-3  # and 1 for itself\ndb : all\n\npid 7:: 0,1\n").unwrap();
        assert_eq!(given.of("web", 8), [vec![0, 2, 3], vec![4, 5, 6, 7]]);
        assert_eq!(given.of("web", 3), [vec![0, 2]], "those that it has");
        assert_eq!(given.of("db", 3), [vec![0, 1, 2]]);
        assert_eq!(given.of("pid 7:", 2), [vec![0, 1]]);
        assert!(given.of("mail", 4).is_empty());
        assert!(given.names().eq(["db", "pid 7:", "web"]));
    }

    #[test]
    fn a_name_may_have_what_begins_a_comment() {
        let given = Given::parse("  # all\nci#12: 0,1\t# web: 2\n#ci#13: 0,1\nc#: all #\n").unwrap();
        assert!(given.names().eq(["c#", "ci#12"]));
        assert_eq!(given.of("ci#12", 4), [vec![0, 1]]);
        assert_eq!(given.of("c#", 2), [vec![0, 1]]);
        let wrong = Given::parse("web: 0-3# and so on").unwrap_err().to_string();
        assert!(wrong.starts_with("line 1: vCPUs \"0-3#\"; allowed:"), "{wrong}");
    }

    #[test]
    fn a_star_is_everybody_else() {
        let given = Given::parse("*: all\nweb:\n").unwrap();
        assert_eq!(given.of("db", 2), [vec![0, 1]]);
        assert!(given.of("web", 2).is_empty());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let wrong = |text: &str| Given::parse(text).unwrap_err().to_string();
        assert!(wrong("\nweb").starts_with("line 2: \"web\"; allowed: NAME: SET SET"));
        assert!(wrong(": 1").starts_with("line 1: no VM is named"));
        assert!(wrong("web: 0-3 3").starts_with("line 1: vCPU 3 again"));
        assert!(wrong("web: 1\nweb: 2").starts_with("line 2: VM \"web\" again"));
        for part in ["x", "3-1", "256", "0-", "-1", "1,,2"] {
            let line = wrong(&format!("web: {part}"));
            assert!(line.contains("allowed: numbers from 0 to 255"), "{line}");
        }
    }
}
