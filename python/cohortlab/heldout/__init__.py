# SPDX-License-Identifier: GPL-2.0-only
"""How well the simulator predicts what nobody looked at while it was made: ``cohortlab held-out``."""
