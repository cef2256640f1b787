# SPDX-License-Identifier: GPL-2.0-only
"""Writes the notices that go with what others wrote of a program: `third_party.py CRATE FILE`, by scripts/in-toolchain.

It refuses a crate whose licence does not go with GPL-2.0-only.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The target is that of .cargo/config.toml. Whoever has built has fetched all of it.
METADATA = (
    "cargo",
    "metadata",
    "--format-version=1",
    "--offline",
    "--locked",
    "--filter-platform=x86_64-unknown-linux-gnu",
)
# In one program with GPL-2.0-only. Not among them: Apache-2.0, and version 3 of the GNU licences.
COMPATIBLE = {
    "0BSD",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "GPL-2.0-only",
    "GPL-2.0-or-later",
    "ISC",
    "LGPL-2.1-only",
    "LGPL-2.1-or-later",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}
NOTICE = re.compile(r"(un)?licen[cs]e|copying|copyright|notice", re.IGNORECASE)
# What a crate brings along and compiles, in folders of its own.
VENDORED = {"libbpf-sys": ("libbpf",)}
# What is no crate: in every program; and in a static one, with the package of Debian that has its notice.
STANDARD = {"Rust's standard library": "MIT OR Apache-2.0, by the Rust Project's contributors"}
STATIC = {
    "glibc": ("LGPL-2.1-or-later", "libc6-dev"),
    "libelf": ("GPL-2.0-or-later OR LGPL-3.0-or-later", "libelf-dev"),
    "libgcc": ("GPL-3.0-or-later WITH GCC-exception-3.1", ""),
    "zlib": ("Zlib", "zlib1g-dev"),
    "zstd, where libelf needs it": ("BSD-3-Clause OR GPL-2.0-only", "libzstd-dev"),
}
STATIC_CRATES = {"cohort"}
# Where Debian has them.
DEBIAN_DOC = Path("/usr/share/doc")
HEAD = """\
What others wrote of {crate}

{crate} is GPL-2.0-only. It contains what is listed here, or was made with it. Of a choice of licences, one that goes
with GPL-2.0-only is taken: not Apache-2.0, nor version 3 of a GNU licence. Below the list are the notices as they came,
each once, after the names of those to which it belongs.
"""


def fits(expression: str) -> bool:
    """Return whether a licence, an SPDX expression or the older "MIT/Apache-2.0", goes with GPL-2.0-only."""
    tokens = re.findall(r"[()/]|[^\s()/]+", expression)

    def either() -> bool:
        fit = both()
        while tokens[:1] in (["OR"], ["/"]):
            tokens.pop(0)
            fit |= both()
        return fit

    def both() -> bool:
        fit = one()
        while tokens[:1] == ["AND"]:
            tokens.pop(0)
            fit &= one()
        return fit

    def one() -> bool:
        name = tokens.pop(0) if tokens else ""
        if name == "(":
            fit = either()
            return bool(tokens) and tokens.pop(0) == ")" and fit
        if tokens[:1] == ["WITH"]:
            name = " ".join((name, *tokens[:2]))
            del tokens[:2]
        return name in COMPATIBLE

    return either() and not tokens


def shipped(metadata: dict[str, Any], crate: str) -> list[dict[str, Any]]:
    """Return the packages of others that a crate of ours needs when it runs, sorted, from `cargo metadata`."""
    packages = {package["id"]: package for package in metadata["packages"]}
    needs = {
        node["id"]: [
            dep["pkg"] for dep in node["deps"] if any(how["kind"] in (None, "normal") for how in dep["dep_kinds"])
        ]
        for node in metadata["resolve"]["nodes"]
    }
    (root,) = (name for name, package in packages.items() if package["name"] == crate and package["source"] is None)
    seen, ahead = {root}, [root]
    while ahead:
        for name in needs[ahead.pop()]:
            if name not in seen:
                seen.add(name)
                ahead.append(name)
    others = [packages[name] for name in seen if packages[name]["source"] is not None]
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def notices(package: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each notice of a package; for one that has none, what it says of itself."""
    folder = Path(package["manifest_path"]).parent
    found = False
    for part in (".", *VENDORED.get(package["name"], ())):
        for path in sorted((folder / part).iterdir()):
            if NOTICE.match(path.name) and path.is_file():
                found = True
                yield str(path.relative_to(folder)), path.read_text(encoding="utf-8", errors="replace")
    if not found:
        authors = ", ".join(package["authors"]) or "its authors"
        yield "Cargo.toml", f"{package['license']}, by {authors}: {package['repository'] or 'no address given'}"


def beside(crate: str, doc: Path = DEBIAN_DOC) -> Iterator[tuple[str, str, str]]:
    """Yield name, licence and notice, which may be empty, of what is no crate."""
    for name, licence in STANDARD.items():
        yield name, licence, ""
    if crate not in STATIC_CRATES:
        return
    for name, (licence, package) in STATIC.items():
        path = doc / package / "copyright"
        yield name, licence, path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def text(metadata: dict[str, Any], crate: str, doc: Path = DEBIAN_DOC) -> str:
    """Return the whole file."""
    index: list[str] = []
    owners: dict[str, list[str]] = {}

    def add(name: str, notice: str) -> None:
        whole = "\n".join(line.rstrip() for line in notice.splitlines()).strip("\n")
        if whole:
            owners.setdefault(whole, []).append(name)

    for package in shipped(metadata, crate):
        name = f"{package['name']} {package['version']}"
        # Without an expression it has a file of its own, which somebody has to read.
        licence = package["license"] or "no licence that is named"
        if not fits(licence):
            sys.exit(f"third_party: {name}: its licence, {licence}, does not go with GPL-2.0-only")
        index.append(f"{name}: {licence}")
        for file, notice in notices(package):
            add(f"{name}: {file}", notice)
    for name, licence, notice in beside(crate, doc):
        index.append(f"{name}: {licence}")
        add(name, notice)
    parts = [HEAD.format(crate=crate) + "\n" + "\n".join(index)]
    parts += ["=" * 80 + "\n" + "\n".join(names) + "\n" + "-" * 80 + "\n\n" + whole for whole, names in owners.items()]
    return "\n\n".join(parts) + "\n"


def cargo_metadata() -> dict[str, Any]:
    done = subprocess.run(METADATA, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split())
        sys.exit(f"third_party: cargo metadata fails ({said}): run `make build` first")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(argv: list[str]) -> None:
    crate, file = argv
    Path(file).write_text(text(cargo_metadata(), crate), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
