# SPDX-License-Identifier: GPL-2.0-only
"""The Debian package and its service, under a systemd on the lab's host: installed, run, killed, upgraded, removed.

The lab's image has no systemd. So the packages that make one are unpacked over it, and it runs as the first process of
a PID namespace, in a cgroup of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import slow

from cohortlab.lab import cache
from cohortlab.lab.agent import Machine
from cohortlab.lab.apt import Apt, unpack

if TYPE_CHECKING:
    from conftest import BareBoot, BareHost

pytestmark = [pytest.mark.lab, pytest.mark.long]

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("base-files", "dbus", "diffutils", "init-system-helpers", "perl-base", "systemd", "systemd-sysv")
# No lists of their files: dpkg only has to know that they are there.
STATUS = (
    "Package: {name}\nStatus: install ok installed\nVersion: 1:99\nArchitecture: all\nMaintainer: -\nDescription: -\n"
)
UNPACK = """
set -e
tar -C / --keep-directory-symlink -xf "$(command -v systemd.tar)"
cp "$(command -v cohort.deb)" /root.deb
mkdir -p /run/systemd /etc/systemd/system /sys/fs/cgroup/services
: >/etc/machine-id
"""
START = """
echo $$ >/sys/fs/cgroup/services/cgroup.procs
exec env container=lab unshare --pid --fork --cgroup --mount --mount-proc sh -c \
    'mount -t cgroup2 cgroup2 /sys/fs/cgroup; exec /usr/lib/systemd/systemd --system --unit=basic.target'
"""
# Where the lab's own programs are, there is a cohort, too.
PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
# Begins a command that runs where systemd is, whose number is another after each boot.
ENTER = f'{PATH} nsenter -t "$(pgrep -x systemd | head -n 1)" -p -m -C'
FILES = (
    "/usr/bin/cohort",
    "/usr/lib/systemd/system/cohort.service",
    "/usr/lib/systemd/system/cohort-metrics.service",
    "/usr/share/man/man1/cohort-run.1.gz",
    "/usr/share/doc/cohort/THIRD-PARTY",
    "/usr/share/doc/cohort/copyright",
    "/usr/share/doc/cohort/top.md",
    "/usr/share/cohort/grafana/dashboard.json",
    "/usr/share/cohort/grafana/alerts.yml",
)
SETTINGS = "/etc/default/cohort"
METRICS = "cohort-metrics"
SCHEDULER = "/sys/kernel/sched_ext/state"


def systemd() -> Path:
    """Return an archive of systemd and all that it needs, from the suite of the lab's image."""

    def build(folder: Path) -> None:
        apt = Apt(folder / "apt")
        apt.update()
        root = folder / "root"
        packages = apt.fetch(PACKAGES, with_dependencies=True)
        for package in sorted(packages, key=lambda path: not path.name.startswith("base-files_")):
            unpack(package, root)
        database = root / "var/lib/dpkg"
        for name in ("info", "updates", "triggers"):
            (database / name).mkdir(parents=True, exist_ok=True)
        names = [package.name.split("_")[0] for package in packages]
        (database / "status").write_text("\n".join(STATUS.format(name=name) for name in names))
        for name in names:
            (database / "info" / f"{name}.list").touch()
        subprocess.run(["tar", "-C", root, "-cf", folder / "systemd.tar", "."], check=True)
        shutil.rmtree(root)
        shutil.rmtree(folder / "apt")

    return cache.built("systemd-trixie", build) / "systemd.tar"


class Host:
    """The lab's host with a systemd."""

    def __init__(self, machine: BareHost) -> None:
        self.machine = machine

    def sh(self, command: str) -> str:
        """Run a command as one that systemd had started."""
        return self.machine.check(f"{ENTER} {command}").strip()

    def shown(self, name: str, service: str = "cohort") -> str:
        return self.sh(f"systemctl show --value -p {name} {service}")

    def until(self, name: str, value: str, service: str = "cohort") -> None:
        """Wait until systemd shows ``value``."""
        slow.until(self.machine.emulator, lambda: self.shown(name, service) == value, f"{name} is {value}", 30)

    def daemon(self) -> str:
        return self.machine.run("pgrep -x cohort").stdout.strip()


@pytest.fixture(scope="module")
def package() -> Path:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["scripts/deb"], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return REPOSITORY / done.stdout.splitlines()[-1]


@pytest.fixture
def machine(bare: BareBoot, package: Path) -> Iterator[BareHost]:
    with closing(bare(start_systemd, files={"systemd.tar": systemd(), "cohort.deb": package})) as machine:
        yield machine


