// SPDX-License-Identifier: GPL-2.0-only
//! `cohort top --batch`: a table, JSON or CSV on stdout.

use std::fmt::Write as _;

use serde_json::{json, Map, Value};

use super::columns::{fixed, Column};
use super::draw::fit;
use super::rates::{Interval, Row};
use super::sample::{Sample, State};
use super::words;

/// Of a VM's name in the table, in columns of the terminal.
const NAME_WIDTH: u16 = 16;

/// The sample, with the figures of the interval that ends with it: one line.
pub fn json(sample: &Sample, interval: &Interval, columns: &[&Column]) -> String {
    let mut value = json!(sample);
    value["interval_s"] = json!(interval.secs);
    let rows = interval.vms.iter();
    for (vm, row) in value["vms"].as_array_mut().into_iter().flatten().zip(rows) {
        vm["loses"] = json!(words::of(row));
        vm["figures"] = figures(row, columns, &sample.missing);
        for (vcpu, row) in vm["vcpus"].as_array_mut().into_iter().flatten().zip(&row.children) {
            vcpu["figures"] = figures(row, columns, &sample.missing);
        }
    }
    format!("{value}\n")
}

fn figures(row: &Row, columns: &[&Column], missing: &[String]) -> Value {
    // To add 0 takes the sign from what is rounded to nothing.
    let round = |value: f64| (value * 1e3).round() / 1e3 + 0.0;
    let all =
        columns.iter().filter_map(|column| Some((column.field(), json!(round(column.value(row, missing)?)))));
    Value::Object(all.collect::<Map<_, _>>())
}

pub fn csv_head(columns: &[&Column]) -> String {
    let mut line = "time_s,vm,pid,tid,vcpu,vcpus,pcpu,state".to_string();
    columns.iter().for_each(|column| line += &format!(",{}", column.field()));
    line + ",loses\n"
}

pub fn csv(sample: &Sample, interval: &Interval, columns: &[&Column]) -> String {
    let mut text = String::new();
    for vm in &interval.vms {
        for row in std::iter::once(vm).chain(&vm.children) {
            let tid = row.tid.map(|tid| tid.to_string()).unwrap_or_default();
            let place = row.vcpu.map(|(id, pcpu, state)| format!("{id},1,{pcpu},{}", state_word(state)));
            let place = place.unwrap_or_else(|| format!(",{},,", row.vcpus));
            let _ = write!(text, "{:.3},{},{},{tid},{place}", sample.time_s, quoted(&vm.name), row.pid);
            for column in columns {
                let _ = match column.value(row, &sample.missing) {
                    Some(value) => write!(text, ",{}", fixed(value, 3)),
                    None => write!(text, ","),
                };
            }
            let loses = if row.vcpu.is_none() { quoted(&words::of(row)) } else { String::new() };
            let _ = writeln!(text, ",{loses}");
        }
    }
    text
}

/// The word that JSON has for it; the screen's are for people.
fn state_word(state: State) -> String {
    json!(state).as_str().unwrap_or_default().to_string()
}

/// A field of CSV.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_string()
    }
}

