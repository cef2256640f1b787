// SPDX-License-Identifier: GPL-2.0-only
//! What a guest is told of the hypervisor, from its QEMU's command line.

use std::collections::BTreeMap;

use crate::probe::Told;

/// The hints and calls that a guest finds in its CPUID. `hyper_v`: it is offered Hyper-V's instead, as for Windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestCpu {
    pub tlb_flush: bool,
    pub unhalt: bool,
    pub ipi: bool,
    pub sched_yield: bool,
    pub steal_time: bool,
    pub hint_dedicated: bool,
    /// `kvm=off`: none of the above can be seen.
    pub hidden: bool,
    pub hyper_v: bool,
    pub hv_tlb_flush: bool,
    pub hv_ipi: bool,
    pub hv_spinlocks: bool,
}

// Linux's asm/kvm_para.h: bits of what KVM tells a guest.
const KVM_FEATURE_STEAL_TIME: u32 = 5;
const KVM_FEATURE_PV_UNHALT: u32 = 7;
const KVM_FEATURE_PV_TLB_FLUSH: u32 = 9;
const KVM_FEATURE_PV_SEND_IPI: u32 = 11;
const KVM_FEATURE_PV_SCHED_YIELD: u32 = 13;
// Hyper-V's specification (TLFS), leaf 0x40000004: bits of what is recommended, and how long to spin before calling.
const HV_REMOTE_TLB_FLUSH: u32 = 2;
const HV_CLUSTER_IPI: u32 = 10;
const HV_NEVER: u32 = u32::MAX;

/// What QEMU gives to `host` and `max`: all that KVM has.
const EVERYTHING: GuestCpu = GuestCpu {
    tlb_flush: true,
    unhalt: true,
    ipi: true,
    sched_yield: true,
    steal_time: true,
    hint_dedicated: false,
    hidden: false,
    hyper_v: false,
    hv_tlb_flush: false,
    hv_ipi: false,
    hv_spinlocks: false,
};

impl GuestCpu {
    /// From QEMU's `-cpu`, such as `qemu64,+x2apic,kvm-pv-unhalt=on`. QEMU applies `+x` and `-x` after all `x=on` and `x=off`.
    pub fn from_model(model: &str) -> Self {
        let mut words = model.split(',').map(str::trim);
        let name = words.next().unwrap_or_default();
        let mut settings: BTreeMap<String, bool> = BTreeMap::new();
        let mut signed = Vec::new();
        for word in words {
            // The one alias that is spelt otherwise is kvm_pv_unhalt for kvm-pv-unhalt, and so on.
            let plain = |text: &str| text.replace('_', "-");
            if let Some(feature) = word.strip_prefix('+') {
                signed.push((plain(feature), true));
            } else if let Some(feature) = word.strip_prefix('-') {
                signed.push((plain(feature), false));
            } else {
                let (feature, value) = word.split_once('=').unwrap_or((word, "on"));
                settings.insert(plain(feature), !matches!(value, "off" | "no" | "false" | "n"));
            }
        }
        settings.extend(signed);
        let set = |feature: &str| settings.get(feature).copied();
        // A named model has steal time and none of the others.
        let by_default = match name {
            "host" | "max" => EVERYTHING,
            _ => GuestCpu { steal_time: true, ..GuestCpu::default() },
        };
        let all_of_hyper_v = set("hv-passthrough").unwrap_or(false);
        let hv = |feature: &str| set(feature).unwrap_or(all_of_hyper_v);
        let cpu = GuestCpu {
            tlb_flush: set("kvm-pv-tlb-flush").unwrap_or(by_default.tlb_flush),
            unhalt: set("kvm-pv-unhalt").unwrap_or(by_default.unhalt),
            ipi: set("kvm-pv-ipi").unwrap_or(by_default.ipi),
            sched_yield: set("kvm-pv-sched-yield").unwrap_or(by_default.sched_yield),
            steal_time: set("kvm-steal-time").unwrap_or(by_default.steal_time),
            hint_dedicated: set("kvm-hint-dedicated").unwrap_or(false),
            hidden: set("kvm") == Some(false),
            hyper_v: settings.iter().any(|(feature, on)| feature.starts_with("hv-") && *on),
            hv_tlb_flush: hv("hv-tlbflush"),
            hv_ipi: hv("hv-ipi"),
            hv_spinlocks: hv("hv-spinlocks"),
        };
        cpu.visible()
    }

