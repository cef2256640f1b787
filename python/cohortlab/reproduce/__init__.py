# SPDX-License-Identifier: GPL-2.0-only
"""The papers' experiments beside our own runs: files ``papers/PAPER/EXPERIMENT.toml``, simulated and compared.

``load`` reads an experiment, ``runs`` simulates what it needs, ``formula`` computes, ``outcome`` judges, ``draw`` and
``report`` show.
"""
