# SPDX-License-Identifier: GPL-2.0-only
"""Debian packages of another suite, fetched by apt into folders of our own; the machine's stay as they are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from cohortlab.errors import one_line
from cohortlab.places import PlaceError, PlaceFailed

SUITE = "trixie"
# The suite with the newest kernels built for SUITE.
BACKPORTS = f"{SUITE}-backports"
# The suite before, with an older kernel.
OLD_SUITE = "bookworm"

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_RELEASES = r"(bullseye|bookworm|trixie|forky|sid|oldstable|stable|testing|unstable)(-updates|-backports)?"


def _run(argv: list[str]) -> str:
    """Return the standard output of an apt or dpkg command."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}, check=False)
    except FileNotFoundError:
        raise PlaceError(f"the lab needs {argv[0]}, which is not installed: run it on Debian") from None
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()[-1:]
        raise PlaceFailed(one_line(f"{argv[0]} failed: {'; '.join(said)}"))
    return done.stdout


def archive_uri() -> str:
    """Return the Debian mirror that this machine's own apt is configured to use."""
    # apt itself reads every format that its sources may have. Origin and label are known after an `apt-get update`.
    form = "$(ORIGIN)|$(LABEL)|$(RELEASE)|$(COMPONENT)|$(REPO_URI)"
    for line in _run(["apt-get", "indextargets", "--format", form]).splitlines():
        origin, label, release, component, uri = line.split("|", 4)
        known_as_debian = (origin, label) == ("Debian", "Debian") or not (origin or label)
        is_mirror = not uri.startswith("cdrom:")
        if known_as_debian and is_mirror and component == "main" and re.fullmatch(_RELEASES, release):
            return uri
    raise PlaceError("apt's sources name no Debian archive (main): the lab is built from Debian packages; add one")


class Apt:
    """apt with sources, lists and package state of its own, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "apt.conf"

    def update(self, *, sources: bool = False, old: bool = False) -> None:
        """Read what the mirror has: binary packages, or source packages; with ``old``, of the suite before too."""
        kind = "deb-src" if sources else "deb"
        suites = f"{SUITE} {BACKPORTS} {OLD_SUITE}" if old else f"{SUITE} {BACKPORTS}"
        for name in ("lists/partial", "archives/partial"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        # Without packages "installed", dependencies are resolved down to the C library.
        (self.folder / "status").touch()
        signed_by = f"Signed-By: {_KEYRING}\n" if _KEYRING.exists() else ""  # otherwise apt's own trusted keys
        (self.folder / "debian.sources").write_text(
            f"Types: {kind}\nURIs: {archive_uri()}\nSuites: {suites}\nComponents: main\n{signed_by}"
        )
        self.config.write_text(
            # The machine's hooks would clean the machine's folders.
            "#clear APT::Update::Post-Invoke;\n#clear APT::Update::Post-Invoke-Success;\n#clear DPkg::Post-Invoke;\n"
            f'Dir::Etc::sourcelist "{self.folder}/debian.sources";\n'
            'Dir::Etc::sourceparts "/dev/null";\nDir::Etc::preferencesparts "/dev/null";\n'
            'Dir::Etc::preferences "/dev/null";\n'
            f'Dir::State::lists "{self.folder}/lists";\nDir::State::status "{self.folder}/status";\n'
            f'Dir::State::extended_states "{self.folder}/extended_states";\n'
            f'Dir::Cache::archives "{self.folder}/archives";\nDir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\n'
            # Our folders need not be readable by apt's own user; and only we lock them.
            'APT::Sandbox::User "root";\nDebug::NoLocking "true";\n'
            # A mirror that cannot be reached is a warning otherwise, and what it has counts as not existing.
            'APT::Update::Error-Mode "any";\n'
            'APT::Architecture "amd64";\n#clear APT::Architectures;\n'
            # The machine's own suite need not be one of ours, and apt refuses a name that it does not know.
            "#clear APT::Default-Release;\n"
        )
        _run(["apt-get", "-qq", "-c", str(self.config), "update"])

    def names(self, prefix: str) -> list[str]:
        """Return the names of the packages that start with ``prefix``."""
        return _run(["apt-cache", "-c", str(self.config), "pkgnames", prefix]).split()

    def fetch(self, packages: Iterable[str], *, with_dependencies: bool) -> list[Path]:
        """Download packages; return their files."""
        into = self.folder / "archives"
        shutil.rmtree(into)
        (into / "partial").mkdir(parents=True)
        if with_dependencies:
            argv = ["apt-get", "-qq", "-y", "-c", str(self.config), "--no-install-recommends", "--download-only"]
            _run([*argv, "install", *packages])
        else:
            uris = ["apt-get", "-qq", "-c", str(self.config), "--download-only", "download"]
            done = subprocess.run([*uris, *packages], cwd=into, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise PlaceFailed(one_line(f"apt-get cannot download {' '.join(packages)}: {done.stderr}"))
        return sorted(into.glob("*.deb"))

    def fetch_source(self, package: str, version: str) -> list[Path]:
        """Download a source package; return its files. ``update`` must have read the sources."""
        argv = ["apt-get", "-qq", "-c", str(self.config), "--download-only", "source", f"{package}={version}"]
        done = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PlaceFailed(one_line(f"apt-get cannot download the source of {package} {version}: {done.stderr}"))
        return sorted(path for path in self.folder.glob(f"{package}_*") if path.is_file())


def unpack(package: Path, root: Path) -> None:
    """Unpack the files of a package, without running anything of it."""
    _run(["dpkg-deb", "-x", str(package), str(root)])