    /// What a vCPU's CPUID says. The hint that its pCPUs are its own is not among what KVM keeps.
    pub fn from_cpuid(told: &Told) -> Self {
        let kvm = |bit: u32| told.features & 1 << bit != 0;
        let hyper_v = |bit: u32| told.hyper_v.is_some_and(|(recommended, _)| recommended & 1 << bit != 0);
        GuestCpu {
            tlb_flush: kvm(KVM_FEATURE_PV_TLB_FLUSH),
            unhalt: kvm(KVM_FEATURE_PV_UNHALT),
            ipi: kvm(KVM_FEATURE_PV_SEND_IPI),
            sched_yield: kvm(KVM_FEATURE_PV_SCHED_YIELD),
            steal_time: kvm(KVM_FEATURE_STEAL_TIME),
            hyper_v: told.hyper_v.is_some(),
            hv_tlb_flush: hyper_v(HV_REMOTE_TLB_FLUSH),
            hv_ipi: hyper_v(HV_CLUSTER_IPI),
            hv_spinlocks: told.hyper_v.is_some_and(|(_, spins)| spins != HV_NEVER),
            ..GuestCpu::default()
        }
    }

    /// Without what `kvm=off` hides.
    fn visible(self) -> Self {
        if !self.hidden {
            return self;
        }
        GuestCpu {
            tlb_flush: false,
            unhalt: false,
            ipi: false,
            sched_yield: false,
            steal_time: false,
            hint_dedicated: false,
            ..self
        }
    }
}

/// What QEMU's command line says of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QemuArgs {
    /// None: the command line names no model, which is then QEMU's default.
    pub cpu: Option<GuestCpu>,
    /// `-overcommit cpu-pm=on`: HLT, MWAIT and PAUSE do not leave the guest.
    pub cpu_pm: bool,
}

impl QemuArgs {
    pub fn parse(words: &[String]) -> Self {
        let mut args = QemuArgs::default();
        for pair in words.windows(2) {
            // QEMU takes two dashes as well.
            let option = pair[0].strip_prefix('-').map(|option| option.strip_prefix('-').unwrap_or(option));
            match option {
                Some("cpu") => args.cpu = Some(GuestCpu::from_model(&pair[1])),
                Some("overcommit") => {
                    // One that does not speak of it leaves it as it was.
                    let said = pair[1].rsplit(',').find_map(|word| match word.split_once('=') {
                        Some(("cpu-pm", value)) => Some(!matches!(value, "off" | "no" | "false" | "n")),
                        _ => (word == "cpu-pm").then_some(true),
                    });
                    args.cpu_pm = said.unwrap_or(args.cpu_pm);
                }
                _ => {}
            }
        }
        args
    }
}

