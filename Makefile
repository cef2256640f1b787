# SPDX-License-Identifier: GPL-2.0-only
# Each target is a list of steps; scripts/steps says what each one does.
# None of them has a file that make could look at: the steps themselves know what is up to date, by contents.
SETUP := packages python toolchain
BUILD := $(SETUP) binaries
CHECK := check-rust check-c check-python check-shell

.PHONY: help setup build demo test test-lab test-lab-kernels test-mutations bench check emulator install uninstall deb wheel format lock clean
.DEFAULT_GOAL := help

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

demo: ## compare EEVDF and Cohort, simulated and on real kernels; installs and builds what it needs
	@scripts/steps $(BUILD) demo-sim lab-emulator demo-lab

test: ## run linters, unit and property tests, and one boot of the lab
	@scripts/steps $(BUILD) $(CHECK) test-rust test-python lab-emulator test-lab

test-lab: ## run the tests in the lab, with faults and on two kernels
	@scripts/steps $(BUILD) lab-emulator test-lab-all

test-lab-kernels: ## run the lab's tests that are the same on one more kernel: the probe's on 6.1 and 6.12, shares on 6.18
	@scripts/steps $(BUILD) lab-emulator test-lab-kernels

test-mutations: ## put mistakes into copies of the scheduler, which the tests must find; pip-install the wheel; large hosts
	@scripts/steps $(BUILD) test-costs test-mutations

bench: ## measure the simulator's speed beside other simulators; one JSON object per figure
	@scripts/steps $(BUILD) >&2
	@scripts/bench

check: ## run formatters and linters
	@scripts/steps $(SETUP) $(CHECK)

format: ## let the formatters rewrite the sources
	@for language in rust c python; do scripts/check $$language --fix || exit; done

build: ## build cohort and cohort-lab-agent into build/bin/, and the simulator
	@scripts/steps $(BUILD)

emulator: ## build the lab's emulator into the cache folder, once
	@scripts/steps $(BUILD) emulator

install: ## install cohort, its pages, completions and units: PREFIX=/usr/local, DESTDIR= (after make build)
	@scripts/install

uninstall: ## remove what make install installed
	@scripts/install --remove

deb: ## pack cohort as a Debian package into build/
	@scripts/steps $(BUILD) deb

wheel: ## pack cohortlab with the simulator as a Python wheel into build/dist/
	@scripts/steps $(BUILD) wheel

setup: ## install packages, the Python environment and, where it is missing, Rust
	@scripts/steps $(SETUP)

lock: ## pin the newest allowed versions again, Python's and Rust's
	@scripts/lock

clean: ## remove everything built; the cache folder (~/.cache/cohort) stays
	rm -rf build
