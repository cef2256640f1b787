// SPDX-License-Identifier: GPL-2.0-only
//! rt-app's JSON (doc/tutorial.txt of rt-app): tasks of phases of events, with times in microseconds. What the model has no counterpart for is an error.
//!
//! If no task ends by itself, `global.duration` ends the program, as rt-app's first thread does; its figure is then how often all tasks together have done
//! their loops, per second.

use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::SimError;
use crate::time::{Ns, US};

use super::dist::{Dist, Span};
use super::program::{Count, Metric, Program, Step, Thread, Times};

/// The longest `global.duration`, in seconds: an hour.
const DURATION_MAX_S: f64 = 3_600.0;

/// JSON whose objects keep their order: events happen in the order in which they are written.
#[derive(Debug)]
enum Json {
    Null,
    Bool,
    Number(f64),
    Text(String),
    List,
    Map(Vec<(String, Json)>),
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }
    fn visit_bool<E>(self, _: bool) -> Result<Json, E> {
        Ok(Json::Bool)
    }
    fn visit_u64<E>(self, n: u64) -> Result<Json, E> {
        Ok(Json::Number(n as f64))
    }
    fn visit_i64<E>(self, n: i64) -> Result<Json, E> {
        Ok(Json::Number(n as f64))
    }
    fn visit_f64<E>(self, n: f64) -> Result<Json, E> {
        Ok(Json::Number(n))
    }
    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        while seq.next_element::<Json>()?.is_some() {}
        Ok(Json::List)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Json::Map(entries))
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

/// rt-app takes comments; JSON has none.
fn without_comments(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("/*") {
        out.push_str(&rest[..at]);
        // Lines keep their numbers.
        let (comment, after) =
            rest[at..].split_at(rest[at..].find("*/").map_or(rest.len() - at, |end| end + 2));
        out.extend(comment.chars().filter(|c| *c == '\n'));
        rest = after;
    }
    out.push_str(rest);
    out
}

type Result1<T> = Result<T, String>;

fn map<'a>(json: &'a Json, field: &str) -> Result1<&'a [(String, Json)]> {
    match json {
        Json::Map(entries) => Ok(entries),
        other => Err(format!("{field}: is {other:?}; allowed: an object")),
    }
}

fn number(json: &Json, field: &str, low: f64, high: f64) -> Result1<i64> {
    match json {
        Json::Number(n) if n.fract() == 0.0 && (low..=high).contains(n) => Ok(*n as i64),
        other => Err(format!("{field}: is {other:?}; allowed: a whole number from {low} to {high}")),
    }
}

fn time(json: &Json, field: &str) -> Result1<Ns> {
    Ok(number(json, field, 0.0, 8.64e10)? as Ns * US)
}

fn text(json: &Json, field: &str) -> Result1<String> {
    match json {
        Json::Text(text) => Ok(text.clone()),
        other => Err(format!("{field}: is {other:?}; allowed: a name")),
    }
}

fn get<'a>(entries: &'a [(String, Json)], key: &str) -> Option<&'a Json> {
    entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
}

fn times(entries: &[(String, Json)], field: &str, default: Times) -> Result1<Times> {
    let Some(json) = get(entries, "loop") else { return Ok(default) };
    Ok(match number(json, &format!("{field}.loop"), -1.0, 1e9)? {
        -1 => Times::Forever,
        n => Times::Fixed(n as u64),
    })
}

/// A program from rt-app's JSON. An error is one line: the file, the field, what is wrong, what is allowed.
pub fn from_rt_app(file: &str, json: &str) -> Result<Program, SimError> {
    read(file, &without_comments(json)).map_err(|what| SimError::Config(format!("{file}: {what}")))
}

fn read(file: &str, json: &str) -> Result1<Program> {
    let root: Json = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let Some(tasks) = get(map(&root, "file")?, "tasks") else {
        return Err("tasks: is missing; allowed: an object of tasks".into());
    };
    let stem = file.rsplit(['/', '\\']).next().unwrap_or(file);
    let mut threads = Vec::new();
    for (name, task) in map(tasks, "tasks")? {
        threads.push(thread(name, map(task, &format!("tasks.{name}"))?, &format!("tasks.{name}"))?);
    }
    let metric = match duration(&root)? {
        Some(duration) if threads.iter().all(|thread| thread.background) => {
            timed(&mut threads, duration);
            Metric::Rate { done: "loop".into(), value: 1.0, unit: "loops/s".into() }
        }
        _ => Metric::Elapsed,
    };
    let program = Program {
        name: stem.strip_suffix(".json").unwrap_or(stem).to_owned(),
        title: format!("rt-app: {stem}"),
        copies: 1,
        footprint_per_mille: 1000,
        metric,
        pipes: Default::default(),
        barriers: Default::default(),
        mutexes: Default::default(),
        threads,
    };
    program.check()?;
    Ok(program)
}