/// Is this the command line of a QEMU? Its first word may be a loader, whose options come first, or an interpreter. Options of another VMM may name KVM.
pub fn is_qemu(words: &[String]) -> bool {
    let program = |word: &String| word.rsplit('/').next().unwrap_or_default().to_string();
    let by_loader = words.first().map(program).is_some_and(|name| name.starts_with("ld"));
    words
        .iter()
        .take(6)
        .take_while(|word| by_loader || !word.starts_with('-'))
        .map(program)
        .any(|name| name.starts_with("qemu-system-") || matches!(name.as_str(), "qemu-kvm" | "kvm" | "qemu"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_string).collect()
    }

    #[test]
    fn named_models_have_steal_time_only() {
        let cpu = GuestCpu::from_model("Cascadelake-Server");
        assert_eq!(cpu, GuestCpu { steal_time: true, ..GuestCpu::default() });
        assert_eq!(GuestCpu::from_model(""), cpu);
    }

    #[test]
    fn host_and_max_have_everything() {
        assert_eq!(GuestCpu::from_model("host,migratable=on"), EVERYTHING);
        assert_eq!(GuestCpu::from_model("max"), EVERYTHING);
    }

    #[test]
    fn each_feature_in_each_spelling() {
        for spelt in ["+kvm-pv-tlb-flush", "kvm-pv-tlb-flush=on", "kvm_pv_tlb_flush=on", "kvm-pv-tlb-flush"] {
            assert!(GuestCpu::from_model(&format!("qemu64,{spelt}")).tlb_flush, "{spelt}");
        }
        for spelt in ["-kvm-pv-tlb-flush", "kvm-pv-tlb-flush=off", "kvm_pv_tlb_flush=off"] {
            assert!(!GuestCpu::from_model(&format!("host,{spelt}")).tlb_flush, "{spelt}");
        }
        let cpu = GuestCpu::from_model("EPYC,+kvm-pv-unhalt,+kvm-pv-ipi,+kvm-pv-sched-yield,-kvm-steal-time");
        assert!(cpu.unhalt && cpu.ipi && cpu.sched_yield && !cpu.steal_time && !cpu.tlb_flush);
        assert!(GuestCpu::from_model("host,kvm-hint-dedicated=on").hint_dedicated);
        assert!(!GuestCpu::from_model("host,-kvm-pv-unhalt,kvm-pv-unhalt=on").unhalt, "a sign comes last");
    }

    #[test]
    fn hidden_kvm_hides_all_of_it() {
        let cpu = GuestCpu::from_model("host,kvm=off,hv-tlbflush,hv-ipi,hv-spinlocks=0x1fff");
        assert!(cpu.hidden && !cpu.tlb_flush && !cpu.steal_time && !cpu.unhalt);
        assert!(cpu.hyper_v && cpu.hv_tlb_flush && cpu.hv_ipi && cpu.hv_spinlocks);
        let all = GuestCpu::from_model("host,hv-passthrough=on");
        assert!(all.hyper_v && all.hv_tlb_flush && all.hv_ipi && all.hv_spinlocks);
    }

    #[test]
    fn what_the_kernel_keeps_is_read_as_what_qemu_sets() {
        let told = |features, hyper_v| GuestCpu::from_cpuid(&Told { pid: 1, features, hyper_v });
        assert_eq!(told(0, None), GuestCpu::default());
        assert_eq!(told(0x1 << 5, None), GuestCpu::from_model("qemu64"));
        assert_eq!(told(0x2aa0, None), EVERYTHING);
        for (bit, model) in [
            (7, "qemu64,+kvm-pv-unhalt"),
            (9, "qemu64,+kvm-pv-tlb-flush"),
            (11, "qemu64,+kvm-pv-ipi"),
            (13, "qemu64,+kvm-pv-sched-yield"),
        ] {
            assert_eq!(told(1 << 5 | 1 << bit, None), GuestCpu::from_model(model), "{model}");
        }
        let windows = told(1 << 5, Some((1 << 2 | 1 << 10, 0x1fff)));
        assert_eq!(windows, GuestCpu::from_model("qemu64,hv-tlbflush,hv-ipi,hv-spinlocks=0x1fff"));
        let bare = told(1 << 5, Some((0, u32::MAX)));
        assert!(bare.hyper_v && !bare.hv_tlb_flush && !bare.hv_ipi && !bare.hv_spinlocks);
    }

    #[test]
    fn command_lines() {
        let args = QemuArgs::parse(&words(
            "qemu-system-x86_64 -cpu max -cpu qemu64 -overcommit mem-lock=on,cpu-pm=on",
        ));
        assert!(args.cpu_pm);
        assert!(!args.cpu.unwrap().unhalt, "the last -cpu counts");
        assert_eq!(QemuArgs::parse(&words("qemu-system-x86_64 -m 1G -cpu")), QemuArgs::default());
        assert!(!QemuArgs::parse(&words("qemu --overcommit cpu-pm=off")).cpu_pm);
        let cpu_pm = |rest: &str| QemuArgs::parse(&words(&format!("qemu -overcommit {rest}"))).cpu_pm;
        assert!(cpu_pm("cpu-pm=on -overcommit mem-lock=off"), "the second says nothing of it");
        assert!(!cpu_pm("cpu-pm=on -overcommit cpu-pm=off"));
        assert!(cpu_pm("cpu-pm=true") && cpu_pm("cpu-pm") && !cpu_pm("cpu-pm=on,cpu-pm=no"));
    }

    #[test]
    fn qemu_by_any_of_its_names() {
        for line in [
            "/usr/bin/qemu-system-x86_64 -m 1",
            "/usr/libexec/qemu-kvm",
            "ld.so --library-path x /q/kvm -m 1",
        ] {
            assert!(is_qemu(&words(line)), "{line}");
        }
        let others = [
            "firecracker --id x",
            "cloud-hypervisor",
            "/usr/bin/qemu-img",
            "crosvm run --hypervisor kvm",
            "x -s /run/kvm",
        ];
        for line in others {
            assert!(!is_qemu(&words(line)), "{line}");
        }
    }
}