def start_systemd(machine: Machine) -> None:
    machine.check(UNPACK)
    machine.spawn("systemd", START)
    machine.check("until pgrep -x systemd; do sleep 0.2; done")
    # Only it sees its /run.
    machine.check(f"until {ENTER} systemctl --quiet is-active basic.target; do sleep 0.5; done")


@pytest.fixture
def host(machine: BareHost) -> Host:
    return Host(machine)


def test_installed_run_upgraded_and_removed(host: Host) -> None:
    host.sh("dpkg -i /root.deb")
    assert host.sh("dpkg -V cohort") == ""
    for file in (*FILES, SETTINGS, f"/etc/default/{METRICS}"):
        host.machine.check(f"test -f {file}")
    assert host.sh("/usr/bin/cohort man run").startswith(".")
    # It is for the operator to start.
    for service in ("cohort", METRICS):
        states = (host.shown("ActiveState", service), host.shown("UnitFileState", service))
        assert states == ("inactive", "disabled")
    assert host.machine.read(SCHEDULER).strip() == "disabled"

    host.sh("systemctl start cohort")
    # Not before the scheduler is attached does that return.
    assert host.machine.read(SCHEDULER).strip() == "enabled"
    assert host.shown("StatusText") == "scheduling with policy cohort"
    assert host.machine.read(f"/proc/{host.daemon()}/oom_score_adj").strip() == "-900"

    host.machine.check(f"echo 'COHORT_ARGS=\"--policy balance --slice-us 8000\"' >{SETTINGS}")
    host.sh("systemctl restart cohort")
    assert host.shown("StatusText") == "scheduling with policy balance"

    before = host.daemon()
    host.sh("dpkg --force-confold -i /root.deb")
    assert host.daemon() == before != ""
    assert "balance" in host.machine.read(SETTINGS)

    host.sh("dpkg -r cohort")
    assert (host.daemon(), host.machine.read(SCHEDULER).strip()) == ("", "disabled")
    assert all(host.machine.run(f"test -e {file}").rc == 1 for file in FILES)
    host.sh("dpkg -P cohort")
    found = host.machine.check("find /etc /usr /var -name '*cohort*' -not -path '/var/lib/dpkg/*' 2>/dev/null || true")
    assert found == ""


def test_a_process_that_hangs_is_started_again(host: Host) -> None:
    host.sh("dpkg -i /root.deb")
    folder = "/etc/systemd/system/cohort.service.d"
    host.machine.check(
        f"mkdir -p {folder} && printf '[Service]\\nWatchdogSec=6\\nRestartSec=1\\n' >{folder}/short.conf"
    )
    host.sh("systemctl daemon-reload")
    host.sh("systemctl start cohort")
    # Twice the watchdog's time: it is told that all is well.
    host.machine.check("sleep 12")
    assert (host.shown("ActiveState"), host.shown("NRestarts")) == ("active", "0")
    hung = host.daemon()
    host.machine.check(f"kill -STOP {hung}")
    host.until("NRestarts", "1")
    host.until("ActiveState", "active")
    assert host.daemon() not in ("", hung)
    assert host.machine.read(SCHEDULER).strip() == "enabled"


def test_metrics_are_served_where_the_operator_says(host: Host) -> None:
    def is_served(port: int) -> bool:
        page = host.machine.run(f"busybox wget -q -O - http://127.0.0.1:{port}/metrics").stdout
        return "\ncohort_host_pcpus 2\n" in page and page.endswith("# EOF\n")

    def until_served(port: int) -> None:
        slow.until(host.machine.emulator, lambda: is_served(port), f"port {port} serves metrics", 60)

    host.sh("dpkg -i /root.deb")
    host.machine.check("busybox ip link set lo up")
    host.sh(f"systemctl start {METRICS}")
    until_served(9479)
    assert host.machine.read(SCHEDULER).strip() == "disabled"
    host.machine.check(f"echo 'COHORT_METRICS_ADDRESS=\"127.0.0.1:9480\"' >/etc/default/{METRICS}")
    host.sh(f"systemctl restart {METRICS}")
    until_served(9480)
    assert not is_served(9479)

    before = host.daemon()
    host.sh(f"systemctl kill -s HUP {METRICS}")
    host.machine.check("sleep 2")
    assert host.daemon() == before != ""

    host.machine.check(f"kill -KILL {before}")
    host.until("NRestarts", "1", METRICS)
    until_served(9480)
    host.sh("dpkg -r cohort")
    assert host.daemon() == ""
