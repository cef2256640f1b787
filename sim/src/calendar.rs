// SPDX-License-Identifier: GPL-2.0-only
//! The queue of events: a calendar (Brown 1988) of unsorted days, of which the present one is sorted. What is made for the present day while it passes is
//! put in its place if that is near the front, where most of it belongs, and else into a heap. So an event costs about as much among a hundred thousand
//! as among ten. The order is that of (time, order of creation), however wide a day is.

use crate::events::Event;
use crate::time::Ns;

#[derive(Clone, Copy, Debug)]
struct Entry {
    at_ns: Ns,
    made: u64,
    event: Event,
}

impl Entry {
    fn key(&self) -> u128 {
        u128::from(self.at_ns) << 64 | u128::from(self.made)
    }
}

/// A heap with four children to a node: half as deep as a binary one, and the children are neighbours in memory.
const WIDTH: usize = 4;
/// Up to so many events all are near.
const SMALL: usize = 128;
/// Entries that a new one may push aside in the sorted part; beyond, the heap is faster.
const ASIDE_MAX: usize = 24;
/// Events of a day when the calendar is made.
const PER_DAY: usize = 8;
const DAYS_MIN: usize = 64;
const DAYS_MAX: usize = 1 << 16;

#[derive(Debug)]
pub struct EventQueue {
    /// The present day, its end first.
    sorted: Vec<Entry>,
    /// A heap of what else is earlier than `near_end_ns`.
    near: Vec<Entry>,
    near_end_ns: Ns,
    /// The calendar, a power of two of days from `near_end_ns` on; none as long as all is near.
    days: Vec<Vec<Entry>>,
    today: usize,
    /// A day is 2 to this many ns long.
    day_shift: u32,
    in_days: usize,
    /// What is beyond the calendar, unsorted, and the earliest of it.
    far: Vec<Entry>,
    far_min_ns: Ns,
    /// Days turned since the calendar was made, and events in them.
    turned: usize,
    turned_events: usize,
    /// Days turned since the start.
    day: u64,
    made: u64,
}

impl Default for EventQueue {
    fn default() -> Self {
        Self {
            sorted: Vec::new(),
            near: Vec::new(),
            near_end_ns: Ns::MAX,
            days: Vec::new(),
            today: 0,
            day_shift: 0,
            in_days: 0,
            far: Vec::new(),
            far_min_ns: Ns::MAX,
            turned: 0,
            turned_events: 0,
            day: 0,
            made: 0,
        }
    }
}

impl EventQueue {
    pub fn push(&mut self, at_ns: Ns, event: Event) {
        let entry = Entry { at_ns, made: self.made, event };
        self.made += 1;
        if at_ns >= self.near_end_ns && !self.days.is_empty() {
            return self.file(entry);
        }
        self.push_near(entry);
        if self.days.is_empty() && self.near.len() + self.sorted.len() > SMALL {
            self.make_calendar();
        }
    }

    /// An event that is due at once has not to wait here, and counts as made.
    pub fn count(&mut self) {
        self.made += 1;
    }

    fn push_near(&mut self, entry: Entry) {
        let len = self.sorted.len();
        // Made later, it comes after all of the same time.
        let earlier = self.sorted.iter().rev().take(ASIDE_MAX).take_while(|other| other.at_ns <= entry.at_ns);
        let aside = earlier.count();
        if aside == ASIDE_MAX && len > ASIDE_MAX {
            self.near.push(entry);
            rise(&mut self.near);
        } else {
            self.sorted.insert(len - aside, entry);
        }
    }

    /// Put an entry that is not near into its day.
    fn file(&mut self, entry: Entry) {
        let day = (entry.at_ns - self.near_end_ns) >> self.day_shift;
        if day < self.days.len() as u64 {
            let index = (self.today + day as usize) & (self.days.len() - 1);
            self.days[index].push(entry);
            self.in_days += 1;
        } else {
            self.far_min_ns = self.far_min_ns.min(entry.at_ns);
            self.far.push(entry);
        }
    }

