// SPDX-License-Identifier: GPL-2.0-only
//! Questions that may be answered late, or never: what is read in another process' memory takes as long as that is held by somebody else.

use std::sync::mpsc::{channel, Receiver};
use std::thread;

/// Ask it in a thread of its own, which ends with the answer. If there can be no more threads, nobody answers.
pub fn ask<T: Send + 'static>(question: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (asks, answers) = channel();
    // Nobody may want it any more.
    let _asking = thread::Builder::new().spawn(move || asks.send(question()));
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_never_comes_keeps_nobody_waiting() {
        let (holds, held) = channel::<()>();
        let never = ask(move || held.recv().is_ok());
        assert_eq!(ask(|| 7).recv(), Ok(7));
        assert!(never.try_recv().is_err());
        drop(holds);
        assert_eq!(never.recv(), Ok(false));
    }
}
