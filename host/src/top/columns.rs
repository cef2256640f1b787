// SPDX-License-Identifier: GPL-2.0-only
//! The columns: how each is called, what it means, what it shows, and from where on it is a warning. ESX's names where ESX has the figure.

use super::cgroup::{OF_QUOTAS, OF_WEIGHTS};
use super::rates::Row;

#[derive(Debug)]
pub struct Column {
    pub head: &'static str,
    pub meaning: &'static str,
    pub width: u16,
    pub digits: usize,
    /// None where it is not known of a row.
    pub of: fn(&Row) -> Option<f64>,
    /// From here on a warning, and an alarm.
    pub limits: Option<(f64, f64)>,
    /// What it is computed from, of the counters that a kernel may lack and of what cgroups may not say.
    pub needs: &'static [&'static str],
}

const NOTHING: &[&str] = &[];
const IN_KERNEL: &[&str] = &["preemptions_kernel"];

/// A quotient, or nothing of nothing.
fn mean(sum: u64, count: u64, unit: f64) -> Option<f64> {
    (count > 0).then(|| sum as f64 / unit / count as f64)
}

macro_rules! column {
    ($head:literal, $meaning:literal, $width:literal, $digits:literal, $limits:expr, $needs:expr, $of:expr) => {
        Column {
            head: $head,
            meaning: $meaning,
            width: $width,
            digits: $digits,
            limits: $limits,
            needs: $needs,
            of: $of,
        }
    };
}

pub const COLUMNS: &[Column] = &[
    column!("%RUN", "had a pCPU, all vCPUs together; 100 is one pCPU", 6, 1, None, NOTHING, |r| {
        Some(r.percent(r.counters.run_ns))
    }),
    column!(
        "%RDY",
        "ready: could run and had no pCPU, per vCPU; ESX: look at 5, bad from 10",
        6,
        1,
        Some((5.0, 10.0)),
        NOTHING,
        |r| Some(r.per_vcpu_percent(r.counters.ready_ns))
    ),
    column!(
        "%CSTP",
        "co-stop: ready while a sibling ran, per vCPU (ESX stops such a sibling, Linux lets it spin); bad from 3",
        6,
        1,
        Some((1.5, 3.0)),
        NOTHING,
        |r| Some(r.per_vcpu_percent(r.counters.costop_ns))
    ),
    column!(
        "%MLMTD",
        "kept from running by cpu.max, per vCPU; it is ready meanwhile",
        6,
        1,
        Some((1.0, 5.0)),
        OF_QUOTAS,
        |r| r.vcpu.is_none().then(|| r.per_vcpu_percent(r.throttled_ns))
    ),
    column!("%IDLE", "halted by the guest, per vCPU", 6, 1, None, NOTHING, |r| {
        Some(r.per_vcpu_percent(r.counters.halted_ns))
    }),
    column!("%WAIT", "asleep in the VMM or waiting for a page, per vCPU", 6, 1, None, &["blocked_ns"], |r| {
        Some(r.per_vcpu_percent(r.counters.blocked_ns))
    }),
    column!(
        "%STEAL",
        "ready time of all the time in which it wanted a pCPU, as the guest sees it; noisy neighbour from 10",
        6,
        1,
        Some((5.0, 10.0)),
        NOTHING,
        |r| mean(r.counters.ready_ns.saturating_mul(100), r.active_ns(), 1.0)
    ),
    column!(
        "%STCK",
        "stacking: of the time that vCPUs ran or waited, that in which a sibling did on the same pCPU",
        6,
        1,
        Some((5.0, 20.0)),
        NOTHING,
        |r| {
            r.vcpu.is_none().then(|| mean(r.stacked_ns.saturating_mul(100), r.active_ns(), 1.0).unwrap_or(0.0))
        }
    ),
    column!("SKEW", "ms by which the sibling that waited most waited longer than the one that waited least", 6, 0, None, NOTHING, |r| {
        r.vcpu.is_none().then_some(r.skew_ns as f64 / 1e6)
    }),
    column!("LAG", "ms that the VM is behind its fair share since the probe started; negative: ahead", 7, 0, None, OF_WEIGHTS, |r| {
        r.vcpu.is_none().then_some(r.lag_ns as f64 / 1e6)
    }),
    column!("PREK/s", "preemptions in the guest's kernel, where locks are held", 6, 0, None, IN_KERNEL, |r| {
        Some(r.per_s(r.counters.preemptions_kernel))
    }),
    column!("KWAIT", "ms until it ran again after one, on average", 6, 1, Some((5.0, 20.0)), IN_KERNEL, |r| {
        mean(r.counters.wait_kernel_ns, r.counters.preemptions_kernel, 1e6)
    }),
    column!("PLE/s", "pause-loop exits: the guest spins, and the processor noticed", 7, 0, None, &["ple"], |r| {
        Some(r.per_s(r.counters.ple))
    }),
    column!("CHAIN", "exits in one spin, on average", 6, 1, None, &["ple"], |r| {
        mean(r.counters.ple, r.counters.ple_chains, 1.0)
    }),
    column!("YLD/s", "directed yields: KVM asked the scheduler to run a sibling", 6, 0, None, &["yields_asked"], |r| {
        Some(r.per_s(r.counters.yields_asked))
    }),
    column!("%YLDOK", "of these, granted", 6, 0, None, &["yields_asked"], |r| {
        mean(r.counters.yields_granted.saturating_mul(100), r.counters.yields_asked, 1.0)
    }),
    column!("IPI/s", "interrupts sent to siblings", 7, 0, None, &["ipis_sent"], |r| {
        Some(r.per_s(r.counters.ipis_sent))
    }),
    column!("IPIP/s", "interrupts from siblings that met it preempted", 6, 0, None, &["ipis_sent"], |r| {
        Some(r.per_s(r.counters.ipis_preempted))
    }),
    column!("IPIW", "ms that these waited for it to run, on average", 6, 1, Some((5.0, 20.0)), &["ipis_sent"], |r| {
        mean(r.counters.ipi_wait_ns, r.counters.ipis_preempted, 1e6)
    }),
    column!("TLBH/s", "TLB flushes by hypercall", 6, 0, None, &["tlb_hypercalls"], |r| {
        Some(r.per_s(r.counters.tlb_hypercalls))
    }),
    column!("TLBD/s", "TLB flushes put off until the vCPU ran again", 6, 0, None, &["tlb_deferred"], |r| {
        Some(r.per_s(r.counters.tlb_deferred))
    }),
    column!("SW/s", "switches: a vCPU was put on a pCPU", 7, 0, None, NOTHING, |r| Some(r.per_s(r.counters.switches))),
    column!("MIG/s", "migrations: a vCPU was moved to another pCPU", 6, 0, None, &["migrations"], |r| {
        Some(r.per_s(r.counters.migrations))
    }),
];

