# SPDX-License-Identifier: GPL-2.0-only
"""Old name of ``cohortlab lab``; goes away."""

import sys

from cohortlab.cli import main

sys.argv[1:1] = ["lab"]
sys.argv = ["--file" if a == "--put" else a for a in sys.argv]
sys.exit(main())