    /// The next event, if it is due by then.
    pub fn pop_until(&mut self, until_ns: Ns) -> Option<(Ns, Event)> {
        if self.near.is_empty() && self.sorted.is_empty() {
            self.turn_days();
        }
        let from_sorted = match (self.sorted.last(), self.near.first()) {
            (Some(sorted), Some(near)) => sorted.key() < near.key(),
            (sorted, _) => sorted.is_some(),
        };
        if from_sorted {
            let due = self.sorted.last().is_some_and(|first| first.at_ns <= until_ns);
            let first = if due { self.sorted.pop() } else { None };
            return first.map(|first| (first.at_ns, first.event));
        }
        let first = *self.near.first().filter(|first| first.at_ns <= until_ns)?;
        let last = self.near.pop()?;
        if !self.near.is_empty() {
            sink(&mut self.near, 0, last);
        }
        Some((first.at_ns, first.event))
    }

    /// Nothing is near: turn days until one has something.
    fn turn_days(&mut self) {
        while self.near.is_empty() && self.sorted.is_empty() && self.in_days + self.far.len() > 0 {
            let too_wide = self.turned_events > 4 * PER_DAY * self.turned;
            let too_narrow = self.turned_events * 4 < self.turned;
            if self.in_days == 0 || self.turned >= self.days.len() && (too_wide || too_narrow) {
                self.make_calendar();
                continue;
            }
            if self.far_min_ns - self.near_end_ns < 1 << self.day_shift {
                self.file_far();
            }
            let day = &mut self.days[self.today];
            std::mem::swap(day, &mut self.sorted);
            self.in_days -= self.sorted.len();
            self.turned += 1;
            self.day += 1;
            self.turned_events += self.sorted.len();
            self.today = (self.today + 1) & (self.days.len() - 1);
            self.near_end_ns += 1 << self.day_shift;
            self.sort();
        }
    }

    fn sort(&mut self) {
        self.sorted.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.key()));
    }

    /// Put what was beyond the calendar into it, as far as it reaches now.
    fn file_far(&mut self) {
        self.far_min_ns = Ns::MAX;
        for entry in std::mem::take(&mut self.far) {
            self.file(entry);
        }
    }

    /// Make a calendar that suits what there is now.
    #[cold]
    fn make_calendar(&mut self) {
        let mut all = std::mem::take(&mut self.near);
        all.append(&mut self.sorted);
        all.append(&mut self.far);
        for day in &mut self.days {
            all.append(day);
        }
        let first_ns = all.iter().map(|entry| entry.at_ns).min().unwrap_or(0);
        if all.len() <= SMALL / 2 {
            *self = Self { sorted: all, day: self.day, made: self.made, ..Self::default() };
            self.sort();
            return;
        }
        // Most are soon, a few are late: the median says more than the last.
        let middle = all.len() / 2;
        let (_, median, _) = all.select_nth_unstable_by_key(middle, |entry| entry.at_ns);
        let gap_ns = ((median.at_ns - first_ns) / middle as u64).max(1);
        self.day_shift = (gap_ns * PER_DAY as u64).ilog2().min(40);
        let days = (all.len() * 2 / PER_DAY).next_power_of_two().clamp(DAYS_MIN, DAYS_MAX);
        self.days.resize_with(days, Vec::new);
        self.near_end_ns = first_ns;
        (self.today, self.in_days, self.turned, self.turned_events) = (0, 0, 0, 0);
        self.far_min_ns = Ns::MAX;
        for entry in all {
            self.file(entry);
        }
    }

    /// When the next event is due.
    pub fn next_ns(&mut self) -> Option<Ns> {
        if self.near.is_empty() && self.sorted.is_empty() {
            self.turn_days();
        }
        let (sorted, near) = (self.sorted.last(), self.near.first());
        sorted.into_iter().chain(near).map(|first| first.at_ns).min()
    }

    /// Counts the days of the calendar; as long as all is near, the present one lasts.
    pub fn day(&self) -> u64 {
        self.day
    }

    /// What is known of the day that begins after so many more, in no order.
    pub fn ahead(&self, days: usize) -> impl Iterator<Item = Event> + '_ {
        let day = self.days.get((self.today + days) & self.days.len().wrapping_sub(1));
        day.into_iter().flatten().map(|entry| entry.event)
    }

    pub fn len(&self) -> usize {
        self.sorted.len() + self.near.len() + self.in_days + self.far.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many have been made since the start.
    pub fn made(&self) -> u64 {
        self.made
    }
}

