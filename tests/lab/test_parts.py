# SPDX-License-Identifier: GPL-2.0-only
"""The lab's parts that need no boot."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cohortlab.lab import apt, cache, cpio, emulator, kernels, sampling, turn, vmlinux
from cohortlab.lab.agent import AgentError, Answer, Connection, GuestChannel, Sample
from cohortlab.places import PlaceCrashed, PlaceError, PlaceFailed


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# The cache


def test_a_folder_is_built_once_and_only_if_its_build_ends_well() -> None:
    built: list[Path] = []

    def fails(folder: Path) -> None:
        (folder / "half").touch()
        raise PlaceError("no")

    def works(folder: Path) -> None:
        built.append(folder)
        (folder / "whole").touch()

    with pytest.raises(PlaceError):
        cache.built("x", fails)
    assert not (cache.root() / "x").exists()
    assert cache.built("x", works) == cache.built("x", works) == cache.root() / "x"
    assert len(built) == 1
    assert [path.name for path in (cache.root() / "x").iterdir()] == ["whole"]
    assert not list(cache.root().glob(".building-*"))


def test_labs_take_turns(tmp_path: Path) -> None:
    said: list[str] = []
    first = turn.take(tmp_path, lambda text, _: said.append(text))
    turn.announce(first, "the first")
    second = subprocess.Popen(["sleep", "1000"], pass_fds=(first,))  # inherits the turn
    try:
        waiting = threading.Event()

        def progress(text: str, fraction: float | None) -> None:
            said.append(text)
            waiting.set()

        got: list[int] = []
        third = threading.Thread(target=lambda: got.append(turn.take(tmp_path, progress)))
        third.start()
        assert waiting.wait(60)
        assert not got
        assert "the first" in said[-1]
    finally:
        second.kill()
        second.wait()
    assert not got, "this process still has it"
    os.close(first)
    third.join(60)
    assert got
    os.close(got[0])


def test_what_nobody_has_used_for_long_is_removed_but_for_the_last(tmp_path: Path) -> None:
    for name, age_s in (("root-a", 10), ("root-b", 20), ("root-old", 9_000), ("root-older", 10_000), ("other", 10_000)):
        (cache.root() / name).mkdir()
        os.utime(cache.root() / name, (time.time() - age_s,) * 2)
    cache.tidy("root-", 1)
    assert {path.name for path in cache.root().iterdir()} >= {"root-a", "root-b", "other"}
    assert not list(cache.root().glob("root-old*"))
    os.utime(cache.root() / "root-b", (0, 0))
    cache.built("root-b", lambda _: None)
    cache.tidy("root-", 0)
    assert (cache.root() / "root-b").exists(), "it was asked for just now"


# Kernels and initramfs


def bzimage(release: str, magic: bytes = b"HdrS") -> bytes:
    head = bytearray(0x4000)
    head[0x202:0x206] = magic
    head[0x20E:0x210] = (0x3000 - 0x200).to_bytes(2, "little")
    text = f"{release} (somebody@somewhere) #1 SMP\0".encode()
    head[0x3000 : 0x3000 + len(text)] = text
    return bytes(head)


def test_a_kernel_file_tells_its_release_and_its_modules_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vmlinuz = tmp_path / "boot" / "vmlinuz"
    modules = tmp_path / "usr/lib/modules/9.9.9-x"
    vmlinuz.parent.mkdir()
    modules.mkdir(parents=True)
    vmlinuz.write_bytes(bzimage("9.9.9-x"))
    found = kernels.kernel(str(vmlinuz))
    assert (found.release, found.modules) == ("9.9.9-x", modules)
    monkeypatch.chdir(vmlinuz.parent)
    assert kernels.kernel("./vmlinuz").modules == modules


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"no kernel", bzimage("9.9", magic=b"\0\0\0\0"), bytes(0x8000)),
        # Its release begins where nothing is, and does not end.
        *(bzimage("9.9")[:0x3000] + bytes(256), bzimage("9.9")[:0x3002]),
    ],
)
def test_a_file_that_is_no_kernel_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vmlinuz"
    path.write_bytes(content)
    with pytest.raises(PlaceError, match="is not a Linux kernel") as error:
        kernels.kernel(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("wanted", "said"), [("./nope", "cannot be read"), ("/", "cannot be read"), ("newest", "is not allowed")]
)
def test_other_wrong_kernels_are_refused_in_one_line(wanted: str, said: str) -> None:
    with pytest.raises(PlaceError, match=said) as error:
        kernels.kernel(wanted)
    assert "\n" not in str(error.value)


class FakeApt:
    """A mirror with some kernels, the oldest of them in the suite before."""

    old: tuple[str, ...] = ("6.1.0-41-cloud-amd64", "6.1.0-9-cloud-amd64")
    has_old = True
    without_old = "apt-get failed: E: The repository 'http://a bookworm Release' does not have a Release file."
    releases: tuple[str, ...] = ("6.18.5+deb-cloud-amd64", "6.18.15+deb-cloud-amd64", "7.0.1+deb-cloud-amd64")

    def __init__(self, folder: Path) -> None:
        folder.mkdir()

    def update(self, *, old: bool = False) -> None:
        if old and not self.has_old:
            raise PlaceFailed(self.without_old)
        if old:
            self.releases = self.old + self.releases

    def names(self, prefix: str) -> list[str]:
        new = [f"linux-{part}-{self.releases[-1]}" for part in ("binary", "modules")]
        return [*(f"linux-image-{release}" for release in self.releases), *new, "linux-image-7.9.9-amd64", "linux-doc"]

    def fetch(self, packages: list[str], *, with_dependencies: bool) -> list[Path]:
        return [Path(package) for package in packages]


@pytest.mark.parametrize(
    ("wanted", "unpacked"),
    [
        (None, [f"linux-{part}-7.0.1+deb-cloud-amd64" for part in ("image", "binary", "modules")]),
        ("6.18", ["linux-image-6.18.15+deb-cloud-amd64"]),
        ("6.18.5", ["linux-image-6.18.5+deb-cloud-amd64"]),
        ("6.1", ["linux-image-6.1.0-41-cloud-amd64"]),
    ],
)
def test_the_newest_kernel_of_a_release_is_taken(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None, unpacked: list[str]
) -> None:
    taken: list[str] = []

    def unpack(package: Path, root: Path) -> None:
        taken.append(str(package))
        (root / "boot").mkdir(exist_ok=True)
        (root / "boot/vmlinuz-x").write_bytes(bzimage("1.2.3"))

    monkeypatch.setattr(kernels, "Apt", FakeApt)
    monkeypatch.setattr(kernels, "unpack", unpack)
    assert kernels.kernel(wanted).release == "1.2.3"
    assert taken == unpacked
    kernels.kernel(wanted)
    assert taken == unpacked, "fetched once"


def test_a_release_that_is_not_there_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "Apt", FakeApt)
    with pytest.raises(PlaceError, match=r'"5\.10" is not in .* one of 6\.1, 6\.18, 7\.0$'):
        kernels.kernel("5.10")


def test_a_mirror_without_the_suite_before_has_what_the_others_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "Apt", FakeApt)
    monkeypatch.setattr(FakeApt, "has_old", False)
    with pytest.raises(PlaceError, match=r'"6\.1" is not in .* one of 6\.18, 7\.0$'):
        kernels.kernel("6.1")


def test_a_mirror_that_fails_meanwhile_is_no_mistake_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "Apt", FakeApt)
    monkeypatch.setattr(FakeApt, "has_old", False)
    monkeypatch.setattr(FakeApt, "without_old", "apt-get failed: E: Could not connect")
    with pytest.raises(PlaceFailed, match="Could not connect"):
        kernels.kernel("6.1")


def test_a_mirror_without_kernels_is_no_mistake_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "Apt", FakeApt)
    monkeypatch.setattr(FakeApt, "names", lambda *_: [])
    monkeypatch.setattr(kernels, "archive_uri", lambda: "http://mirror/debian")
    with pytest.raises(PlaceFailed, match="the Debian mirror http://mirror/debian has no kernel for the lab"):
        kernels.kernel("6.18")


def entries(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of what is in a "newc" archive, as the kernel documents that format."""
    found: dict[str, tuple[int, bytes]] = {}
    at = 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = archive[at + 110 : at + 110 + name_size]
        assert name.endswith(b"\0")
        content = (at + 110 + name_size + 3) // 4 * 4
        if name == b"TRAILER!!!\0":
            return found
        found[name[:-1].decode()] = (mode, archive[content : content + size])
        at = (content + size + 3) // 4 * 4