/// `global.duration`, if it is not for ever.
fn duration(root: &Json) -> Result1<Option<Dist>> {
    let Some(global) = get(map(root, "file")?, "global") else { return Ok(None) };
    let Some(json) = get(map(global, "global")?, "duration") else { return Ok(None) };
    let seconds = number(json, "global.duration", -1.0, DURATION_MAX_S)?;
    Ok((seconds > 0).then(|| Dist::fixed(seconds as Ns * 1_000_000 * US)))
}

/// Count the loops of tasks that never end, and end after a while.
fn timed(threads: &mut Vec<Thread>, duration: Dist) {
    for thread in threads.iter_mut() {
        let done = Step::Done("loop".into());
        match thread.steps.last_mut() {
            // Behind a delay.
            Some(Step::Repeat { times: Times::Forever, steps }) => steps.push(done),
            _ => thread.steps.push(done),
        }
    }
    threads.push(make("duration", None, false, Times::Fixed(1), vec![Step::Sleep(duration)]));
}

fn thread(name: &str, entries: &[(String, Json)], field: &str) -> Result1<Thread> {
    let count =
        get(entries, "instance").map(|json| number(json, &format!("{field}.instance"), 1.0, 65_536.0));
    let mut steps = Vec::new();
    if let Some(delay) = get(entries, "delay") {
        steps.push(Step::Sleep(Dist::fixed(time(delay, &format!("{field}.delay"))?)));
    }
    let mut round = Vec::new();
    match get(entries, "phases") {
        None => events(name, entries, field, &mut round)?,
        Some(phases) => {
            for (phase, json) in map(phases, &format!("{field}.phases"))? {
                let field = format!("{field}.phases.{phase}");
                let entries = map(json, &field)?;
                let mut steps = Vec::new();
                events(name, entries, &field, &mut steps)?;
                match times(entries, &field, Times::Fixed(1))? {
                    Times::Fixed(1) => round.append(&mut steps),
                    times => round.push(Step::Repeat { times, steps }),
                }
            }
        }
    }
    let times = times(entries, field, Times::Forever)?;
    let background = times == Times::Forever;
    if steps.is_empty() {
        steps = round;
        return Ok(make(name, count.transpose()?, background, times, steps));
    }
    steps.push(Step::Repeat { times, steps: round });
    Ok(make(name, count.transpose()?, background, Times::Fixed(1), steps))
}

fn make(name: &str, count: Option<i64>, background: bool, times: Times, steps: Vec<Step>) -> Thread {
    let count = Count::Fixed(count.unwrap_or(1) as u32);
    Thread {
        name: name.to_owned(),
        count,
        process: false,
        background,
        pin: false,
        vcpu: None,
        times,
        share: false,
        divide: false,
        first: Vec::new(),
        steps,
    }
}

/// What is no event: the task's own settings.
const SETTINGS: [&str; 4] = ["instance", "loop", "phases", "delay"];

