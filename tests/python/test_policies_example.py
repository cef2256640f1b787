# SPDX-License-Identifier: GPL-2.0-only
"""The worked example of docs/policies.md: one header and one line, and the scheduler has a new order."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
GUIDE = (REPO / "docs/policies.md").read_text()
CLANGS = ("clang-19", *(f"clang-{n}" for n in range(30, 15, -1)), "clang")


def with_example(bpf: Path) -> None:
    """Put the guide's header and its line, the last of the table, into a copy of the scheduler."""
    header, line = re.findall(r"```c\n(.*?)```", GUIDE, re.DOTALL)
    (bpf / "order_lottery.h").write_text(header)
    text = (bpf / "policies.h").read_text()
    table = re.search(r"#define ORDERS\(X\)(?:.*\\\n)*.*\n", text)
    assert table is not None
    # Whoever follows the guide in a checkout has it there already.
    if f"{line.partition(',')[0].strip()}," in table[0]:
        return
    (bpf / "policies.h").write_text(text.replace(table[0], f"{table[0].rstrip()} \\\n{line}"))


@pytest.fixture
def bpf(tmp_path: Path) -> Path:
    """Return a copy of the scheduler with the example in it, exactly as the guide has it."""
    copy = tmp_path / "bpf"
    copy.mkdir()
    for path in (REPO / "bpf").glob("*.[ch]"):
        shutil.copyfile(path, copy / path.name)
    with_example(copy)
    return copy


def test_who_has_the_example_already_has_it_once(bpf: Path) -> None:
    with_example(bpf)
    assert (bpf / "policies.h").read_text().count("X(lottery,") == 1


def test_the_example_is_as_short_as_it_says() -> None:
    header, _ = re.findall(r"```c\n(.*?)```", GUIDE, re.DOTALL)
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    assert len([text for text in code.splitlines() if text.strip()]) <= 40


def test_the_kernel_object_can_be_made_of_it(bpf: Path, tmp_path: Path) -> None:
    clang = next((name for name in CLANGS if shutil.which(name)), None)
    if clang is None:
        pytest.skip("no clang")
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPO / "build/target"))
    headers = sorted(target.glob("**/libbpf-sys-*/out/include/bpf/bpf_helpers.h"))
    if not headers:
        pytest.skip("libbpf's headers are not there: run `make build`")
    # In the order of the tables, as the build has them.
    tables = re.findall(
        r"#define (ORDER|GANG|SPIN|GUARD|GATE)S\(X\)((?:.*\\\n)*.*\n)", (bpf / "policies.h").read_text()
    )
    names = [f"{kind.lower()}_{name}.h" for kind, rows in tables for name in re.findall(r"\bX\((\w+),", rows)]
    lines = [f'#include "{name}"\n' for name in names if (bpf / name).exists()]
    (tmp_path / "policy_headers.h").write_text("".join(lines))
    command = [clang, "-O2", "-g", "-target", "bpf", "-D__TARGET_ARCH_x86", "-mcpu=v3", "-Wall", "-Werror"]
    command += ["-DONLY_gang=GANG_off", "-DLAYOUT_NUMBER=1"]
    command += [
        f"-I{bpf}",
        f"-I{tmp_path}",
        f"-I{headers[0].parents[1]}",
        "-c",
        str(bpf / "cohort.bpf.c"),
        "-o",
        # Not /dev/null: where the compiler fails it removes what it was to write, and root may.
        str(tmp_path / "cohort.bpf.o"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