def test_the_initramfs_holds_files_and_the_folders_before_them(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"x" * 1001)
    whole = cpio.archive({"init": b"#!/bin/sh\n", "a/b/program": program}, folders=("proc",))
    assert len(whole) % 512 == 0
    folder = (0o040755, b"")
    assert entries(whole) == {
        "a": folder,
        "a/b": folder,
        "proc": folder,
        "init": (0o100755, b"#!/bin/sh\n"),
        "a/b/program": (0o100755, b"x" * 1001),
    }
    assert list(entries(whole))[-2:] == ["init", "a/b/program"]


def elf(note: tuple[bytes, int] = (b"Xen\0", 18)) -> bytes:
    """Return an ELF file of a header, one segment of notes and nothing else."""
    name, kind = note
    other = struct.pack("<III", 6, 2, 0) + b"Linux\0\0\0" + b"xx\0\0"
    notes = other + struct.pack("<III", len(name), 8, kind) + name + bytes(8)
    head = bytearray(64)
    head[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", head, 0x20, 64)
    struct.pack_into("<HH", head, 0x36, 56, 1)
    return bytes(head) + struct.pack("<IIQQQQQQ", 4, 0, 120, 0, 0, len(notes), len(notes), 4) + notes


def packed(payload: bytes) -> bytes:
    """Return a vmlinuz with a payload, and something behind it."""
    whole = bytearray(bzimage("9.9") + b"start" + payload + b"more")
    whole[0x1F1] = 31  # sectors of setup code, but for the first
    whole[0x206:0x208] = (0x20F).to_bytes(2, "little")
    whole[0x248:0x24C] = (5).to_bytes(4, "little")
    whole[0x24C:0x250] = len(payload).to_bytes(4, "little")
    return bytes(whole)


def zstd(data: bytes) -> bytes:
    import pyarrow

    return bytes(pyarrow.Codec("zstd").compress(data, asbytes=True)) + len(data).to_bytes(4, "little")


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, zstd])
def test_a_kernel_is_unpacked_beforehand(pack: Callable[[bytes], bytes]) -> None:
    assert vmlinux.unpacked(packed(pack(elf()))) == elf()


