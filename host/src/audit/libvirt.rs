// SPDX-License-Identifier: GPL-2.0-only
//! What libvirt keeps about the domains that run: a file for each, which names the process and holds the domain's XML.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use roxmltree::{Document, Node};

use crate::audit::guest_cpu::GuestCpu;
use crate::audit::snapshot::names_in;
use crate::checks::Host;

const DOMAINS: &str = "/run/libvirt/qemu";
/// Of the largest domains' files, with room.
const BYTES_MAX: usize = 4 << 20;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Domain {
    pub name: String,
    pub cpu: Option<GuestCpu>,
}

/// The domains by their QEMU's process number; and whether there are files of some that this user may not read.
pub fn domains(host: &Host) -> (BTreeMap<i32, Domain>, bool) {
    // What is not there is none, or has just gone.
    let denied = |error: io::Error| error.kind() != io::ErrorKind::NotFound;
    let mut unread = fs::read_dir(host.path(DOMAINS)).is_err_and(denied);
    let mut found = BTreeMap::new();
    for name in names_in(host, DOMAINS).into_iter().filter(|name| name.ends_with(".xml")) {
        match fs::read(host.path(&format!("{DOMAINS}/{name}"))) {
            Ok(bytes) if bytes.len() <= BYTES_MAX => {
                found.extend(parse(String::from_utf8_lossy(&bytes).trim()));
            }
            Ok(_) => {}
            Err(error) => unread |= denied(error),
        }
    }
    (found, unread)
}

fn parse(text: &str) -> Option<(i32, Domain)> {
    let document = Document::parse(text).ok()?;
    let status = document.root_element();
    let pid = status.attribute("pid")?.parse().ok()?;
    let domain = child(status, "domain")?;
    let name = child(domain, "name").and_then(|name| name.text()).unwrap_or_default().to_string();
    Some((pid, Domain { name, cpu: guest_cpu(domain) }))
}

/// As libvirt makes QEMU's `-cpu` of it. A domain without `<cpu>` has QEMU's default model.
fn guest_cpu(domain: Node) -> Option<GuestCpu> {
    let mut model = match child(domain, "cpu").and_then(|cpu| cpu.attribute("mode")) {
        Some("host-passthrough") => "host".to_string(),
        Some("maximum") => "max".to_string(),
        _ => "named".to_string(),
    };
    let features = child(domain, "features");
    let below = |group: Option<Node>, name| is_on(child(group?, name)?);
    let mut set = |feature: &str, on: Option<bool>| {
        if let Some(on) = on {
            model += &format!(",{feature}={}", if on { "on" } else { "off" });
        }
    };
    set("kvm-pv-unhalt", below(features, "pvspinlock"));
    let kvm = features.and_then(|features| child(features, "kvm"));
    set("kvm", below(kvm, "hidden").map(|hidden| !hidden));
    set("kvm-hint-dedicated", below(kvm, "hint-dedicated"));
    let hyper_v = features.and_then(|features| child(features, "hyperv"));
    set(
        "hv-passthrough",
        hyper_v.and_then(|group| group.attribute("mode")).map(|mode| mode == "passthrough"),
    );
    for name in ["relaxed", "tlbflush", "ipi", "spinlocks"] {
        set(&format!("hv-{name}"), below(hyper_v, name));
    }
    Some(GuestCpu::from_model(&model))
}

fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| child.has_tag_name(name))
}

fn is_on(node: Node) -> Option<bool> {
    node.attribute("state").map(|state| state == "on")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::tests::FakeHost;

    const DOMAIN: &str = "<domstatus state='running' reason='booted' pid='4711'><domain type='kvm' id='1'>\
        <name>web</name><vcpu placement='static' current='2'>4</vcpu>\
        <features><acpi/><pvspinlock state='on'/><hyperv mode='custom'><tlbflush state='on'/></hyperv>\
        <kvm><hint-dedicated state='on'/></kvm></features><cpu mode='host-model' check='partial'/></domain></domstatus>";

    #[test]
    fn a_domain_that_runs() {
        let host = FakeHost::new()
            .file("/run/libvirt/qemu/web.xml", DOMAIN)
            .file("/run/libvirt/qemu/web.pid", "4711")
            .file("/run/libvirt/qemu/broken.xml", "<domstatus pid='1'><domain>");
        let (domains, unread) = domains(&host.host());
        assert!(!unread);
        assert_eq!(domains.keys().collect::<Vec<_>>(), [&4711]);
        let domain = &domains[&4711];
        assert_eq!(domain.name, "web");
        let cpu = domain.cpu.clone().unwrap();
        assert!(cpu.unhalt && cpu.hint_dedicated && cpu.hv_tlb_flush && cpu.steal_time && !cpu.tlb_flush);
    }

    #[test]
    fn a_file_that_may_not_be_read_is_told_from_one_that_is_not_there() {
        assert_eq!(domains(&FakeHost::new().host()), (BTreeMap::new(), false), "no libvirt");
        // Root may read any file; a folder is none.
        let host = FakeHost::new()
            .file("/run/libvirt/qemu/web.xml", DOMAIN)
            .file("/run/libvirt/qemu/shop.xml/x", "");
        let (found, unread) = domains(&host.host());
        assert_eq!((found.len(), unread), (1, true));
        let host = FakeHost::new().file("/run/libvirt/qemu", "");
        assert_eq!(domains(&host.host()), (BTreeMap::new(), true), "nor is the folder");
    }

    #[test]
    fn host_passthrough_has_everything_but_what_is_off() {
        let text = DOMAIN.replace("host-model", "host-passthrough").replace("<acpi/>", "<acpi/><pae/>");
        let text = text.replace("<pvspinlock state='on'/>", "<pvspinlock state='off'/>");
        let (_, domain) = parse(&text).unwrap();
        let cpu = domain.cpu.unwrap();
        assert!(cpu.tlb_flush && cpu.ipi && !cpu.unhalt);
        let hidden = text.replace("<kvm>", "<kvm><hidden state='on'/>");
        assert!(parse(&hidden).unwrap().1.cpu.unwrap().hidden);
    }

    #[test]
    fn what_is_no_domain_is_none() {
        for text in [
            "",
            "<a/>",
            "<domstatus pid='x'/>",
            "<domstatus pid='1'/>",
            "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
