// SPDX-License-Identifier: GPL-2.0-only
//! Spin locks of the guest's kernel: who gets the lock next. Only the algorithms; who spins where and for how long is [`super::engine`]'s.
//!
//! Waiters are known by numbers (see [`super::vm::Vm::waiter`]). A lock that is *granted* belongs to a waiter whether that runs or not: this is
//! how a preempted waiter holds up all behind it. A lock that is *free* is taken by the first that looks.

use std::collections::VecDeque;

use crate::rng::Rng;
use crate::time::Ns;

use super::config::LockKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiter {
    who: u32,
    ticket: u64,
    /// It has given up spinning and halted (pv), or has waited its time (preemptable-ticket).
    state: Patience,
    /// pv-queued, of the first: it spins, or did when it lost its pCPU, and keeps others from stealing the lock (the pending bit).
    heads: bool,
    /// ... it has asked to be kicked, which it does once (pv_hash()).
    hashed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    Spins,
    /// pv: halted, wants to be kicked.
    Halted,
    /// preemptable-ticket: may go out of turn.
    TimedOut,
}

/// What came of a release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Next {
    /// The lock is this waiter's, who has not halted.
    pub granted: Option<u32>,
    /// This halted waiter is to be kicked.
    pub kicked: Option<u32>,
}

#[derive(Clone, Debug)]
pub struct Lock {
    kind: LockKind,
    holder: Option<u32>,
    queue: VecDeque<Waiter>,
    /// pv-queued: those that came while the first in the queue was halted, or had no pCPU to see that it is. They spin beside it until it does.
    stealers: Vec<u32>,
    /// ... the first is to be kicked by who releases the lock (_Q_SLOW_VAL). Whoever steals it writes over that.
    slow: bool,
    /// The next ticket, and the one that is served.
    tail: u64,
    head: u64,
    /// Of the holder.
    ticket: u64,
    pub since_ns: Ns,
}

impl Lock {
    pub fn new(kind: LockKind) -> Self {
        Self {
            kind,
            holder: None,
            queue: VecDeque::new(),
            stealers: Vec::new(),
            slow: false,
            tail: 0,
            head: 0,
            ticket: 0,
            since_ns: 0,
        }
    }

    pub fn holder(&self) -> Option<u32> {
        self.holder
    }

    pub fn kind(&self) -> LockKind {
        self.kind
    }

    fn take(&mut self, who: u32, ticket: u64) {
        debug_assert!(self.holder.is_none());
        self.holder = Some(who);
        self.ticket = ticket;
        self.head = self.head.max(ticket);
        self.slow = false;
        // One that halted in the queue is the first now (pv_kick_node()).
        if self.kind == LockKind::PvQueued {
            if let Some(first) =
                self.queue.front_mut().filter(|first| first.state == Patience::Halted && !first.hashed)
            {
                (first.hashed, self.slow) = (true, true);
            }
        }
    }

    /// Stealing: while the first in the queue does not spin, the lock is anybody's (pv_hybrid_queued_unfair_trylock()).
    pub fn is_unfair(&self) -> bool {
        self.kind == LockKind::PvQueued && self.queue.front().is_some_and(|first| !first.heads)
    }

    fn enqueue(&mut self, who: u32) {
        let heads = self.queue.is_empty();
        let ticket = self.tail;
        self.queue.push_back(Waiter { who, ticket, state: Patience::Spins, heads, hashed: false });
        self.tail += 1;
    }

    /// Return true if `who` has the lock now; otherwise it waits.
    pub fn acquire(&mut self, who: u32) -> bool {
        let may_pass = self.kind == LockKind::Tas || self.queue.is_empty() || self.is_unfair();
        if self.holder.is_none() && may_pass {
            self.take(who, self.tail);
            self.tail += 1;
            return true;
        }
        if self.is_unfair() {
            self.stealers.push(who);
        } else {
            self.enqueue(who);
        }
        false
    }