/// The last entry of a heap goes where it belongs.
fn rise(heap: &mut [Entry]) {
    let Some(mut hole) = heap.len().checked_sub(1) else { return };
    let entry = heap[hole];
    while hole > 0 {
        let parent = (hole - 1) / WIDTH;
        if heap[parent].key() <= entry.key() {
            break;
        }
        heap[hole] = heap[parent];
        hole = parent;
    }
    heap[hole] = entry;
}

/// An entry goes where it belongs, from a hole downwards.
fn sink(heap: &mut [Entry], mut hole: usize, entry: Entry) {
    let key = entry.key();
    loop {
        let first = hole * WIDTH + 1;
        let children = first..(first + WIDTH).min(heap.len());
        let Some(least) = children.min_by_key(|child| heap[*child].key()) else { break };
        if heap[least].key() >= key {
            break;
        }
        heap[hole] = heap[least];
        hole = least;
    }
    heap[hole] = entry;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::ids::TaskId;
    use crate::rng::{Rng, Stream};

    /// Against a sorted set, growing and shrinking, with times from the same instant to much later.
    #[test]
    fn behaves_as_a_sorted_set() {
        let mut rng = Rng::derive(1, Stream::Host, 0);
        let (mut queue, mut set, mut now_ns) = (EventQueue::default(), BTreeSet::new(), 0);
        for step in 0..200_000u32 {
            let grows = (step / 20_000) % 2 == 0;
            if rng.below(100) < if grows { 60 } else { 40 } {
                let reach_ns = [0, 1, 50, 4_000, 1_000_000, 10_000_000_000][rng.below(6) as usize];
                let at_ns = now_ns + rng.below(reach_ns + 1);
                set.insert((at_ns, queue.made(), step));
                queue.push(at_ns, Event::Migrate(TaskId(step)));
            } else {
                let expected = set.pop_first().map(|(at_ns, _, task)| (at_ns, Event::Migrate(TaskId(task))));
                assert_eq!(queue.pop_until(Ns::MAX), expected);
                now_ns = expected.map_or(now_ns, |(at_ns, _)| at_ns);
            }
            assert_eq!(queue.len(), set.len());
        }
        while let Some((at_ns, _, task)) = set.pop_first() {
            assert_eq!(queue.pop_until(at_ns), Some((at_ns, Event::Migrate(TaskId(task)))));
        }
        assert!(queue.is_empty());
    }

    #[test]
    fn what_is_ahead_is_what_comes_on_the_next_day() {
        let mut queue = EventQueue::default();
        for task in 0..2_000 {
            queue.push(u64::from(task) * 7_907 % 100_000, Event::Migrate(TaskId(task)));
        }
        let (mut day, mut next, mut seen) = (queue.day(), Vec::new(), 0);
        while let Some((_, event)) = queue.pop_until(Ns::MAX) {
            if queue.day() != day {
                assert!(next.is_empty() || queue.day() == day + 1 && next.contains(&event));
                (day, next) = (queue.day(), queue.ahead(0).collect());
                seen += next.len();
            }
        }
        assert!(seen > 1_000, "{seen} events were seen ahead");
    }

    #[test]
    fn what_is_not_due_stays() {
        let mut queue = EventQueue::default();
        for at_ns in (0..1_000).rev() {
            queue.push(at_ns * 10, Event::Migrate(TaskId(at_ns as u32)));
        }
        assert_eq!(queue.pop_until(0), Some((0, Event::Migrate(TaskId(0)))));
        assert_eq!(queue.pop_until(9), None);
        queue.push(5, Event::Migrate(TaskId(7)));
        assert_eq!(queue.next_ns(), Some(5));
        assert_eq!(queue.pop_until(9), Some((5, Event::Migrate(TaskId(7)))));
        assert_eq!(queue.pop_until(9), None);
        assert_eq!(queue.len(), 999);
    }
}
