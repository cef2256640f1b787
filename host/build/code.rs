// SPDX-License-Identifier: GPL-2.0-only
//! Instructions of BPF, and what they say of a function's stack.

use std::collections::BTreeSet;

/// This instruction is two long.
const LOAD_64: u8 = 0x18;
const MOVE_64: u8 = 0xbf;
const ADD_64_IMMEDIATE: u8 = 0x07;
/// The classes of instructions, their lowest three bits.
const CLASS: u8 = 0x07;
const LOAD: u8 = 0x01;
const STORE_IMMEDIATE: u8 = 0x02;
const STORE: u8 = 0x03;
const JUMP: u8 = 0x05;
const JUMP_32: u8 = 0x06;
/// The register that points to the end of the function's stack.
const FRAME: u8 = 10;

/// Its instructions, and where in the code each is.
pub fn instructions(code: &[u8]) -> impl Iterator<Item = (u64, [u8; 8])> + '_ {
    let mut second = false;
    (0..).step_by(8).zip(code.chunks_exact(8)).filter_map(move |(at, bytes)| {
        let instruction: [u8; 8] = bytes.try_into().ok()?;
        let skipped = second;
        second = !skipped && instruction[0] == LOAD_64;
        (!skipped).then_some((at, instruction))
    })
}

pub fn immediate(instruction: [u8; 8]) -> i32 {
    i32::from_le_bytes([instruction[4], instruction[5], instruction[6], instruction[7]])
}

/// How far from the end of its stack a function reads and writes, or points to.
pub fn stack_bytes(code: &[u8]) -> usize {
    // Registers that point to the end of the stack. The compiler moves that there, and takes the distance off.
    let mut frames = BTreeSet::from([FRAME]);
    let mut furthest = 0;
    for (_, instruction) in instructions(code) {
        let (to, from) = (instruction[1] & 0xf, instruction[1] >> 4);
        let class = instruction[0] & CLASS;
        let base = if class == LOAD { from } else { to };
        if matches!(class, LOAD | STORE_IMMEDIATE | STORE) && frames.contains(&base) {
            furthest = furthest.min(i32::from(i16::from_le_bytes([instruction[2], instruction[3]])));
        }
        if instruction[0] == ADD_64_IMMEDIATE && frames.contains(&to) {
            furthest = furthest.min(immediate(instruction));
        }
        if instruction[0] == MOVE_64 && frames.contains(&from) {
            frames.insert(to);
        } else if !matches!(class, STORE_IMMEDIATE | STORE | JUMP | JUMP_32) && to != FRAME {
            frames.remove(&to);
        }
    }
    usize::try_from(-i64::from(furthest)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> [u8; 8] {
        let [low, high] = offset.to_le_bytes();
        let [a, b, c, d] = immediate.to_le_bytes();
        [code, from << 4 | to, low, high, a, b, c, d]
    }

    #[test]
    fn a_functions_stack_is_as_far_as_it_reads_writes_or_points() {
        let write = instruction(0x7b, FRAME, 1, -24, 0);
        assert_eq!(stack_bytes(&write), 24);
        let to = instruction(MOVE_64, 2, FRAME, 0, 0);
        let minus = instruction(ADD_64_IMMEDIATE, 2, 0, 0, -56);
        assert_eq!(stack_bytes(&[write, to, minus].concat()), 56);
        let other = instruction(MOVE_64, 2, 7, 0, 0);
        assert_eq!(stack_bytes(&[to, other, minus].concat()), 0, "the register points elsewhere by then");
        let number = instruction(LOAD_64, 1, 0, 0, 0);
        assert_eq!(
            stack_bytes(&[number, write, minus].concat()),
            0,
            "the second half of a number is no instruction"
        );
    }
}
