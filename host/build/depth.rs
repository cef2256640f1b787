// SPDX-License-Identifier: GPL-2.0-only
//! How deep the calls of a BPF object's programs go. The verifier of Linux 6.18 allows a chain of eight functions, and counts those that it drops later as well.

use std::collections::BTreeMap;
use std::error::Error;

use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, SymbolKind};

use crate::chains::{Calls, Chains};

const CHAIN_MAX: usize = 8;

/// A function: the section and the place there where it begins.
type Place = (usize, u64);

const INSTRUCTION: u64 = 8;
const CALL: u8 = 0x85;
/// In a call's source register: of a function of the object, not of a helper.
const PSEUDO_CALL: u8 = 1;
/// This instruction is two long.
const LOAD_64: u8 = 0x18;

/// Refuse an object in which some program's calls go too deep, and name them.
pub fn check(elf: &[u8]) -> Result<(), Box<dyn Error>> {
    let file = object::File::parse(elf)?;
    let mut functions = BTreeMap::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
        if let Some(section) = symbol.section_index() {
            functions.insert((section.0, symbol.address()), (symbol.name()?.to_string(), symbol.size()));
        }
    }
    let calls = calls(&file, &functions)?;
    let names = |chain: &[Place]| {
        let names: Vec<&str> = chain.iter().map(|place| functions[place].0.as_str()).collect();
        names.join(" > ")
    };
    let mut chains = Chains::of(&calls);
    for place in functions.keys() {
        let chain = chains
            .longest(*place)
            .map_err(|circle| format!("a function calls itself, which Linux forbids: {}", names(&circle)))?;
        if chain.len() > CHAIN_MAX {
            return Err(format!(
                "calls go {} functions deep, Linux 6.18 allows {CHAIN_MAX}: {}",
                chain.len(),
                names(&chain)
            )
            .into());
        }
    }
    Ok(())
}

/// Which functions each function calls.
fn calls(
    file: &object::File,
    functions: &BTreeMap<Place, (String, u64)>,
) -> Result<Calls<Place>, Box<dyn Error>> {
    let mut found: Calls<Place> = Calls::new();
    for (&(section, start), (name, size)) in functions {
        let part = file.section_by_index(SectionIndex(section))?;
        let relocations: BTreeMap<u64, _> = part.relocations().collect();
        let code = part.data()?;
        let mut at = start;
        while at < start + size {
            let here = usize::try_from(at)?;
            let instruction = code.get(here..here + 8).ok_or("a function goes beyond its section")?;
            let immediate = i64::from(i32::from_le_bytes([
                instruction[4],
                instruction[5],
                instruction[6],
                instruction[7],
            ]));
            if instruction[0] == CALL && instruction[1] >> 4 == PSEUDO_CALL {
                let mut called = (section, at.wrapping_add_signed((immediate + 1) * 8));
                if let Some(RelocationTarget::Symbol(index)) =
                    relocations.get(&at).map(object::Relocation::target)
                {
                    let symbol = file.symbol_by_index(index)?;
                    // A static function is named by its section and its place there.
                    let inside = if symbol.kind() == SymbolKind::Section { (immediate + 1) * 8 } else { 0 };
                    // The kernel's own functions are in no section.
                    let Some(section) = symbol.section_index() else {
                        at += INSTRUCTION;
                        continue;
                    };
                    called = (section.0, symbol.address().wrapping_add_signed(inside));
                }
                if !functions.contains_key(&called) {
                    return Err(format!("{name}: cannot tell whom it calls").into());
                }
                found.entry((section, start)).or_default().insert(called);
            }
            at += if instruction[0] == LOAD_64 { 2 * INSTRUCTION } else { INSTRUCTION };
        }
    }
    Ok(found)
}
