// SPDX-License-Identifier: GPL-2.0-only
//! One object of the scheduler for each gang. Linux 6.18 counts the stack and the depth of calls of every function that a program mentions, also of those
//! that its verifier drops, and all gangs in one object are too much for it. So the choice of a gang is the compiler's, every other the verifier's.

use std::error::Error;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use libbpf_cargo::SkeletonBuilder;

use crate::depth;

/// Where the generated skeleton names the object's bytes.
const DATA_USED: &str = "ObjectSkeletonConfigBuilder::new(&DATA)";
const DATA_TYPE: &str = "static DATA: [u8; ";
const DATA_SECTION: &str = "#[unsafe(link_section = \".bpf.objs\")]";

/// Compile `source` once for each of `gangs`, and write to `out_dir` the skeleton that they have in common, `cohort.skel.rs`, and `objects.rs` with `OBJECTS`,
/// each gang's object.
pub fn build(
    source: &Path,
    clang: &Path,
    clang_args: &[OsString],
    gangs: &[String],
    out_dir: &Path,
) -> Result<(), Box<dyn Error>> {
    let compile = |gang: &String| -> Result<(PathBuf, String), String> {
        let name = gang.replace('-', "_");
        // Each in a folder of its own, because the skeleton calls everything after the file.
        let dir = out_dir.join(format!("gang-{gang}"));
        fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let object = dir.join("cohort.bpf.o");
        let skeleton = dir.join("cohort.skel.rs");
        let mut args = clang_args.to_vec();
        args.push(format!("-DONLY_gang=GANG_{name}").into());
        SkeletonBuilder::new()
            .source(source)
            .clang(clang)
            .clang_args(args)
            .obj(&object)
            .build_and_generate(&skeleton)
            .map_err(|e| format!("gang {gang}: {e:#}"))?;
        let elf = fs::read(&object).map_err(|e| format!("{}: {e}", object.display()))?;
        depth::check(&elf).map_err(|e| format!("gang {gang}: {e}"))?;
        let text = fs::read_to_string(&skeleton).map_err(|e| format!("{}: {e}", skeleton.display()))?;
        fs::remove_file(&skeleton).map_err(|e| format!("{}: {e}", skeleton.display()))?;
        Ok((object, without_data(&text).ok_or("the skeleton is not as libbpf-cargo used to write it")?))
    };
    let made: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = gangs.iter().map(|gang| scope.spawn(move || compile(gang))).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("the compiler's thread panicked".into())))
            .collect::<Result<_, _>>()
    })?;

    let mut objects = String::from("/// The scheduler's object for each gang.\n");
    writeln!(objects, "pub const OBJECTS: &[(&str, &[u8])] = &[")?;
    for (gang, (object, _)) in gangs.iter().zip(&made) {
        let object = object.display().to_string();
        writeln!(objects, "    ({gang:?}, &Aligned(*include_bytes!({object:?})).0),")?;
    }
    writeln!(objects, "];")?;
    fs::write(out_dir.join("objects.rs"), objects)?;

    let (_, first) = &made[0];
    for (gang, (_, other)) in gangs.iter().zip(&made) {
        if other != first {
            return Err(format!(
                "gang {gang}: its object has other maps, programs or variables than that of gang {}; a variable that only one gang uses must be a KNOB or \
                 VARIABLE, or the layouts differ",
                gangs[0]
            )
            .into());
        }
    }
    fs::write(out_dir.join("cohort.skel.rs"), first)?;
    Ok(())
}

/// The skeleton's source with the object's bytes left out: the one that `object()` names is opened.
fn without_data(skeleton: &str) -> Option<String> {
    let (before, rest) = skeleton.split_once(DATA_SECTION)?;
    let rest = rest.trim_start().strip_prefix(DATA_TYPE)?;
    let (_, after) = rest.split_once("] = [")?.1.split_once("];")?;
    let text = format!("{before}{after}");
    text.contains(DATA_USED).then(|| text.replace(DATA_USED, "ObjectSkeletonConfigBuilder::new(object())"))
}
