# SPDX-License-Identifier: GPL-2.0-only
"""Many simulated runs: every combination of values of some fields, on all CPUs or on a cluster, into one Parquet file.

| module | what it is |
|---|---|
| ``axes`` | which fields take which values |
| ``plan`` | all that the points need, in one object that goes to any worker; a point's run |
| ``chunks`` | points that are simulated and kept together; their files, and the one that they become |
| ``local``, ``cluster`` | who simulates: threads of this process, Dask |
| ``tune`` | the best values of a policy's knobs |
| ``commands``, ``tune_cli`` | ``cohortlab sweep`` and ``cohortlab tune`` |
"""
