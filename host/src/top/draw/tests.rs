// SPDX-License-Identifier: GPL-2.0-only
//! Screens of simulated hosts.

use std::time::Duration;

use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;

use super::super::columns::by_head;
use super::super::rates::tests::vm;
use super::super::sample::{Sample, State, Vm};
use super::*;

const S: u64 = 1_000_000_000;

/// A host after a second of these VMs, which had done nothing before.
fn app(vms: Vec<Vm>) -> App {
    let mut app = App::new(None, Duration::from_secs(1));
    app.take(sample(
        1,
        vms.iter().map(|vm| Vm { total: Default::default(), vcpus: Vec::new(), ..vm.clone() }).collect(),
    ));
    app.take(sample(2, vms));
    app
}

fn sample(clock_s: u64, vms: Vec<Vm>) -> Sample {
    Sample {
        clock_ns: clock_s * S,
        pcpus: 2,
        idle_ns: (clock_s - 1) * S,
        switches: (clock_s - 1) * 1200,
        scheduler: "fair".into(),
        kernel: "7.3.4".into(),
        vms,
        ..Sample::default()
    }
}

/// VM number n of many waits n ms per second and vCPU.
fn many(n: u64) -> Vec<Vm> {
    let ms = S / 1000;
    (1..=n).map(|i| vm(&format!("vm{i:03}"), i * 1000, [(300 * ms, i * ms), (200 * ms, i * ms)])).collect()
}

fn screen(app: &mut App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_string()).collect()
}