/// What is shown unless something else is asked for, the most telling first: as many as fit.
pub const USUAL: &[&str] = &[
    "%RUN", "%RDY", "%CSTP", "%MLMTD", "%STCK", "PREK/s", "PLE/s", "SW/s", "KWAIT", "SKEW", "LAG", "YLD/s",
    "%YLDOK", "IPIP/s", "IPIW", "MIG/s", "%IDLE",
];

pub fn by_head(head: &str) -> Option<&'static Column> {
    COLUMNS.iter().find(|column| column.head == head)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    Fine,
    Warning,
    Alarm,
}

impl Column {
    pub fn grade(&self, value: f64) -> Grade {
        match self.limits {
            Some((_, alarm)) if value >= alarm => Grade::Alarm,
            Some((warning, _)) if value >= warning => Grade::Warning,
            _ => Grade::Fine,
        }
    }

    /// What it shows of a row; nothing where one of these, which are not known, is needed.
    pub fn value(&self, row: &Row, missing: &[String]) -> Option<f64> {
        let is_missing = |need: &&str| missing.iter().chain(&row.missing).any(|name| name == need);
        (self.of)(row).filter(|_| !self.needs.iter().any(is_missing))
    }

    pub fn text(&self, row: &Row, missing: &[String]) -> String {
        self.value(row, missing)
            .map_or_else(|| "-".to_string(), |value| number(value, self.digits, self.width))
    }

    /// How it is called where a blank or a percent sign would not do: `%RDY` is rdy_percent, `PLE/s` ple_per_s.
    pub fn field(&self) -> String {
        let plain = self.head.to_lowercase();
        match (plain.strip_prefix('%'), plain.strip_suffix("/s")) {
            (Some(rest), _) => format!("{rest}_percent"),
            (_, Some(rest)) => format!("{rest}_per_s"),
            _ if matches!(self.head, "SKEW" | "LAG" | "KWAIT" | "IPIW") => format!("{plain}_ms"),
            _ => plain,
        }
    }
}

/// With so many digits. What is too little for them is 0, and not `-0`, as of a VM that is hardly ahead.
pub fn fixed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    match text.strip_prefix('-') {
        Some(rest) if rest.chars().all(|c| matches!(c, '0' | '.')) => rest.to_string(),
        _ => text,
    }
}