/// For people: the VMs that lost most first.
pub fn table(sample: &Sample, interval: &Interval, columns: &[&Column]) -> String {
    let mut text = format!(
        "{} VM(s), {} vCPU(s) on {} pCPU(s), {:.1} s under {}\n{} {:>5}",
        interval.vms.len(),
        interval.vcpus,
        interval.pcpus,
        interval.secs,
        sample.scheduler,
        fit("VM", NAME_WIDTH),
        "vCPUs"
    );
    for column in columns {
        let _ = write!(text, " {:>width$}", column.head, width = column.width as usize);
    }
    text.push('\n');
    let mut vms: Vec<&Row> = interval.vms.iter().collect();
    vms.sort_by_key(|vm| std::cmp::Reverse(vm.lost_ns()));
    for vm in vms {
        // As on the screen: a character may take two columns, and figures are below their heads all the same.
        let _ = write!(text, "{} {:>5}", fit(&vm.name, NAME_WIDTH), vm.vcpus);
        for column in columns {
            let _ =
                write!(text, " {:>width$}", column.text(vm, &sample.missing), width = column.width as usize);
        }
        let _ = writeln!(text, "\n  {}", words::of(vm));
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::columns::{by_head, COLUMNS};
    use crate::top::counters::Counters;
    use crate::top::rates::{between, tests::vm};

    fn two() -> (Sample, Interval) {
        let before = Sample::default();
        let vms = vec![vm("a,\"b\"", 1, [(500_000_000, 0), (0, 500_000_000)]), vm("c", 2, [(0, 0), (0, 0)])];
        let now = Sample { time_s: 7.25, clock_ns: 1_000_000_000, pcpus: 2, vms, ..Sample::default() };
        let interval = between(&before, &now);
        (now, interval)
    }

    #[test]
    fn json_is_a_sample_and_its_figures() {
        let (mut sample, interval) = two();
        sample.vms[0].gone.insert(3, Counters { run_ns: 5, ..Counters::default() });
        let all: Vec<&Column> = COLUMNS.iter().collect();
        let line = json(&sample, &interval, &all);
        assert_eq!(line.lines().count(), 1);
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["vms"][0]["figures"]["rdy_percent"], 25.0);
        assert_eq!(value["vms"][0]["vcpus"][1]["figures"]["rdy_percent"], 50.0);
        assert_eq!(value["vms"][1]["loses"], "idle");
        assert_eq!(value["vms"][0]["gone"]["3"]["run_ns"], 5);
        assert!(value["vms"][1].get("gone").is_none(), "{line}");
        assert_eq!(serde_json::from_str::<Sample>(&line).unwrap(), sample, "it can be fed back");
    }

    #[test]
    fn csv_has_as_many_fields_in_each_line() {
        let (sample, interval) = two();
        let all: Vec<&Column> = COLUMNS.iter().collect();
        let fields = csv_head(&all).split(',').count();
        let text = csv(&sample, &interval, &all);
        assert_eq!(text.lines().count(), 6);
        assert!(text.starts_with("7.250,\"a,\"\"b\"\"\",1,,,2,,,50.000,25.000"), "{text}");
        assert!(text
            .lines()
            .skip(1)
            .all(|line| line.starts_with("7.250,\"") || line.split(',').count() == fields));
    }

    #[test]
    fn csv_joins_vcpus_to_their_vm_in_the_words_of_json() {
        let (sample, interval) = two();
        let columns = [by_head("%RDY").unwrap()];
        assert_eq!(csv_head(&columns), "time_s,vm,pid,tid,vcpu,vcpus,pcpu,state,rdy_percent,loses\n");
        let text = csv(&sample, &interval, &columns);
        let lines: Vec<&str> = text.lines().skip(3).collect();
        assert_eq!(
            lines,
            [
                "7.250,c,2,,,2,,,0.000,idle",
                "7.250,c,2,200,0,1,0,running,0.000,",
                "7.250,c,2,201,1,1,0,running,0.000,"
            ]
        );
        let value: Value = serde_json::from_str(&json(&sample, &interval, &columns)).unwrap();
        assert_eq!((&value["vms"][1]["pid"], &value["vms"][1]["vcpus"][1]["tid"]), (&json!(2), &json!(201)));
        assert_eq!(value["vms"][1]["vcpus"][1]["state"], "running");
        let words = [State::Unknown, State::Ready, State::Preempted, State::Halted, State::Blocked];
        assert_eq!(words.map(state_word), ["unknown", "ready", "preempted", "halted", "blocked"]);
    }

    #[test]
    fn what_the_kernel_cannot_count_is_left_out_and_no_zero() {
        let (mut sample, interval) = two();
        sample.missing = vec!["preemptions_kernel".into()];
        let columns = [by_head("PREK/s").unwrap(), by_head("%RDY").unwrap()];
        let value: Value = serde_json::from_str(&json(&sample, &interval, &columns)).unwrap();
        assert_eq!(value["vms"][0]["figures"], json!({"rdy_percent": 25.0}));
        assert!(csv(&sample, &interval, &columns).contains(",1,,,2,,,,25.000,"));
        assert!(table(&sample, &interval, &columns).contains("     -   25.0\n"));
    }

    #[test]
    fn what_is_rounded_to_nothing_has_no_sign() {
        let (mut sample, _) = two();
        sample.vms.iter_mut().for_each(|vm| vm.lag_ns = -400);
        let interval = between(&Sample::default(), &sample);
        let columns = [by_head("LAG").unwrap()];
        let line = json(&sample, &interval, &columns);
        assert!(line.contains("\"lag_ms\":0.0") && !line.contains("-0.0"), "{line}");
        assert!(csv(&sample, &interval, &columns).contains(",2,,,0.000,"));
        assert!(!table(&sample, &interval, &columns).contains("-0"));
    }

    #[test]
    fn figures_are_below_their_heads_also_behind_wide_names() {
        let names = ["web", "日本語", "日本語日本語日本語", "qemu-system-x86:1234"];
        let vms = names.iter().zip(1..).map(|(name, id)| vm(name, id, [(0, 0), (0, 0)]));
        let sample = Sample { vms: vms.collect(), ..Sample::default() };
        let interval = between(&Sample::default(), &sample);
        let text = table(&sample, &interval, &[by_head("%RUN").unwrap()]);
        // Each takes sixteen columns.
        let begins = ["web             ", "日本語          ", "日本語日…日本語 ", "qemu-sys…86:1234"];
        let of_vms = text.lines().skip(2).step_by(2);
        for (begin, line) in begins.iter().zip(of_vms) {
            assert!(line.starts_with(&format!("{begin} {:>5} {:>6}", 2, "0.0")), "{text}");
        }
    }

    #[test]
    fn the_table_begins_with_who_lost_most() {
        let (sample, interval) = two();
        let text = table(&sample, &interval, &[&COLUMNS[0], &COLUMNS[1]]);
        assert!(text.lines().nth(2).unwrap().starts_with("a,\"b\""), "{text}");
    }
}