    /// Those to whom it matters who is first in the queue, and whether that one spins: it, and then those that would steal the lock from it.
    pub fn looks_at_first(&self) -> impl Iterator<Item = u32> + '_ {
        let first = self.queue.front().filter(|first| !first.heads && first.state == Patience::Spins);
        let first = first.filter(|_| self.kind == LockKind::PvQueued).map(|first| first.who);
        first.into_iter().chain(self.stealers.iter().copied())
    }

    pub fn is_stealer(&self, who: u32) -> bool {
        self.stealers.contains(&who)
    }

    /// Who cannot steal the lock any more stands in the queue from now on. Return true if this is one.
    pub fn joins(&mut self, who: u32) -> bool {
        let joins = self.is_stealer(who) && !self.is_unfair();
        if joins {
            self.stealers.retain(|other| *other != who);
            self.enqueue(who);
        }
        joins
    }

    /// How many stand before this waiter, the holder included: what a time-out is proportional to.
    pub fn distance(&self, who: u32) -> u64 {
        self.queue
            .iter()
            .find(|waiter| waiter.who == who)
            .map_or(0, |waiter| waiter.ticket.saturating_sub(self.head).max(1))
    }

    /// A waiter looks at the lock. Return true if it has it now.
    pub fn look(&mut self, who: u32) -> bool {
        if self.holder == Some(who) {
            return true;
        }
        if self.holder.is_some() {
            if let Some(first) = self.queue.front_mut().filter(|first| first.who == who) {
                first.heads = true;
            }
            return false;
        }
        if self.is_stealer(who) {
            self.stolen(who);
            return true;
        }
        let Some(at) = self.queue.iter().position(|waiter| waiter.who == who) else { return false };
        let waiter = self.queue[at];
        let may = match self.kind {
            LockKind::Tas => true,
            LockKind::PreemptableTicket => waiter.ticket <= self.head || waiter.state == Patience::TimedOut,
            _ => at == 0,
        };
        if may {
            self.queue.remove(at);
            self.take(who, waiter.ticket);
        }
        may
    }

    fn stolen(&mut self, who: u32) {
        self.stealers.retain(|other| *other != who);
        self.take(who, self.tail);
        self.tail += 1;
    }

    /// Its patience has ended: a pv lock's waiter is about to halt, a preemptable ticket lock's may go out of turn. Return false if it spins on: it is the
    /// first of a pv-queued lock, was kicked already, and lost the lock to another.
    pub fn lose_patience(&mut self, who: u32) -> bool {
        let Some(at) = self.queue.iter().position(|waiter| waiter.who == who) else { return true };
        let waiter = &mut self.queue[at];
        if self.kind == LockKind::PreemptableTicket {
            waiter.state = Patience::TimedOut;
            return true;
        }
        if self.kind == LockKind::PvQueued && at == 0 {
            if !waiter.hashed {
                (waiter.hashed, self.slow) = (true, true);
            } else if !self.slow {
                return false;
            }
        }
        (waiter.state, waiter.heads) = (Patience::Halted, false);
        true
    }

    /// Has whoever stands before this waiter halted?
    pub fn is_behind_halted(&self, who: u32) -> bool {
        let at = self.queue.iter().position(|waiter| waiter.who == who).unwrap_or_default();
        at.checked_sub(1).is_some_and(|before| self.queue[before].state == Patience::Halted)
    }

    /// Who stands before this waiter in the queue.
    pub fn before(&self, who: u32) -> Option<u32> {
        let at = self.queue.iter().position(|waiter| waiter.who == who).unwrap_or_default();
        at.checked_sub(1).map(|before| self.queue[before].who)
    }

    /// Who stands behind this waiter.
    pub fn behind(&self, who: u32) -> Option<u32> {
        self.queue.iter().skip_while(|waiter| waiter.who != who).nth(1).map(|waiter| waiter.who)
    }

    /// A halted waiter is awake.
    pub fn awake(&mut self, who: u32) {
        if let Some(waiter) = self.queue.iter_mut().find(|waiter| waiter.who == who) {
            if waiter.state == Patience::Halted {
                waiter.state = Patience::Spins;
            }
        }
    }

    /// The holder lets go. `spins` says who executes its loop at this instant; among those a free lock goes to one at random, which models
    /// whose cache line arrives first.
    pub fn release(&mut self, rng: &mut Rng, spins: impl Fn(u32) -> bool) -> Next {
        debug_assert!(self.holder.is_some());
        self.holder = None;
        self.head = self.head.max(self.ticket + 1);
        let Some(first) = self.queue.front().copied() else { return Next::default() };
        match self.kind {
            LockKind::Tas => self.release_to_any(rng, &|_| true, &spins),
            LockKind::PreemptableTicket => {
                let head = self.head;
                let may = move |waiter: &Waiter| waiter.ticket <= head || waiter.state == Patience::TimedOut;
                self.release_to_any(rng, &may, &spins)
            }
            LockKind::PvQueued => {
                let kicked = std::mem::take(&mut self.slow).then_some(first.who);
                if first.heads {
                    return Next { granted: self.take_first(), kicked };
                }
                let granted = choose(rng, self.stealers.iter().copied().filter(|who| spins(*who)));
                if let Some(who) = granted {
                    self.stolen(who);
                }
                Next { granted, kicked }
            }
            LockKind::Ticket | LockKind::Queued => Next { granted: self.take_first(), kicked: None },
            LockKind::PvTicket => {
                let who = self.take_first();
                let (halted, spins) = if first.state == Patience::Halted { (who, None) } else { (None, who) };
                Next { granted: spins, kicked: halted }
            }
        }
    }

    fn take_first(&mut self) -> Option<u32> {
        let first = self.queue.pop_front()?;
        self.take(first.who, first.ticket);
        Some(first.who)
    }

    fn release_to_any(
        &mut self,
        rng: &mut Rng,
        may: &dyn Fn(&Waiter) -> bool,
        spins: &dyn Fn(u32) -> bool,
    ) -> Next {
        let ready = |waiter: &&Waiter| may(waiter) && spins(waiter.who);
        let Some(chosen) = choose(rng, self.queue.iter().filter(ready).copied()) else {
            return Next::default();
        };
        self.queue.retain(|waiter| waiter.who != chosen.who);
        self.take(chosen.who, chosen.ticket);
        Next { granted: Some(chosen.who), ..Next::default() }
    }
}

/// One of them at random. No number is drawn where there is no choice.
fn choose<T>(rng: &mut Rng, mut among: impl Iterator<Item = T> + Clone) -> Option<T> {
    let count = among.clone().count() as u64;
    among.nth(if count < 2 { 0 } else { rng.below(count) as usize })
}