@pytest.mark.parametrize(
    "vmlinuz",
    [
        b"",
        b"no kernel",
        bzimage("9.9"),  # of a boot protocol that does not say where
        packed(b"\x02\x21\x4c\x18 of lz4"),
        packed(gzip.compress(elf())[:-20]),
        packed(zstd(elf())[:-20]),
        packed(gzip.compress(b"no ELF")),
        packed(gzip.compress(elf()[:100])),
        packed(gzip.compress(elf((b"Xen\0", 17)))),
        packed(gzip.compress(elf((b"GNU\0", 18)))),
    ],
)
def test_a_kernel_that_cannot_be_booted_unpacked_is_booted_as_it_is(vmlinuz: bytes) -> None:
    assert vmlinux.unpacked(vmlinuz) is None


def test_what_is_booted_is_made_once_and_lies_on_a_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[str]] = []
    monkeypatch.setattr(vmlinux, "make_disk", lambda root, disk: made.append([file.name for file in root.iterdir()]))
    vmlinuz = tmp_path / "vmlinuz"
    for content, booted in ((packed(gzip.compress(elf())), elf()), (b"other", b"other")):
        vmlinuz.write_bytes(content)
        assert vmlinux.bootable(vmlinuz).file.read_bytes() == booted
        assert vmlinux.bootable(vmlinuz) == vmlinux.bootable(vmlinuz)
    assert made == [[vmlinux.NAME], [vmlinux.NAME]]


