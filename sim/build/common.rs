// SPDX-License-Identifier: GPL-2.0-only
//! What the build scripts of this workspace share.

use std::error::Error;
use std::process::ExitCode;

/// How a build ends. Its error is not returned from main, which would print clang's message with its line breaks quoted.
pub fn exit(result: Result<(), Box<dyn Error>>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
