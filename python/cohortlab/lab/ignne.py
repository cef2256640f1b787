# SPDX-License-Identifier: GPL-2.0-only
"""Cures QEMU of a race by one byte, in a copy of Debian's binary.

QEMU's ``cpu_clear_ignne()`` clears a bit in the first CPU's ``hflags2``. Any CPU's thread does so, without a lock, at
every XRSTOR, FXRSTOR, FRSTOR and FLDENV. When the first CPU's own thread changes GIF, NPT, NMI, VINTR or HIF in that
word meanwhile, its change is lost. That CPU then walks a guest's page tables for the host, or takes no interrupts any
more. KVM restores FPU state at every entry, so a host of two CPUs dies within minutes. Only MS-DOS programs with
unmasked x87 exceptions need the function: here it returns at once.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

_NAME = b"cpu_clear_ignne"
_RET = 0xC3
_ENDBR64 = b"\xf3\x0f\x1e\xfa"
# andl $~HF2_IGNNE_MASK, offset(register): the function's one effect.
_CLEARS = re.compile(rb"\x81[\xa0-\xa7](?:\x24)?....\x7f\xff\xff\xff", re.DOTALL)
# It is tiny; anything longer has become something else.
_SIZE_MAX = 128
_SHT_DYNSYM = 11
_SYMBOL_SIZE = 24


class NotExpected(Exception):
    """The binary is not what this cure is for; the text says what was found."""


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int


def cure(binary: bytes) -> bytes:
    """Return ``binary``, an x86-64 ELF file, with ``cpu_clear_ignne()`` returning at once.

    Raises:
        NotExpected: there is no such function, or it does not do what is known to be wrong.
    """
    try:
        start, code = _function(binary)
    except (struct.error, IndexError, ValueError):
        raise NotExpected("it is not an ELF file that can be read") from None
    if not 0 < len(code) <= _SIZE_MAX or len(_CLEARS.findall(code)) != 1:
        raise NotExpected(f"its {_NAME.decode()} is not what was expected")
    first = start + (len(_ENDBR64) if code.startswith(_ENDBR64) else 0)
    return binary[:first] + bytes([_RET]) + binary[first + 1 :]


def _function(binary: bytes) -> tuple[int, bytes]:
    """Return where the function's code is in the file, and the code."""
    if binary[:5] != b"\x7fELF\x02":
        raise NotExpected("it is not a 64-bit ELF file")
    sections = list(_sections(binary))
    symbols = next((section for section in sections if section.type == _SHT_DYNSYM), None)
    if symbols is None:
        raise NotExpected("it exports nothing")
    names = sections[symbols.link].offset
    for at in range(symbols.offset, symbols.offset + symbols.size, _SYMBOL_SIZE):
        name, _info, _other, index, value, size = struct.unpack_from("<IBBHQQ", binary, at)
        if binary[names + name : binary.index(b"\0", names + name)] == _NAME and index:
            start = value - sections[index].address + sections[index].offset
            return start, binary[start : start + size]
    raise NotExpected(f"it exports no {_NAME.decode()}")


def _sections(binary: bytes) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", binary, 0x28)
    size, count = struct.unpack_from("<HH", binary, 0x3A)
    for number in range(count):
        yield _Section(*struct.unpack_from("<IIQQQQIIQQ", binary, table + number * size))
