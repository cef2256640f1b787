// SPDX-License-Identifier: GPL-2.0-only
//! Who communicates with whom, and how much.

use std::fmt;

use crate::VCPUS_MAX;

/// Communication events between each two of a VM's vCPUs; symmetric. Counts are whole, so that equal ones are equal whatever the order of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrix {
    vcpus: usize,
    events: Vec<u64>,
}

/// More than that of one pair is all the same, and no sum of them overflows.
const EVENTS_MAX: u64 = 1 << 40;

impl Matrix {
    pub fn new(vcpus: usize) -> Self {
        let vcpus = vcpus.min(VCPUS_MAX);
        Self { vcpus, events: vec![0; vcpus * vcpus] }
    }

    pub fn vcpus(&self) -> usize {
        self.vcpus
    }

    /// Make room for a vCPU that has come.
    pub fn grow(&mut self, vcpus: usize) {
        if vcpus.min(VCPUS_MAX) <= self.vcpus {
            return;
        }
        let mut larger = Self::new(vcpus);
        for x in 0..self.vcpus {
            for y in 0..self.vcpus {
                larger.events[x * larger.vcpus + y] = self.get(x, y);
            }
        }
        *self = larger;
    }

    pub fn get(&self, x: usize, y: usize) -> u64 {
        self.events[x * self.vcpus + y]
    }

    /// Count events between x and y. A vCPU does not communicate with itself, nor with one that is not there.
    pub fn add(&mut self, x: usize, y: usize, events: u64) {
        if x == y || x >= self.vcpus || y >= self.vcpus {
            return;
        }
        let sum = self.get(x, y).saturating_add(events).min(EVENTS_MAX);
        self.events[x * self.vcpus + y] = sum;
        self.events[y * self.vcpus + x] = sum;
    }

    /// A period is over: what was counts half from now on, so that the sets follow the load.
    pub fn age(&mut self) {
        self.events.iter_mut().for_each(|events| *events /= 2);
    }

    pub fn is_empty(&self) -> bool {
        self.events.iter().all(|events| *events == 0)
    }

    /// From text: a line per vCPU with its counts, separated by blanks, commas or semicolons; on the diagonal is `-`, or a count that does not
    /// matter. What follows a # counts for nothing, and so do empty lines.
    pub fn parse(text: &str) -> Result<Self, MatrixError> {
        let rows: Vec<(usize, &str)> = text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line.split('#').next().unwrap_or_default().trim()))
            .filter(|(_, line)| !line.is_empty())
            .collect();
        let vcpus = rows.len();
        if !(1..=VCPUS_MAX).contains(&vcpus) {
            let told = format!("has {vcpus} lines of counts; allowed: 1 to {VCPUS_MAX}, one for each vCPU");
            return Err(MatrixError(told));
        }
        let mut matrix = Self::new(vcpus);
        for (x, (line, row)) in rows.iter().enumerate() {
            let words: Vec<&str> = row
                .split(|c: char| c.is_whitespace() || c == ',' || c == ';')
                .filter(|word| !word.is_empty())
                .collect();
            if words.len() != vcpus {
                let told =
                    format!("line {line}: has {} counts; allowed: {vcpus}, as there are lines", words.len());
                return Err(MatrixError(told));
            }
            for (y, word) in words.iter().enumerate() {
                // Any other text of as many words as lines would be a matrix: one word, for example.
                if y == x && *word == "-" {
                    continue;
                }
                let count = word.parse().ok().filter(|count| *count <= EVENTS_MAX).ok_or_else(|| {
                    let dash = if y == x { "- (a vCPU with itself), or " } else { "" };
                    MatrixError(format!(
                        "line {line}: count {word:?}; allowed: {dash}whole numbers from 0 to {EVENTS_MAX}"
                    ))
                })?;
                if y < x && matrix.get(y, x) != count {
                    return Err(MatrixError(format!(
                        "line {line}: vCPU {x} has {count} events with vCPU {y}, which has {} with it; allowed: the same",
                        matrix.get(y, x)
                    )));
                }
                if y > x {
                    matrix.add(x, y, count);
                }
            }
        }
        Ok(matrix)
    }
}

/// As text that can be parsed, with the vCPUs' numbers in remarks.
impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widest = self.events.iter().copied().max().unwrap_or(0).to_string().len();
        let width = widest.max(self.vcpus.saturating_sub(1).to_string().len()) + 1;
        write!(f, "#")?;
        for y in 0..self.vcpus {
            let width = if y == 0 { width - 1 } else { width };
            write!(f, "{y:>width$}")?;
        }
        for x in 0..self.vcpus {
            writeln!(f)?;
            for y in 0..self.vcpus {
                if x == y {
                    write!(f, "{:>width$}", "-")?;
                } else {
                    write!(f, "{:>width$}", self.get(x, y))?;
                }
            }
            write!(f, "  # {x}")?;
        }
        Ok(())
    }
}

/// What is wrong with a matrix that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixError(pub String);

impl fmt::Display for MatrixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MatrixError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let matrix = Matrix::parse("# three\n- 5 0\n5 - 12\n\n0,12,-\n").unwrap();
        assert_eq!((matrix.get(0, 1), matrix.get(2, 1), matrix.get(0, 2)), (5, 12, 0));
        let text = "# 0  1  2\n  -  5  0  # 0\n  5  - 12  # 1\n  0 12  -  # 2";
        assert_eq!(matrix.to_string(), text);
        assert_eq!(Matrix::parse(text).unwrap(), matrix);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let wrong = |text: &str| Matrix::parse(text).unwrap_err().to_string();
        assert!(wrong("").starts_with("has 0 lines"));
        assert!(wrong("- 1\n1").starts_with("line 2: has 1 counts; allowed: 2"));
        assert!(wrong("- x\n1 -").starts_with("line 1: count \"x\"; allowed"));
        assert!(wrong("- 1\n2 -").starts_with("line 2: vCPU 1 has 2 events with vCPU 0, which has 1"));
        assert!(wrong("- -1\n-1 -").starts_with("line 1: count \"-1\""));
        assert!(wrong("# a host's\nhost-7\n")
            .starts_with("line 2: count \"host-7\"; allowed: - (a vCPU with itself)"));
        assert!(wrong("- 1\n1 x").starts_with("line 2: count \"x\"; allowed: -"));
        assert!(wrong("- -\n- -").starts_with("line 1: count \"-\"; allowed: whole numbers"));
        assert_eq!(Matrix::parse("0 1\n1 7").unwrap(), Matrix::parse("- 1\n1 -").unwrap());
    }

    #[test]
    fn the_past_counts_less_and_less() {
        let mut matrix = Matrix::new(2);
        matrix.add(0, 1, 9);
        matrix.age();
        matrix.add(1, 0, 2);
        assert_eq!((matrix.get(0, 1), matrix.get(1, 0)), (6, 6));
        (0..3).for_each(|_| matrix.age());
        assert!(matrix.is_empty());
        matrix.add(0, 0, 1);
        matrix.add(0, 7, 1);
        assert!(matrix.is_empty(), "no such pair");
    }

    #[test]
    fn a_vcpu_that_comes_has_no_past() {
        let mut matrix = Matrix::new(2);
        matrix.add(0, 1, 3);
        matrix.grow(4);
        matrix.grow(1);
        assert_eq!((matrix.vcpus(), matrix.get(1, 0), matrix.get(3, 0)), (4, 3, 0));
    }
}
