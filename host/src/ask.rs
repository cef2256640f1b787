// SPDX-License-Identifier: GPL-2.0-only
//! Questions that may be answered late, or never: what is read in another process' memory takes as long as that is held by somebody else.

use std::collections::BTreeMap;
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Where many are asked, so many are at a time.
pub const AT_ONCE: usize = 64;
/// When there can be no more threads, one may end soon.
const AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silent {
    /// It was asked, and the answer has not come in time.
    Late,
    /// There was no thread to ask it.
    Unasked,
}

/// What a thread does that asks.
pub type Asking = Box<dyn FnOnce() + Send>;

/// Asks one question after the other, each in a thread of its own. A thread that gets no answer stays for
/// as long as it gets none, whether anybody still waits for it or not: so there are at most AT_ONCE.
#[derive(Default)]
pub struct Asker {
    /// Each of the threads has one more of it.
    outstanding: Arc<()>,
}

impl Asker {
    /// The thread ends with the answer. Nobody answers if too many have none, or no thread can be had.
    pub fn ask<T: Send + 'static>(&mut self, question: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
        let (asks, answers) = channel();
        if self.outstanding() < AT_ONCE {
            let one = Arc::clone(&self.outstanding);
            start(Box::new(move || {
                let answer = question();
                // Who has the answer may ask again at once.
                drop(one);
                // Nobody may want it any more.
                let _ = asks.send(answer);
            }));
        }
        answers
    }

    /// Questions without an answer so far.
    pub fn outstanding(&self) -> usize {
        Arc::strong_count(&self.outstanding) - 1
    }
}

/// Make a thread that asks, if there can be one more.
pub fn start(asking: Asking) -> bool {
    thread::Builder::new().spawn(asking).is_ok()
}

/// Ask the same of each, many at a time, and wait for all together no longer than that. `start` makes a thread, or says that there can be none.
pub fn ask_each<K, T>(
    mut start: impl FnMut(Asking) -> bool,
    of: impl Iterator<Item = K>,
    patience: Duration,
    question: impl Fn(K) -> T + Clone + Send + 'static,
) -> BTreeMap<K, Result<T, Silent>>
where
    K: Copy + Ord + Send + 'static,
    T: Send + 'static,
{
    let until = Instant::now() + patience;
    let left = || until.saturating_duration_since(Instant::now());
    let (asks, answers) = channel();
    let mut unasked = of.peekable();
    let mut found = BTreeMap::new();
    let mut going = 0;
    loop {
        let mut is_full = false;
        while going < AT_ONCE && !left().is_zero() {
            let Some(&key) = unasked.peek() else { break };
            let (asks, question) = (asks.clone(), question.clone());
            let asking = move || {
                let _ = asks.send((key, question(key)));
            };
            is_full = !start(Box::new(asking));
            if is_full {
                break;
            }
            unasked.next();
            found.insert(key, Err(Silent::Late));
            going += 1;
        }
        if going == 0 && !is_full {
            break;
        }
        let wait = if is_full { left().min(AGAIN_AFTER) } else { left() };
        match answers.recv_timeout(wait) {
            Ok((key, answer)) => {
                found.insert(key, Ok(answer));
                going -= 1;
            }
            Err(_) if left().is_zero() => break,
            Err(_) => {}
        }
    }
    for key in unasked {
        found.insert(key, Err(Silent::Unasked));
    }
    found
}

#[cfg(test)]
pub mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::Sender;
    use std::sync::Mutex;

    use super::*;

    /// For what must not end the waiting.
    const LONG: Duration = Duration::from_secs(60);

    type Answers = BTreeMap<usize, Result<usize, Silent>>;

    /// All have said twice their number.
    fn all(of: usize) -> Answers {
        (0..of).map(|key| (key, Ok(2 * key))).collect()
    }

    fn count(found: &Answers, what: Silent) -> usize {
        found.values().filter(|answer| **answer == Err(what)).count()
    }

    /// One who has asked as often as it may, and got no answer. Each of what is with it, when it is
    /// dropped, lets one thread come back.
    pub fn stuck() -> (Asker, Vec<Sender<()>>) {
        let mut asker = Asker::default();
        let holds = (0..AT_ONCE).map(|_| {
            let (holds, held) = channel::<()>();
            // Nobody waits for the answer.
            drop(asker.ask(move || held.recv().is_ok()));
            holds
        });
        let holds = holds.collect();
        (asker, holds)
    }

    #[test]
    fn no_more_are_asked_than_may_be_outstanding() {
        let (mut asker, mut holds) = stuck();
        assert_eq!(asker.outstanding(), AT_ONCE);
        assert!(asker.ask(|| 7).recv().is_err());
        assert_eq!(asker.outstanding(), AT_ONCE, "who was not asked is not waited for");
        holds.pop();
        while asker.outstanding() == AT_ONCE {
            thread::yield_now();
        }
        for n in 0..3 {
            assert_eq!(asker.ask(move || n).recv(), Ok(n), "who has answered is out of the way");
        }
        drop(holds);
        while asker.outstanding() > 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn an_answer_that_never_comes_keeps_nobody_waiting() {
        let (holds, held) = channel::<()>();
        let mut asker = Asker::default();
        let never = asker.ask(move || held.recv().is_ok());
        assert_eq!(asker.ask(|| 7).recv(), Ok(7));
        assert!(never.try_recv().is_err());
        drop(holds);
        assert_eq!(never.recv(), Ok(false));
    }

    #[test]
    fn many_are_asked_but_not_all_at_once() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let highest = Arc::clone(&most);
        let found = ask_each(start, 0..1000, LONG, move |key: usize| {
            highest.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(1));
            now.fetch_sub(1, Ordering::SeqCst);
            2 * key
        });
        assert_eq!(found, all(1000));
        assert!(most.load(Ordering::SeqCst) <= AT_ONCE, "{most:?}");
    }

    #[test]
    fn who_does_not_answer_takes_no_time_from_the_others() {
        let gate = Arc::new(Mutex::new(()));
        let shut = gate.lock().unwrap();
        let ask_some = |stuck: usize, of: usize, patience: Duration| {
            let gate = Arc::clone(&gate);
            ask_each(start, 0..of, patience, move |key: usize| {
                if key < stuck {
                    drop(gate.lock());
                }
                key
            })
        };
        let found = ask_some(2, 200, Duration::from_secs(1));
        assert_eq!((count(&found, Silent::Late), count(&found, Silent::Unasked)), (2, 0));
        assert_eq!((found[&0], found[&1], found[&2]), (Err(Silent::Late), Err(Silent::Late), Ok(2)));
        // All threads that there may be are with those who do not answer.
        let found = ask_some(100, 100, Duration::from_millis(50));
        assert!(count(&found, Silent::Late) <= AT_ONCE, "{found:?}");
        assert_eq!(count(&found, Silent::Late) + count(&found, Silent::Unasked), 100);
        assert_eq!(found[&99], Err(Silent::Unasked));
        drop(shut);
    }

    #[test]
    fn who_was_not_asked_for_want_of_threads_is_not_late() {
        let found = ask_each(|_| false, 0..3, Duration::from_millis(30), |key: usize| key);
        assert_eq!((found.len(), count(&found, Silent::Unasked)), (3, 3));
        // There is room for one now and then.
        let mut tries = 0;
        let now_and_then = |asking: Asking| {
            tries += 1;
            tries % 3 == 0 && start(asking)
        };
        let found = ask_each(now_and_then, 0..10, LONG, |key: usize| 2 * key);
        assert_eq!(found, all(10));
    }
}
