// SPDX-License-Identifier: GPL-2.0-only
//! What KVM is set to do so that the probe's hooks are there and see nothing, or only some of it: a 0 would say that nothing happens.

use super::hooks::{Lost, OPTIONAL};
use crate::audit::{self, Spins};
use crate::checks::Host;

/// What cannot be counted as KVM is set now, besides what is lost in any case. To be asked for each sample: the settings are those of
/// kvm_intel and kvm_amd, which can be loaded anew while the probe watches functions of kvm and so keeps that loaded.
pub fn with_what_is_hidden(lost: &Lost, host: &Host) -> Lost {
    let mut lost = lost.clone();
    if audit::delivers_ipis(host) {
        lose(
            &mut lost,
            &["probe_irq"],
            "the processor delivers interrupts between vCPUs by itself (AVIC, IPI virtualization), so they cannot be counted: load KVM with \
             enable_ipiv=0, or kvm_amd with avic=0"
                .into(),
        );
    }
    if let Spins::Uncaught(why) = audit::spins(host) {
        lose(
            &mut lost,
            &["probe_spin", "probe_yield_to"],
            format!(
                "KVM catches no vCPU that spins ({why} is 0), so spins and yields for them cannot be counted"
            ),
        );
    }
    lost
}

/// The counters of these programs, but for those that are lost already.
fn lose(lost: &mut Lost, programs: &[&str], note: String) {
    let hooks = OPTIONAL.iter().filter(|hook| programs.contains(&hook.program));
    let counters = hooks.flat_map(|hook| hook.counters).copied();
    let counters: Vec<_> = counters.filter(|counter| !lost.counters.contains(counter)).collect();
    if !counters.is_empty() {
        lost.add(&counters, note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::tests::FakeHost;
    use crate::top::COLUMNS;

    const IPIS: [&str; 3] = ["IPI/s", "IPIP/s", "IPIW"];
    const SPINS: [&str; 4] = ["PLE/s", "CHAIN", "YLD/s", "%YLDOK"];

    /// What is lost with these parameters of modules, set.
    fn lost(parameters: &[(&str, &str)]) -> Lost {
        let host = parameters.iter().fold(FakeHost::good(), |host, (parameter, value)| {
            let (module, name) = parameter.split_once('.').unwrap();
            host.file(&format!("/sys/module/{module}/parameters/{name}"), value)
        });
        with_what_is_hidden(&Lost::default(), &host.host())
    }

    /// The columns that need what is lost.
    fn columns(lost: &Lost) -> Vec<&'static str> {
        let without = |needs: &[&str]| needs.iter().any(|need| lost.counters.contains(need));
        COLUMNS.iter().filter(|column| without(column.needs)).map(|column| column.head).collect()
    }

    #[test]
    fn nothing_is_lost_where_kvm_sees_all_of_it() {
        for parameters in [
            vec![],
            vec![("kvm_intel.ple_gap", "128\n"), ("kvm_intel.enable_apicv", "Y\n")],
            vec![("kvm_intel.enable_apicv", "Y\n"), ("kvm_intel.enable_ipiv", "N\n")],
            vec![("kvm_amd.pause_filter_count", "3000\n"), ("kvm_amd.avic", "N\n")],
        ] {
            assert_eq!(lost(&parameters), Lost::default(), "{parameters:?}");
        }
    }

    #[test]
    fn interrupts_that_the_processor_delivers_are_lost_with_a_note() {
        for parameters in [
            [("kvm_intel.enable_apicv", "Y\n"), ("kvm_intel.enable_ipiv", "Y\n")],
            [("kvm_amd.avic", "1\n"), ("kvm_amd.pause_filter_count", "3000\n")],
        ] {
            let lost = lost(&parameters);
            assert_eq!(columns(&lost), IPIS, "{parameters:?}");
            assert!(lost.notes.len() == 1 && lost.notes[0].contains("enable_ipiv=0"), "{:?}", lost.notes);
        }
    }

    #[test]
    fn spins_that_kvm_does_not_catch_are_lost_with_a_note() {
        for parameter in ["kvm_intel.ple_gap", "kvm_amd.pause_filter_count", "kvm_amd.pause_filter_thresh"] {
            let lost = lost(&[(parameter, "0\n")]);
            assert_eq!(columns(&lost), SPINS, "{parameter}");
            assert!(lost.notes.len() == 1 && lost.notes[0].contains(parameter), "{:?}", lost.notes);
        }
        let both = lost(&[("kvm_amd.avic", "1\n"), ("kvm_amd.pause_filter_count", "0\n")]);
        assert_eq!((columns(&both).len(), both.notes.len()), (IPIS.len() + SPINS.len(), 2));
    }

    #[test]
    fn a_module_that_is_loaded_anew_is_asked_anew() {
        let gap = "/sys/module/kvm_intel/parameters/ple_gap";
        let lost = Lost::default();
        let host = FakeHost::good().file(gap, "0\n");
        assert_eq!(columns(&with_what_is_hidden(&lost, &host.host())), SPINS);
        let host = host.file(gap, "128\n");
        assert_eq!(with_what_is_hidden(&lost, &host.host()), Lost::default());
    }

    #[test]
    fn what_this_kernel_has_no_hook_for_is_lost_once() {
        let host = FakeHost::good().file("/sys/module/kvm_intel/parameters/ple_gap", "0\n");
        let mut lost = Lost::default();
        for hook in OPTIONAL {
            lost.add(hook.counters, "none".into());
        }
        let (counters, notes) = (lost.counters.len(), lost.notes.len());
        let lost = with_what_is_hidden(&lost, &host.host());
        assert_eq!((lost.counters.len(), lost.notes.len()), (counters, notes));
    }
}
