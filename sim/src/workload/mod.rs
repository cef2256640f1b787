// SPDX-License-Identifier: GPL-2.0-only
//! Workloads: what programs in a guest do with their time, as scripts of small steps.
//!
//! | module | what it is |
//! |---|---|
//! | [`program`] | a program as its file says it; `words` reads its values, `check` its rules |
//! | [`dist`] | times, fixed and drawn |
//! | [`code`] | a program as a VM executes it; `compile` makes it: names resolved, loops flat |
//! | [`rt_app`] | rt-app's JSON |
//!
//! The models of the project's programs are `workloads/models/*.toml`; [`model`] knows them by name.

mod check;
pub mod code;
mod compile;
pub mod dist;
pub mod program;
pub mod rt_app;
mod words;

use serde::{Deserialize, Serialize};

use crate::error::{in_plain_words, SimError};

pub use self::dist::{Dist, Span};
pub use self::program::{Program, Step, Thread};

/// What a VM runs: a model of the project's by name, or a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    Model(String),
    Program(Program),
}

macro_rules! models {
    ($($name:literal),+ $(,)?) => {
        const MODELS: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../../workloads/models/", $name, ".toml"))),)+
        ];
        const NAMES: &[&str] = &[$($name),+];
    };
}

models! {
    "canneal", "cg", "cpu-hog", "database", "dbench", "dedup", "ebizzy", "ep", "ferret", "hackbench", "kernel-build",
    "lu", "mmapfork", "pbzip2", "streamcluster", "swaptions", "tlb-flush", "tlb-shootdown", "user-spin", "vips", "web",
    "x264",
}

/// The names of all models, in alphabetical order.
pub fn model_names() -> &'static [&'static str] {
    NAMES
}

/// The text that the model of this name was compiled in with.
pub fn model_text(name: &str) -> Option<&'static str> {
    MODELS.iter().find_map(|(known, text)| (*known == name).then_some(*text))
}

/// The model of this name. Its thread counts follow the VM's vCPUs when it is built.
pub fn model(name: &str) -> Option<Workload> {
    NAMES.contains(&name).then(|| Workload::Model(name.to_owned()))
}

impl Workload {
    /// The program itself. `field` is where the workload is named, for messages.
    pub fn program(&self, field: &str) -> Result<Program, SimError> {
        match self {
            Self::Program(program) => {
                program.check().map_err(|what| SimError::Config(format!("{field}.program.{what}")))?;
                Ok(program.clone())
            }
            Self::Model(name) => {
                let Some(text) = model_text(name) else {
                    let known = NAMES.join(", ");
                    return Err(SimError::Config(format!(
                        "{field}.model: {name:?} is not known; allowed: {known}"
                    )));
                };
                parse(&format!("workloads/models/{name}.toml"), text)
            }
        }
    }
}

/// A program from its TOML file. An error is one line: the file, the field, what is wrong, what is allowed.
pub fn parse(file: &str, text: &str) -> Result<Program, SimError> {
    let refuse = |what: String| SimError::Config(format!("{file}: {}", one_line(&what)));
    let table: toml::Table = toml::from_str(text).map_err(|error| refuse(syntax(text, &error)))?;
    let program: Program = serde_path_to_error::deserialize(table).map_err(|error| {
        let path = error.path().to_string();
        let what = in_plain_words(error.into_inner().message());
        refuse(if path == "." { what } else { format!("{path}: {what}") })
    })?;
    program.check().map_err(refuse)?;
    Ok(program)
}

fn syntax(text: &str, error: &toml::de::Error) -> String {
    let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    format!("line {line}: {}", error.message())
}

fn one_line(what: &str) -> String {
    what.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        parse("w.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn every_model_is_a_program() {
        for name in model_names() {
            let program = Workload::Model((*name).into()).program("vm").unwrap();
            assert_eq!(program.name, *name);
        }
        assert!(model("hackbench").is_some() && model("no such thing").is_none());
    }

    #[test]
    fn a_wrong_file_gives_one_line_with_its_place() {
        assert!(message("name = ").starts_with("w.toml: line 1: "));
        let text = "name = 'x'\n[[thread]]\nname = 't'\nsteps = [{ compute = '5 parsecs' }]";
        assert_eq!(
            message(text),
            "w.toml: thread[0].steps[0].compute: invalid value: string \"5 parsecs\", expected a time such as \"50us\": a number and ns, us, ms or s"
        );
        let text = "name = 'x'\n[[thread]]\nname = 't'\nsteps = [{ dance = '5us' }]";
        assert!(message(text)
            .starts_with("w.toml: thread[0].steps[0]: unknown variant `dance`, expected one of `compute`,"));
        let text = "name = 'x'\nspeed = 3\n[[thread]]\nname = 't'\nsteps = []";
        assert!(
            message(text).starts_with("w.toml: speed: unknown field `speed`, expected one of"),
            "{}",
            message(text)
        );
        let text = "name = 'x'\n[[thread]]\nname = 't'\nsteps = [{ release = 'm' }]";
        assert_eq!(message(text), "w.toml: thread[0].steps[0].release: \"m\" is not held here; allowed: a mutex acquired before in the same list of steps");
        assert_eq!(message("name = 'x'\nthread = []"), "w.toml: thread: is empty; allowed: 1 or more");
        let text = "name = 'x'\n[[thread]]\nname = 't'\ncount = 0\nsteps = []";
        assert!(message(text).starts_with("w.toml: thread[0].count: "), "{}", message(text));
        let rounds = |more: &str| format!("name = 'x'\n[[thread]]\nname = 't'\nsteps = []\n{more}");
        assert_eq!(
            message(&rounds("share = true\ntimes = 'forever'")),
            "w.toml: thread[0].share: is true; allowed: with a number of times"
        );
        assert_eq!(
            message(&rounds("share = true\ndivide = true")),
            "w.toml: thread[0].divide: is true, and so is share; allowed: one of both"
        );
        for spin in ["0", "'forever'"] {
            let text = format!("name = 'x'\nbarriers = {{ b = {{ gives_up = true }} }}\n[[thread]]\nname = 't'\nsteps = [{{ barrier = {{ name = 'b', spin = {spin} }} }}]");
            assert_eq!(
                message(&text),
                "w.toml: barriers.b.gives_up: allowed: with a step that spins for a time there, as spin = \"8us\""
            );
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for name in model_names() {
            let program = Workload::Model((*name).into()).program("vm").unwrap();
            let again = parse("again", &toml::to_string(&program).unwrap()).unwrap();
            assert_eq!(program, again);
        }
    }
}
