# SPDX-License-Identifier: GPL-2.0-only
"""What this machine's KVM can do, found by using it: a device node alone promises nothing."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

DEVICE = Path("/dev/kvm")

# Request numbers and layouts of <linux/kvm.h>, x86-64.
_GET_API_VERSION = 0xAE00
_CREATE_VM = 0xAE01
_GET_VCPU_MMAP_SIZE = 0xAE04
_GET_SUPPORTED_CPUID = 0xC008AE05
_CREATE_VCPU = 0xAE41
_SET_USER_MEMORY_REGION = 0x4020AE46
_RUN = 0xAE80
_SET_REGS = 0x4090AE82
_GET_SREGS = 0x8138AE83
_SET_SREGS = 0x4138AE84
_API_VERSION = 12
_EXIT_HLT = 5
_HLT = 0xF4
_PAGE = 4096


@dataclass(frozen=True)
class Kvm:
    """What was found.

    Attributes:
        present: the device node exists.
        usable: a guest ran.
        nested: guests can be given a KVM of their own.
        reason: why it is not usable; empty when it is.
    """

    present: bool
    usable: bool
    nested: bool
    reason: str


def probe(device: Path = DEVICE) -> Kvm:
    """Run a one-instruction guest and ask what guests may have."""
    if not device.exists():
        return Kvm(False, False, False, f"{device} does not exist")
    try:
        kvm = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return Kvm(True, False, False, f"{device} cannot be opened: {error.strerror}")
    try:
        reason = _try_guest(kvm)
        return Kvm(True, not reason, not reason and _offers_virtualization(kvm), reason)
    except OSError as error:
        return Kvm(True, False, False, f"{device} does not work: {error.strerror}")
    finally:
        os.close(kvm)


def _try_guest(kvm: int) -> str:
    """Return why a guest does not run; empty when it does."""
    version = fcntl.ioctl(kvm, _GET_API_VERSION)
    if version != _API_VERSION:
        return f"KVM's interface has version {version}: must be {_API_VERSION}"
    vm = fcntl.ioctl(kvm, _CREATE_VM, 0)
    try:
        return _run_hlt(kvm, vm)
    finally:
        os.close(vm)


def _run_hlt(kvm: int, vm: int) -> str:
    # One page of guest memory at 4096, where a vCPU in real mode finds a single `hlt`.
    memory = mmap.mmap(-1, _PAGE)
    memory[0] = _HLT
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(vm, _SET_USER_MEMORY_REGION, struct.pack("<IIQQQ", 0, 0, _PAGE, _PAGE, address))
    vcpu = fcntl.ioctl(vm, _CREATE_VCPU, 0)
    try:
        state = mmap.mmap(vcpu, fcntl.ioctl(kvm, _GET_VCPU_MMAP_SIZE))
        segments = bytearray(312)  # struct kvm_sregs; the first one is cs: base, limit, selector
        fcntl.ioctl(vcpu, _GET_SREGS, segments)
        struct.pack_into("<QIH", segments, 0, 0, 0xFFFF, 0)
        fcntl.ioctl(vcpu, _SET_SREGS, segments)
        registers = bytearray(144)  # struct kvm_regs; the last two are rip and rflags, whose bit 1 is always set
        struct.pack_into("<QQ", registers, 128, _PAGE, 2)
        fcntl.ioctl(vcpu, _SET_REGS, registers)
        fcntl.ioctl(vcpu, _RUN)
        (reason,) = struct.unpack_from("<I", state, 8)
        return "" if reason == _EXIT_HLT else f"a guest of one instruction ended with KVM exit {reason}"
    finally:
        os.close(vcpu)


def _offers_virtualization(kvm: int) -> bool:
    """Return whether KVM supports VMX or SVM in its guests."""
    entries = 256
    table = bytearray(8 + 40 * entries)
    struct.pack_into("<I", table, 0, entries)
    try:
        fcntl.ioctl(kvm, _GET_SUPPORTED_CPUID, table)
    except OSError as error:
        if error.errno == errno.E2BIG:  # more entries than any known processor has
            return False
        raise
    (count,) = struct.unpack_from("<I", table, 0)
    for number in range(count):
        function, _, _, _, _, ecx, _ = struct.unpack_from("<7I", table, 8 + 40 * number)
        if (function == 1 and ecx & 1 << 5) or (function == 0x80000001 and ecx & 1 << 2):
            return True
    return False