# apt


@pytest.mark.parametrize(
    ("targets", "uri"),
    [
        (
            "Debian|Debian-Security|bookworm-security|main|http://sec/\nDebian|Debian|bookworm|main|http://a/",
            "http://a/",
        ),
        ("Debian|Debian|trixie|main|cdrom:[Debian 13]/\nDebian|Debian|trixie|main|http://a/", "http://a/"),
        ("Docker|Docker CE|bookworm|stable|http://docker/\n||bookworm-updates|main|http://b/", "http://b/"),
    ],
)
def test_the_mirror_is_the_machines_own(monkeypatch: pytest.MonkeyPatch, targets: str, uri: str) -> None:
    monkeypatch.setattr(apt, "_run", lambda argv: targets)
    assert apt.archive_uri() == uri


@pytest.mark.parametrize("targets", ["", "Ubuntu|Ubuntu|noble|main|http://u/", "||nodistro|main|http://n/"])
def test_a_machine_without_debian_sources_is_told(monkeypatch: pytest.MonkeyPatch, targets: str) -> None:
    monkeypatch.setattr(apt, "_run", lambda argv: targets)
    with pytest.raises(PlaceError, match="no Debian archive"):
        apt.archive_uri()


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="this machine has no apt")
def test_a_mirror_that_cannot_be_reached_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "archive_uri", lambda: "http://127.0.0.1:9/debian")
    once = 'Acquire::Retries "0";\nAcquire::http::Proxy::127.0.0.1 "DIRECT";\n'
    (tmp_path / "once.conf").write_text(once)
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "once.conf"))
    with pytest.raises(PlaceFailed, match="apt-get failed: E: "):
        apt.Apt(tmp_path / "apt").update()


# The agent's client


def alive() -> None: ...


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, socket.socket]]:
    """A socket like the one QEMU listens on, deeper than the 108 bytes of a socket's address."""
    folder = tmp_path / ("deep" * 20) / ("deeper" * 10)
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("agent.sock")
        server.listen()
        yield folder / "agent.sock", server


def serve(server: socket.socket, answer: Callable[[list[dict]], list[str]], requests: int) -> threading.Thread:
    """Answer ``requests`` lines at once, in a thread; then hang up."""

    def talk() -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("rw") as file:
            lines = [json.loads(file.readline()) for _ in range(requests)]
            file.write("".join(f"{line}\n" for line in answer(lines)))

    thread = threading.Thread(target=talk)
    thread.start()
    return thread


def test_answers_find_their_callers(port: tuple[Path, socket.socket]) -> None:
    def backwards(requests: list[dict]) -> list[str]:
        answers = [json.dumps({"id": request["id"], "ok": request["op"]}) for request in reversed(requests)]
        return ['"}} of an earlier answer', "[]", '{"id": 1, "ok": {}}', *answers]

    thread = serve(port[1], backwards, 3)
    connection = Connection(port[0], alive)
    got: dict[int, Answer] = {}
    callers = [threading.Thread(target=lambda n=n: got.update({n: connection.call({"number": n})})) for n in range(3)]
    for caller in callers:
        caller.start()
    for caller in (*callers, thread):
        caller.join(60)
    assert {n: answer.value for n, answer in got.items()} == {n: {"number": n} for n in range(3)}
    connection.close()


def test_an_error_and_a_lost_port_are_errors(port: tuple[Path, socket.socket]) -> None:
    serve(port[1], lambda requests: [json.dumps({"id": requests[0]["id"], "error": "cannot"})], 1)
    connection = Connection(port[0], alive)
    with pytest.raises(AgentError, match=r"^cannot$"):
        connection.call({"ping": {}})
    with pytest.raises(AgentError, match="closed"):  # it has hung up
        connection.call({"ping": {}})
    connection.close()


