// SPDX-License-Identifier: GPL-2.0-only
//! The tests of what the build script is made of: cargo runs none that are part of a build script.

#![allow(clippy::unwrap_used, dead_code, reason = "tests, of parts")]

#[path = "../build/chains.rs"]
mod chains;
#[path = "../build/code.rs"]
mod code;
#[path = "../build/constants.rs"]
mod constants;
#[path = "../build/depth.rs"]
mod depth;
#[path = "../../sim/build/enums.rs"]
mod enums;
#[path = "../build/tools.rs"]
mod tools;