/// In so many characters, thousands as `12k` where it has to be.
fn number(value: f64, digits: usize, width: u16) -> String {
    let plain = fixed(value, digits);
    if plain.len() <= width as usize {
        return plain;
    }
    for (unit, letter) in [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")] {
        let short = format!("{:.0}{letter}", value / unit);
        if short.len() <= width as usize {
            return short;
        }
    }
    "#".repeat(width as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::counters::{Counters, COUNTERS};

    #[test]
    fn thresholds_are_the_ones_in_use() {
        let grade = |head, value| by_head(head).unwrap().grade(value);
        assert_eq!(
            (grade("%RDY", 4.9), grade("%RDY", 5.0), grade("%RDY", 10.0)),
            (Grade::Fine, Grade::Warning, Grade::Alarm)
        );
        assert_eq!((grade("%CSTP", 3.0), grade("%STEAL", 10.0)), (Grade::Alarm, Grade::Alarm));
        assert_eq!(grade("%RUN", 1e9), Grade::Fine);
    }

    #[test]
    fn the_usual_columns_exist_and_needs_may_be_missing() {
        assert!(USUAL.iter().all(|head| by_head(head).is_some()));
        let mut needs = COLUMNS.iter().flat_map(|column| column.needs);
        let of_cgroups = [OF_QUOTAS, OF_WEIGHTS].concat();
        assert!(needs.all(|name| {
            COUNTERS.iter().any(|counter| counter.name == *name) || of_cgroups.contains(name)
        }));
        assert!(COLUMNS.iter().all(|column| column.head.len() <= column.width as usize));
    }

    #[test]
    fn figures_of_nothing_are_no_figures() {
        let row = Row { secs: 1.0, vcpus: 2, ..Row::default() };
        for column in COLUMNS {
            let value = (column.of)(&row);
            assert!(value.is_none_or(|value| value == 0.0), "{}: {value:?}", column.head);
        }
        assert_eq!(by_head("KWAIT").unwrap().text(&row, &[]), "-");
    }

    #[test]
    fn what_cgroups_do_not_say_is_not_shown() {
        let row = Row { secs: 1.0, vcpus: 2, throttled_ns: 1_000_000, lag_ns: 5, ..Row::default() };
        for (head, needs) in [("%MLMTD", OF_QUOTAS), ("LAG", OF_WEIGHTS)] {
            let missing: Vec<String> = needs.iter().map(ToString::to_string).collect();
            let column = by_head(head).unwrap();
            assert_eq!((column.text(&row, &missing).as_str(), column.value(&row, &missing)), ("-", None));
            assert_ne!(column.text(&row, &[]), "-");
        }
    }

    #[test]
    fn what_is_not_known_of_one_vm_is_not_shown_of_it() {
        let row = Row { secs: 1.0, vcpus: 2, lag_ns: 5_000_000, ..Row::default() };
        let pinned = Row { missing: vec!["lag_ns".into()], ..row.clone() };
        let (lag, run) = (by_head("LAG").unwrap(), by_head("%RUN").unwrap());
        assert_eq!((lag.text(&row, &[]).as_str(), lag.text(&pinned, &[]).as_str()), ("5", "-"));
        assert_eq!(run.text(&pinned, &[]), "0.0");
    }

    #[test]
    fn a_figure_fits_its_column() {
        assert_eq!(number(12.34, 1, 6), "12.3");
        assert_eq!(number(123_456.7, 1, 6), "123457");
        assert_eq!(number(12_345_678.0, 0, 6), "12346k");
        assert_eq!((number(-0.4, 0, 7), number(-0.6, 0, 7)), ("0".to_string(), "-1".to_string()));
        assert_eq!((fixed(-0.000_4, 3), fixed(-0.01, 3)), ("0.000".to_string(), "-0.010".to_string()));
        let row = Row {
            secs: 1.0,
            vcpus: 1,
            counters: Counters { ple: u64::MAX, ..Counters::default() },
            ..Row::default()
        };
        assert!(by_head("PLE/s").unwrap().text(&row, &[]).len() <= 7);
    }

    #[test]
    fn whatever_a_file_says_is_a_figure() {
        let c = u64::MAX;
        let counters = Counters {
            run_ns: c,
            ready_ns: c,
            ple: c,
            yields_granted: c,
            yields_asked: c,
            ..Counters::default()
        };
        let row =
            Row { secs: 1e-3, vcpus: u32::MAX, counters, stacked_ns: c, lag_ns: i64::MIN, ..Row::default() };
        for column in COLUMNS {
            assert!(column.text(&row, &[]).len() <= column.width as usize, "{}", column.head);
        }
        assert!(!crate::top::words::of(&row).is_empty());
    }

    #[test]
    fn fields_are_plain_names() {
        let fields: Vec<String> = COLUMNS.iter().map(Column::field).collect();
        assert!(
            fields.iter().all(|field| field.chars().all(|c| c.is_ascii_lowercase() || c == '_')),
            "{fields:?}"
        );
        assert!(fields.contains(&"rdy_percent".to_string()) && fields.contains(&"kwait_ms".to_string()));
        let in_ms = fields.iter().map(String::as_str).filter(|field| field.ends_with("_ms"));
        let guide = include_str!("../../../docs/top.md");
        for field in ["rdy_percent", "ple_per_s", "chain"].into_iter().chain(in_ms) {
            assert!(fields.contains(&field.to_string()), "no column is {field}");
            assert!(guide.contains(&format!("`{field}`")), "docs/top.md lacks {field}");
        }
    }
}