/// rt-app knows an event by how its key begins, so that a phase may have several of a kind.
fn events(task: &str, entries: &[(String, Json)], field: &str, steps: &mut Vec<Step>) -> Result1<()> {
    for (key, json) in entries {
        let field = format!("{field}.{key}");
        let is = |kind: &str| key.starts_with(kind);
        if SETTINGS.contains(&key.as_str()) {
            continue;
        }
        if is("policy") {
            match text(json, &field)?.as_str() {
                "SCHED_OTHER" => continue,
                other => return Err(format!("{field}: {other:?} is not modelled; allowed: \"SCHED_OTHER\"")),
            }
        }
        if is("run") {
            steps.push(Step::Compute(Dist::fixed(time(json, &field)?)));
        } else if is("sleep") {
            steps.push(Step::Sleep(Dist::fixed(time(json, &field)?)));
        } else if is("timer") {
            let Some(period) = get(map(json, &field)?, "period") else {
                return Err(format!("{field}.period: is missing; allowed: microseconds"));
            };
            let period = Span(time(period, &format!("{field}.period"))?);
            steps.push(Step::Period(period));
        } else if is("lock") {
            steps.push(Step::Acquire(text(json, &field)?));
        } else if is("unlock") {
            steps.push(Step::Release(text(json, &field)?));
        } else if is("wait") || is("sync") {
            let pair = map(json, &field)?;
            let name = |key: &str| match get(pair, key) {
                Some(json) => text(json, &format!("{field}.{key}")),
                None => Err(format!("{field}.{key}: is missing; allowed: a name")),
            };
            let (condition, mutex) = (name("ref")?, name("mutex")?);
            let wait = if is("sync") {
                // pthread_cond_signal(), then pthread_cond_wait(): one's own signal is not for oneself.
                steps.push(Step::Signal(condition.clone()));
                Step::WaitOther(condition)
            } else {
                Step::Wait(condition)
            };
            steps.extend([Step::Release(mutex.clone()), wait, Step::Acquire(mutex)]);
        } else if is("signal") {
            steps.push(Step::Signal(text(json, &field)?));
        } else if is("broad") {
            steps.push(Step::Broadcast(text(json, &field)?));
        } else if is("barrier") {
            steps.push(Step::Barrier { name: text(json, &field)?, spin: Default::default() });
        } else if is("suspend") {
            let who = text(json, &field)?;
            let who = if who.is_empty() { task } else { &who };
            steps.push(Step::Wait(format!("resume {who}")));
        } else if is("resume") {
            steps.push(Step::Signal(format!("resume {}", text(json, &field)?)));
        } else if is("yield") {
            steps.push(Step::Yield {});
        } else {
            return Err(format!(
                "{field}: is not modelled; allowed: run, runtime, sleep, timer, lock, unlock, wait, sync, signal, broad, barrier, \
                 suspend, resume, yield, delay, instance, loop, phases, policy SCHED_OTHER"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_phases_and_events_become_threads_and_steps() {
        let json = r#"{
            /* a comment */
            "global": { "duration": 5 },
            "tasks": {
                "worker": {
                    "instance": 2, "loop": 3,
                    "phases": {
                        "z": { "loop": 10, "run": 1500, "timer": { "ref": "unique", "period": 10000 } },
                        "a": { "lock": "m", "run1": 20, "unlock": "m", "resume": "other" }
                    }
                },
                "other": { "suspend": "", "runtime": 7, "sleep": 9 }
            }
        }"#;
        let program = from_rt_app("dir/example.json", json).unwrap();
        assert_eq!(program.name, "example");
        let us = |n: u64| Dist::fixed(n * 1_000);
        let repeat = Step::Repeat {
            times: Times::Fixed(10),
            steps: vec![Step::Compute(us(1_500)), Step::Period(Span(10_000_000))],
        };
        let worker = &program.threads[0];
        assert_eq!(
            (worker.count, worker.times, worker.background),
            (Count::Fixed(2), Times::Fixed(3), false)
        );
        assert_eq!(
            worker.steps,
            [
                repeat,
                Step::Acquire("m".into()),
                Step::Compute(us(20)),
                Step::Release("m".into()),
                Step::Signal("resume other".into()),
            ]
        );
        let other = &program.threads[1];
        assert_eq!((other.times, other.background), (Times::Forever, true));
        assert_eq!(
            other.steps,
            [Step::Wait("resume other".into()), Step::Compute(us(7)), Step::Sleep(us(9))]
        );
    }

    #[test]
    fn a_duration_ends_tasks_that_never_do() {
        let json = r#"{ "global": { "duration": 2 }, "tasks": { "a": { "run": 5 }, "b": { "delay": 3, "run": 7 } } }"#;
        let program = from_rt_app("x.json", json).unwrap();
        let us = |n: u64| Dist::fixed(n * 1_000);
        let done = || Step::Done("loop".into());
        assert_eq!(program.threads[0].steps, [Step::Compute(us(5)), done()]);
        let round = Step::Repeat { times: Times::Forever, steps: vec![Step::Compute(us(7)), done()] };
        assert_eq!(program.threads[1].steps, [Step::Sleep(us(3)), round]);
        assert_eq!(program.threads[2].steps, [Step::Sleep(us(2_000_000))]);
        assert!(!program.threads[2].background && matches!(program.metric, Metric::Rate { .. }));
        let error = from_rt_app("x.json", r#"{ "global": { "duration": 1.5 }, "tasks": {} }"#).unwrap_err();
        assert!(error
            .to_string()
            .starts_with("x.json: global.duration: is Number(1.5); allowed: a whole number"));
    }

    #[test]
    fn what_cannot_be_said_is_refused_in_one_line() {
        let message = |json: &str| from_rt_app("x.json", json).unwrap_err().to_string();
        assert_eq!(message("{}"), "x.json: tasks: is missing; allowed: an object of tasks");
        assert!(message("{ \"tasks\": ").starts_with("x.json: EOF"));
        let fork = r#"{"tasks": {"a": {"fork": "b"}}}"#;
        assert!(message(fork).starts_with("x.json: tasks.a.fork: is not modelled; allowed: run,"));
        let fifo = r#"{"tasks": {"a": {"policy": "SCHED_FIFO", "run": 1}}}"#;
        assert!(message(fifo).contains("tasks.a.policy: \"SCHED_FIFO\" is not modelled"));
        let negative = r#"{"tasks": {"a": {"run": -1}}}"#;
        assert!(message(negative).starts_with("x.json: tasks.a.run: is Number(-1.0); allowed:"));
        assert!(!message(fork).contains('\n'));
    }
}