fn press(app: &mut App, keys: &str) {
    for c in keys.chars() {
        let code = match c {
            '\n' => KeyCode::Enter,
            '↓' => KeyCode::Down,
            '↑' => KeyCode::Up,
            '⇟' => KeyCode::PageDown,
            c => KeyCode::Char(c),
        };
        app.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
}

#[test]
fn no_vm_on_80_columns() {
    assert_eq!(
        screen(&mut app(vec![]), 80, 6),
        [
            "cohort top  0 VMs, 0 vCPUs on 2 pCPUs, 0.0:1  idle 50 %  1200 switches/s  fair",
            "1.0 s, by time lost",
            "VM               vCPUs   %RUN   %RDY  %CSTP %MLMTD  %STCK PREK/s   PLE/s    SW/s",
            "No VM runs on this host. One that starts appears here by itself.",
            "",
            "h help  Enter open  s sort  c columns  w words  p pause  q quit",
        ]
    );
}

#[test]
fn one_vm_on_80_columns_open() {
    let mut app = app(vec![vm("web", 1, [(S / 2, S / 2), (S / 4, 0)])]);
    press(&mut app, "\n");
    assert_eq!(
        screen(&mut app, 80, 9),
        [
            "cohort top  1 VM, 2 vCPUs on 2 pCPUs, 1.0:1  idle 50 %  1200 switches/s  fair",
            "1.0 s, by time lost",
            "VM               vCPUs   %RUN   %RDY  %CSTP %MLMTD  %STCK PREK/s   PLE/s    SW/s",
            "- web                2   75.0   25.0    0.0    0.0    0.0      0       0       0",
            "  waits for pCPUs that others have: 25 % ready per vCPU",
            "    0 runs          @0   50.0   50.0    0.0      -      -      0       0       0",
            "    1 runs          @0   25.0    0.0    0.0      -      -      0       0       0",
            "",
            "h help  Enter open  s sort  c columns  w words  p pause  q quit",
        ]
    );
}

#[test]
fn the_states_of_a_wide_vms_vcpus_are_whole() {
    let mut web = vm("web", 1, [(S / 2, S / 2), (S / 4, 0)]);
    let names = [(99, "    99 preempted"), (100, "   100 preempted"), (4095, "  4095 preempted")];
    for (number, named) in names {
        (web.vcpus[1].vcpu, web.vcpus[1].state) = (number, State::Preempted);
        let mut app = app(vec![web.clone()]);
        press(&mut app, "\n");
        let lines = screen(&mut app, 80, 9);
        assert!(lines[6].starts_with(&format!("{named}    @0 ")), "{lines:?}");
    }
}

#[test]
fn one_vm_on_200_columns_has_its_words_in_its_line() {
    let lines = screen(&mut app(vec![vm("web", 1, [(S / 2, S / 2), (S / 4, 0)])]), 200, 6);
    assert!(lines[0].ends_with("fair  Linux 7.3.4"), "{lines:?}");
    assert!(lines[2].contains("%YLDOK") && lines[2].ends_with("loses most to"), "{lines:?}");
    assert!(lines[3].ends_with("waits for pCPUs that others have: 25 % ready per vCPU"), "{lines:?}");
    assert_eq!(lines[4], "");
}

#[test]
fn two_hundred_vms_scroll_with_the_selected_one_in_view() {
    for (width, height) in [(80, 24), (200, 50), (40, 8)] {
        let mut app = app(many(200));
        let lines = screen(&mut app, width, height);
        assert!(lines[3].starts_with("+ vm200"), "who lost most is first: {lines:?}");
        press(&mut app, "G");
        let lines = screen(&mut app, width, height);
        assert!(lines.iter().any(|line| line.starts_with("+ vm001")), "{lines:?}");
        assert!(!lines[usize::from(height) - 2].is_empty(), "no empty lines at the end: {lines:?}");
        press(&mut app, "g⇟");
        assert!(app.selected_at >= 2);
        press(&mut app, "e");
        screen(&mut app, width, height);
        assert_eq!(app.rows().len(), 600);
    }
}

#[test]
fn a_vm_that_vanishes_while_selected_leaves_its_place_to_the_next() {
    let mut app = app(many(5));
    press(&mut app, "↓↓\n");
    assert_eq!(app.selected, Some(3000));
    app.take(sample(3, many(5).into_iter().filter(|vm| vm.id != 3000).collect()));
    let lines = screen(&mut app, 80, 24);
    assert!(!lines.iter().any(|line| line.contains("vm003")));
    assert_eq!(app.selected_at, 2);
    assert!(app.selected.is_some_and(|id| id != 3000) && app.open.is_empty());
    app.take(sample(4, vec![]));
    screen(&mut app, 80, 24);
    assert_eq!(app.selected, None);
    press(&mut app, "↓↑\nesSrG");
}

#[test]
fn keys_sort_pause_and_quit() {
    let mut app = app(many(3));
    press(&mut app, "N");
    assert!(screen(&mut app, 80, 12)[3].starts_with("+ vm001"));
    press(&mut app, "r");
    assert!(screen(&mut app, 80, 12)[3].starts_with("+ vm003"));
    press(&mut app, "rLs");
    assert_eq!(app.order_name(), "%RUN");
    press(&mut app, "S");
    assert_eq!(app.order, Order::Lost);
    press(&mut app, "p");
    assert!(screen(&mut app, 80, 12)[1].starts_with("PAUSED"));
    press(&mut app, "w");
    assert_eq!(screen(&mut app, 80, 12)[4].split_whitespace().nth(1), Some("vm002"), "without words");
    press(&mut app, "q");
    assert!(app.quit);
}

#[test]
fn columns_are_chosen_and_explained() {
    let mut app = app(many(1));
    press(&mut app, "c↓");
    let lines = screen(&mut app, 80, 40);
    assert!(lines.iter().any(|line| line.contains("[x] %RDY")), "{lines:?}");
    press(&mut app, " ");
    assert!(!app.columns.iter().any(|column| column.head == "%RDY"));
    press(&mut app, " \n");
    assert_eq!((app.columns[0].head, app.over), ("%RDY", Over::Nothing));
    press(&mut app, "h");
    let help = screen(&mut app, 80, 24).join("\n");
    assert!(help.contains("choose columns") && help.contains("%CSTP 3"), "{help}");
}

#[test]
fn what_the_kernel_cannot_count_is_no_zero() {
    let mut app = app(many(1));
    app.sample.missing = vec!["ple".into()];
    app.sample.notes = vec!["this kernel has no kvm_vcpu_on_spin".into()];
    let lines = screen(&mut app, 80, 8);
    assert!(lines[1].contains("no kvm_vcpu_on_spin"));
    let fields: Vec<&str> = lines[3].split_whitespace().collect();
    assert_eq!(fields[fields.len() - 2], "-", "{lines:?}");
}

#[test]
fn what_is_not_known_of_one_vm_is_no_zero_and_sorted_last() {
    let mut vms = many(3);
    vms[0].missing = vec!["lag_ns".into()];
    vms[1].lag_ns = -5_000_000;
    vms[2].lag_ns = -9_000_000;
    let mut app = app(vms);
    app.order = Order::By(by_head("LAG").unwrap());
    let names: Vec<&str> = app.rows().iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["vm002", "vm003", "vm001"]);
    let wide = screen(&mut app, 200, 12);
    let line = |text: &str| wide.iter().find(|line| line.contains(text)).unwrap();
    let end = line("SKEW").find("LAG").unwrap() + 3;
    let lag = |name: &str| line(name)[end - 7..end].trim();
    assert_eq!((lag("vm001"), lag("vm002"), lag("vm003")), ("-", "-5", "-9"));
}