def test_who_waits_is_told_of_a_death(port: tuple[Path, socket.socket]) -> None:
    def dead() -> None:
        raise PlaceCrashed("it died")

    connection = Connection(port[0], dead)
    with pytest.raises(PlaceCrashed, match="it died"):
        connection.call({"ping": {}})
    connection.close()


def test_no_answer_is_a_timeout(port: tuple[Path, socket.socket]) -> None:
    connection = Connection(port[0], alive)
    with pytest.raises(TimeoutError, match="ping"):
        connection.call({"ping": {}}, timeout_s=0.1)
    connection.close()


def test_a_guests_answer_comes_with_both_samples() -> None:
    class Host:
        def call(self, op: dict, sample: tuple = (), timeout_s: float = 0) -> Answer:
            forward = op["forward"]
            inner = {"time_ns": 5, "files": dict.fromkeys(forward["sample"], "in")}
            value = {"id": 1, "ok": forward["op"], "sample": {"before": inner, "after": inner}}
            outer = Sample(7, dict.fromkeys(sample, "out"))
            return Answer(value, outer, outer)

    inner, outer = GuestChannel(Host(), "vm.sock").call_sampled({"ping": {}}, ["a"], ["b"])
    assert (inner.value, inner.before, inner.after) == ({"ping": {}}, Sample(5, {"a": "in"}), Sample(5, {"a": "in"}))
    assert outer.before == Sample(7, {"b": "out"})


# What is read


def test_guest_counters_are_differences_summed_over_vcpus() -> None:
    def files(tlb: int, steal: int) -> dict[str, str | None]:
        interrupts = f"           CPU0       CPU1\n  0:  9  9  IO-APIC\nTLB:  {tlb}  {tlb + 1}  TLB shootdowns\n"
        return {"/proc/interrupts": interrupts, "/proc/stat": f"cpu  1 2 3 4 5 6 7 {steal} 0 0\ncpu0 1 1 1 1\n"}

    counted = sampling.guest_counters(Answer({}, Sample(0, files(10, 100)), Sample(1, files(15, 350))))
    assert counted == {"tlb_shootdowns": 10.0, "steal_s": 2.5}


def test_cpu_time_of_a_cgroup() -> None:
    assert sampling.usage_s("usage_usec 1500000\nuser_usec 1\n") == 1.5
    with pytest.raises(PlaceCrashed):
        sampling.usage_s(None)


@pytest.mark.parametrize(
    ("line", "deadly", "complaint"),
    [
        ("[    4.6] Oops: int3: 0000 [#1] SMP NOPTI", True, False),
        ("[    4.6] BUG: unable to handle page fault for address: 0", True, True),
        ("[    4.6] Kernel panic - not syncing: sysrq triggered crash", True, False),
        ("[    4.6] WARNING: CPU: 0 PID: 1 at kernel/sched/ext.c:1 x+0x1/0x2", False, True),
        ("[    4.6] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", False, True),
        ("[    4.6] watchdog: BUG: soft lockup - CPU#0 stuck for 26s!", False, True),
        ('[    4.6] sched_ext: BPF scheduler "cohort" disabled (runnable task stall)', False, True),
        ("[    4.6] sched_ext: cohort: runtime error", False, True),
        ("[    8.4] kvm [137]: vcpu0, guest rIP: 0xff Unhandled WRMSR(0xc0010007) = 0xffff", False, False),
        ("[    2.4] clocksource: Watchdog remote CPU 1 read timed out", False, False),
        ("[    3.7] kvm_intel: VMX not supported by CPU 0", False, False),
    ],
)
def test_what_the_console_says_is_understood(line: str, deadly: bool, complaint: bool) -> None:
    assert bool(emulator.DEATH.search(line)) == deadly
    assert bool(emulator.COMPLAINT.search(line)) == complaint
