# SPDX-License-Identifier: GPL-2.0-only
"""`cohort top`, `record` and `audit` on hosts that lack something: one sentence with the remedy, and an exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from ground import NOBODY

from cohortlab.lab import binaries
from cohortlab.lab.agent import Machine

if TYPE_CHECKING:
    from conftest import BareBoot, BareHost

pytestmark = [pytest.mark.lab, pytest.mark.long]

FOLDER = "/tmp/missing"
WATCHERS = {
    "top": "top --batch --json --interval 0.2 -n 1",
    "record": f"record --seconds 0.2 --out {FOLDER}/host.rec",
}
# Without KVM's BTF, but with the kernel's.
KERNELS_BTF_ALONE = (
    "cp /sys/kernel/btf/vmlinux /dev/shm/ && mount -t tmpfs none /sys/kernel/btf && "
    "touch /sys/kernel/btf/vmlinux && mount --bind /dev/shm/vmlinux /sys/kernel/btf/vmlinux"
)


@pytest.fixture(scope="module")
def host(bare: BareBoot) -> Iterator[BareHost]:
    files = {"cohort": binaries.find("cohort")}
    with closing(bare(lambda host: host.check(f"mkdir -m 777 {FOLDER}"), files=files)) as host:
        yield host


def hiding(command: str) -> str:
    """Return what a command begins with that sees the host as ``command`` leaves it."""
    return f"unshare --mount sh -c '{command} && exec \"$@\"' sh"


def refused(host: Machine, verb: str, prefix: str, remedy: str) -> None:
    done = host.run(f"{prefix} $(command -v cohort) {WATCHERS[verb]}", 120)
    print(done.stderr)
    assert (done.rc, done.stdout) == (2, "")
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("cohort: ")
    assert remedy in line
    assert host.check(f"ls -A {FOLDER}") == ""


def audited(host: Machine, prefix: str) -> str:
    """Return what the audit says, which finds something on the lab's host."""
    done = host.run(f"{prefix} $(command -v cohort) audit", 120)
    assert done.rc in (0, 1), done.stderr
    assert len(done.stderr.splitlines()) <= 1
    return done.stdout


def test_nothing_is_missing(host: Machine) -> None:
    for args in WATCHERS.values():
        done = host.run(f"cohort {args}", 120)
        assert done.rc == 0, done.stderr
    host.check(f"rm {FOLDER}/host.rec")
    assert "not known" not in audited(host, "")


@pytest.mark.parametrize("verb", WATCHERS)
@pytest.mark.parametrize(
    ("prefix", "remedy"),
    [
        (hiding("mount -t tmpfs none /sys/kernel/btf"), "boot one built with CONFIG_DEBUG_INFO_BTF=y"),
        (hiding(KERNELS_BTF_ALONE), "boot a kernel built with CONFIG_DEBUG_INFO_BTF_MODULES=y"),
        (NOBODY, "run as root, or with the capabilities CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN"),
    ],
    ids=["no BTF", "no BTF of KVM", "not root"],
)
def test_what_is_missing_is_said_with_its_remedy(host: Machine, verb: str, prefix: str, remedy: str) -> None:
    refused(host, verb, prefix, remedy)


def test_the_audit_needs_neither_btf_nor_root(host: Machine) -> None:
    assert "not known" not in audited(host, hiding("mount -t tmpfs none /sys/kernel/btf"))
    assert "not known" in audited(host, NOBODY)


def kvm_set(**parameters: str) -> str:
    """Return what a command begins with that sees kvm_amd loaded so."""
    files = [
        f"echo {value} >/dev/shm/{name} && mount --bind /dev/shm/{name} /sys/module/kvm_amd/parameters/{name}"
        for name, value in parameters.items()
    ]
    return hiding(" && ".join(files))


@pytest.mark.parametrize(
    ("prefix", "lost", "note"),
    [
        (kvm_set(avic="Y", enable_ipiv="Y"), {"ipis_sent", "ipis_preempted", "ipi_wait_ns"}, "enable_ipiv=0"),
        (
            kvm_set(pause_filter_count="0"),
            {"ple", "ple_kernel", "ple_chains", "ple_chain_max", "yields_asked", "yields_granted"},
            "kvm_amd.pause_filter_count is 0",
        ),
    ],
    ids=["interrupts pass KVM by", "no spins are caught"],
)
def test_what_kvm_keeps_from_the_probe_is_no_zero(host: Machine, prefix: str, lost: set[str], note: str) -> None:
    if host.run("test -d /sys/module/kvm_amd").rc:
        pytest.skip("the parameters are those of kvm_amd")
    done = host.run(f"{prefix} $(command -v cohort) {WATCHERS['top']}", 120)
    assert done.rc == 0, done.stderr
    sample = json.loads(done.stdout)
    assert set(sample["missing"]) == lost
    assert any(note in line for line in sample["notes"]), sample["notes"]
    done = host.run(f"{prefix} $(command -v cohort) {WATCHERS['record']}", 120)
    host.check(f"rm {FOLDER}/host.rec")
    assert note in done.stderr


def test_a_host_whose_kvm_is_not_loaded(host: Machine) -> None:
    """The last one: it is not loaded again."""
    host.check("rmmod kvm_amd 2>/dev/null || rmmod kvm_intel; rmmod kvm")
    for verb in WATCHERS:
        refused(host, verb, "", "load it (modprobe kvm_intel, or kvm_amd)")
    assert "KVM's settings: it is not loaded" in audited(host, "")
