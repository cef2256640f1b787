# SPDX-License-Identifier: GPL-2.0-only
"""What ``cohort record`` saw of a real host: as traces, as tables, as a scenario to be simulated."""
