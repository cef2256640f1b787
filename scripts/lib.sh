# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0-only
# What the scripts share: places, and the one way to stop with a sentence.
# shellcheck disable=SC2034 # used by those who source this

set -euo pipefail

# With a CDPATH, a relative `cd` may go elsewhere, and prints where.
repo=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repo"
logs=build/logs
stamps=build/stamps
venv=build/venv
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-build/target}")
export CARGO_TARGET_DIR
# The Python environment is this repository's alone: pip would take what is found elsewhere for installed, or install elsewhere.
unset PYTHONHOME PYTHONPATH PIP_CONSTRAINT PIP_PREFIX PIP_REQUIRE_HASHES PIP_ROOT PIP_TARGET
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_USER=0
# For cargo it comes before .cargo/config.toml: what is checked, tested and packed would be another target's, if that is there at all.
unset CARGO_BUILD_TARGET
# What make was told is for this repository: libbpf is built by a make of its own, which would install it by our PREFIX and DESTDIR.
unset MAKEFLAGS MFLAGS MAKEOVERRIDES

die() {
	printf '%s\n' "$*" >&2
	exit 1
}

# fresh NAME TEXT: whether NAME was last finished with exactly this TEXT as its input.
# Contents, not times: a clone, a checkout and a restored cache all touch the times.
fresh() {
	[ "$(cat "$stamps/$1" 2>/dev/null)" = "$2" ]
}

finished() {
	mkdir -p "$stamps"
	printf '%s\n' "$2" >"$stamps/$1"
}