#[test]
fn no_size_is_too_small() {
    for (width, height) in [(1, 1), (5, 3), (20, 4), (80, 3)] {
        let mut app = app(many(3));
        for keys in ["", "c", "\nh"] {
            press(&mut app, keys);
            screen(&mut app, width, height);
        }
    }
}

#[test]
fn wide_characters_and_long_names_are_cut_to_fit() {
    assert_eq!(fit("日本語", 6), "日本語");
    assert_eq!(fit("日本語", 5), "日…  ");
    assert_eq!(fit("日本", 3), "…  ");
    assert_eq!(fit("abcdef", 3), "a…f");
    assert_eq!(fit("ab", 3), "ab ");
}

#[test]
fn figures_have_their_thresholds_colours_on_the_screen() {
    // %RDY and %CSTP in tenths of a percent, and their colours.
    let cases = [
        ((49, 14), (Color::Reset, Color::Reset)),
        ((50, 15), (Color::Yellow, Color::Yellow)),
        ((99, 29), (Color::Yellow, Color::Yellow)),
        ((100, 30), (Color::Red, Color::Red)),
        ((49, 30), (Color::Reset, Color::Red)),
    ];
    let vms = cases.iter().enumerate().map(|(i, ((ready, costop), _))| {
        let tenth = S / 1000;
        let mut vm = vm(&format!("vm{i}"), 1000 * (i as u64 + 1), [(300 * tenth, ready * tenth); 2]);
        vm.vcpus.iter_mut().for_each(|vcpu| vcpu.counters.costop_ns = costop * tenth);
        vm
    });
    let mut app = app(vms.collect());
    press(&mut app, "Nwe");
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| draw(frame, &mut app)).unwrap();
    let buffer = terminal.backend().buffer();
    let heads: String = (0..80).map(|x| buffer[(x, 2)].symbol()).collect();
    // Figures end where their heads do; each VM has a line and each of its two vCPUs.
    let cell = |head: &str, y| &buffer[((heads.find(head).unwrap() + head.len() - 1) as u16, y)];
    for (i, (_, (ready, costop))) in cases.iter().enumerate() {
        for y in 3 + 3 * i as u16..6 + 3 * i as u16 {
            assert_eq!((cell("%RDY", y).fg, cell("%CSTP", y).fg), (*ready, *costop), "VM {i}, line {y}");
            assert_eq!(cell("%RUN", y).fg, Color::Reset);
            let bold = cell("%CSTP", y).modifier.contains(Modifier::BOLD);
            assert!(y == 3 || bold == (*costop == Color::Red), "all of the selected line is bold: {y}");
        }
    }
}
