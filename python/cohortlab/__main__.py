# SPDX-License-Identifier: GPL-2.0-only
"""``python -m cohortlab``: the same as the ``cohortlab`` command."""

import sys

from cohortlab.cli import main

sys.exit(main())
