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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Nobody,
    /// The lock is this waiter's.
    Granted(u32),
    /// It is this halted waiter's, which must be kicked.
    GrantedHalted(u32),
    /// Free; this halted waiter is to be kicked, but others may be faster.
    FreeKick(u32),
    /// Free, although there are waiters: none of those that may take it runs at present.
    Free,
}

#[derive(Clone, Debug)]
pub struct Lock {
    kind: LockKind,
    holder: Option<u32>,
    queue: VecDeque<Waiter>,
    /// The next ticket, and the one that is served.
    tail: u64,
    head: u64,
    /// Of the holder.
    ticket: u64,
    pub since_ns: Ns,
}

impl Lock {
    pub fn new(kind: LockKind) -> Self {
        Self { kind, holder: None, queue: VecDeque::new(), tail: 0, head: 0, ticket: 0, since_ns: 0 }
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
    }

    /// Return true if `who` has the lock now; otherwise it waits.
    pub fn acquire(&mut self, who: u32) -> bool {
        let ticket = self.tail;
        self.tail += 1;
        let may_pass = match self.kind {
            LockKind::Tas => true,
            // Stealing: while the first in the queue sleeps, the lock is anybody's (pv_hybrid_queued_unfair_trylock()).
            LockKind::PvQueued => self.queue.front().is_none_or(|first| first.state == Patience::Halted),
            _ => self.queue.is_empty(),
        };
        if self.holder.is_none() && may_pass {
            self.take(who, ticket);
            return true;
        }
        self.queue.push_back(Waiter { who, ticket, state: Patience::Spins });
        false
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
            return false;
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

    /// Its patience has ended: a pv lock's waiter is about to halt, a preemptable ticket lock's may go out of turn.
    pub fn lose_patience(&mut self, who: u32) {
        let kind = self.kind;
        if let Some(waiter) = self.queue.iter_mut().find(|waiter| waiter.who == who) {
            waiter.state =
                if kind == LockKind::PreemptableTicket { Patience::TimedOut } else { Patience::Halted };
        }
    }

    /// Has whoever stands before this waiter halted?
    pub fn is_behind_halted(&self, who: u32) -> bool {
        let at = self.queue.iter().position(|waiter| waiter.who == who).unwrap_or_default();
        at.checked_sub(1).is_some_and(|before| self.queue[before].state == Patience::Halted)
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
        let Some(first) = self.queue.front().copied() else { return Next::Nobody };
        match self.kind {
            LockKind::Tas => self.release_to_any(rng, &|_| true, &spins),
            LockKind::PreemptableTicket => {
                let head = self.head;
                let may = move |waiter: &Waiter| waiter.ticket <= head || waiter.state == Patience::TimedOut;
                self.release_to_any(rng, &may, &spins)
            }
            LockKind::PvQueued if first.state == Patience::Halted => Next::FreeKick(first.who),
            LockKind::Ticket | LockKind::Queued | LockKind::PvTicket | LockKind::PvQueued => {
                self.queue.pop_front();
                self.take(first.who, first.ticket);
                if first.state == Patience::Halted {
                    Next::GrantedHalted(first.who)
                } else {
                    Next::Granted(first.who)
                }
            }
        }
    }

    fn release_to_any(
        &mut self,
        rng: &mut Rng,
        may: &dyn Fn(&Waiter) -> bool,
        spins: &dyn Fn(u32) -> bool,
    ) -> Next {
        let ready = |waiter: &&Waiter| may(waiter) && spins(waiter.who);
        let count = self.queue.iter().filter(ready).count() as u64;
        if count == 0 {
            return Next::Free;
        }
        // No number is drawn where there is no choice.
        let choice = if count == 1 { 0 } else { rng.below(count) as usize };
        let Some(chosen) = self.queue.iter().filter(ready).nth(choice).copied() else { return Next::Free };
        self.queue.retain(|waiter| waiter.who != chosen.who);
        self.take(chosen.who, chosen.ticket);
        Next::Granted(chosen.who)
    }
}
