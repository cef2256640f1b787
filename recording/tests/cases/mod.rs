// SPDX-License-Identifier: GPL-2.0-only
//! How many cases a property is tried on, and which.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// The same cases each time, unless PROPTEST_RNG_SEED says otherwise.
pub fn cases() -> ProptestConfig {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let rng_seed = if config.rng_seed == RngSeed::Random { RngSeed::Fixed(20_263) } else { config.rng_seed };
    ProptestConfig { rng_seed, ..config }
}
