// SPDX-License-Identifier: GPL-2.0-only
//! How deep the calls of a BPF object's programs go, and how much stack they have together. The verifier of Linux 6.18 allows a chain of eight functions, and
//! counts those that it drops later as well. Of a function's stack it counts what it has seen used, so what is counted here, from the code as the
//! compiler writes it, is the most that it can be.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;

use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, SymbolKind};

use crate::chains::{Calls, Chains};
use crate::code::{immediate, instructions, stack_bytes};

const CHAIN_MAX: usize = 8;
/// MAX_BPF_STACK.
const STACK_MAX_BYTES: usize = 512;
/// To so much each function's stack is rounded up where programs are compiled, as they are on every host with sched_ext.
const STACK_UNIT_BYTES: usize = 16;

/// A function: the section and the place there where it begins.
type Place = (usize, u64);

const INSTRUCTION: u64 = 8;
const CALL: u8 = 0x85;
/// In a call's source register: of a function of the object, not of a helper.
const PSEUDO_CALL: u8 = 1;

/// What is to be known of an object's functions.
#[derive(Default)]
struct Functions {
    names: BTreeMap<Place, String>,
    calls: Calls<Place>,
    stack_bytes: BTreeMap<Place, usize>,
}

/// Refuse an object in which some program's calls go too deep or use too much stack, and name them.
pub fn check(elf: &[u8]) -> Result<(), Box<dyn Error>> {
    let functions = read(&object::File::parse(elf)?)?;
    let chain = dearest(&functions, &|_| 1)?;
    if chain.len() > CHAIN_MAX {
        let names: Vec<&str> = chain.iter().map(|place| functions.names[place].as_str()).collect();
        return Err(format!(
            "calls go {} functions deep, Linux 6.18 allows {CHAIN_MAX}: {}",
            chain.len(),
            names.join(" > ")
        )
        .into());
    }
    let rounded = |place| functions.stack_bytes[&place].next_multiple_of(STACK_UNIT_BYTES);
    let chain = dearest(&functions, &rounded)?;
    let stack_bytes: usize = chain.iter().copied().map(rounded).sum();
    if stack_bytes > STACK_MAX_BYTES {
        let frames: Vec<String> =
            chain.iter().map(|place| format!("{} ({})", functions.names[place], rounded(*place))).collect();
        return Err(format!(
            "calls may have {stack_bytes} bytes of stack together, Linux allows {STACK_MAX_BYTES}: {}",
            frames.join(" > ")
        )
        .into());
    }
    Ok(())
}

/// The dearest chain of calls.
fn dearest(functions: &Functions, cost: &dyn Fn(Place) -> usize) -> Result<Vec<Place>, Box<dyn Error>> {
    let mut chains = Chains::of(&functions.calls, cost);
    let mut dearest = (0, Vec::new());
    for place in functions.names.keys() {
        let found = chains.dearest(*place).map_err(|circle| {
            let names: Vec<&str> = circle.iter().map(|place| functions.names[place].as_str()).collect();
            format!("a function calls itself, which Linux forbids: {}", names.join(" > "))
        })?;
        if found.0 > dearest.0 {
            dearest = found;
        }
    }
    Ok(dearest.1)
}

fn read(file: &object::File) -> Result<Functions, Box<dyn Error>> {
    let mut functions = Functions::default();
    let mut sizes = BTreeMap::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
        if let Some(section) = symbol.section_index() {
            let place = (section.0, symbol.address());
            functions.names.insert(place, symbol.name()?.to_string());
            sizes.insert(place, symbol.size());
        }
    }
    for (place @ (section, start), size) in sizes {
        let code = file.section_by_index(SectionIndex(section))?.data()?;
        let here = usize::try_from(start)?..usize::try_from(start + size)?;
        let code = code.get(here).ok_or("a function goes beyond its section")?;
        functions.stack_bytes.insert(place, stack_bytes(code));
        let called = called(file, &functions.names, place, code)?;
        functions.calls.insert(place, called);
    }
    Ok(functions)
}

/// Whom the function at that place calls.
fn called(
    file: &object::File,
    names: &BTreeMap<Place, String>,
    place: Place,
    code: &[u8],
) -> Result<BTreeSet<Place>, Box<dyn Error>> {
    let (section, start) = place;
    let relocations: BTreeMap<u64, _> = file.section_by_index(SectionIndex(section))?.relocations().collect();
    let mut found = BTreeSet::new();
    for (at, instruction) in instructions(code) {
        if instruction[0] != CALL || instruction[1] >> 4 != PSEUDO_CALL {
            continue;
        }
        let at = start + at;
        let behind = (i64::from(immediate(instruction)) + 1) * INSTRUCTION as i64;
        let mut called = (section, at.wrapping_add_signed(behind));
        if let Some(RelocationTarget::Symbol(index)) = relocations.get(&at).map(object::Relocation::target) {
            let symbol = file.symbol_by_index(index)?;
            // A static function is named by its section and its place there.
            let inside = if symbol.kind() == SymbolKind::Section { behind } else { 0 };
            // The kernel's own functions are in no section.
            let Some(section) = symbol.section_index() else { continue };
            called = (section.0, symbol.address().wrapping_add_signed(inside));
        }
        if !names.contains_key(&called) {
            return Err(format!("{}: cannot tell whom it calls", names[&place]).into());
        }
        found.insert(called);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;
    use crate::tools;

    /// Functions f0 to f(DEPTH-1), each of which calls the next one, with so much stack each; a program calls the first.
    fn object(depth: usize, stack_bytes: usize) -> Vec<u8> {
        let mut source = String::from("#define FUNCTION static __attribute__((noinline)) long\n");
        source += &format!("FUNCTION f{depth}(long x) {{ asm volatile(\"\" : \"+r\"(x)); return x; }}\n");
        let words = stack_bytes / 8;
        for i in (0..depth).rev() {
            let body = format!(
                "long a[{words}]; asm volatile(\"\" : : \"r\"(a) : \"memory\"); return f{}(x + a[0]);",
                i + 1
            );
            source += &format!("FUNCTION f{i}(long x) {{ {body} }}\n");
        }
        source += "__attribute__((section(\"tc\"))) long program(long *x) { return f0(*x); }\n";
        let dir = tempfile::tempdir().unwrap();
        let (c, o) = (dir.path().join("f.c"), dir.path().join("f.o"));
        fs::write(&c, source).unwrap();
        let clang = tools::clang().unwrap();
        let mut command = Command::new(clang);
        command.args(["-target", "bpf", "-mcpu=v3", "-O2", "-c", "-o"]).arg(&o).arg(&c);
        assert!(command.status().unwrap().success());
        fs::read(o).unwrap()
    }

    #[test]
    fn calls_that_go_too_deep_are_refused_and_named() {
        // The program, and f0 to f6.
        check(&object(6, 16)).unwrap();
        let line = check(&object(7, 16)).unwrap_err().to_string();
        assert!(line.starts_with("calls go 9 functions deep"), "{line}");
        assert!(line.ends_with("program > f0 > f1 > f2 > f3 > f4 > f5 > f6 > f7"), "{line}");
    }

    #[test]
    fn calls_with_too_much_stack_are_refused_and_named() {
        // Four times 128; the others have none.
        check(&object(4, 128)).unwrap();
        // 136 bytes count as 144.
        let line = check(&object(4, 136)).unwrap_err().to_string();
        assert!(line.starts_with("calls may have 576 bytes of stack together, Linux allows 512"), "{line}");
        assert!(line.contains("f0 (144) > f1 (144)"), "{line}");
    }
}
