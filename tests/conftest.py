# SPDX-License-Identifier: GPL-2.0-only
"""What holds for every test."""

import hypothesis

# A busy machine is no failure: examples have no deadline. And a failure must come back: same examples each time.
hypothesis.settings.register_profile("cohort", deadline=None, derandomize=True)
hypothesis.settings.load_profile("cohort")
