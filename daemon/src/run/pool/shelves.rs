//! How many of which kind wait, and how many shall: as many as were asked for lately, within a bound for all together.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a kind is left alone after one of it could not be made; doubled each time.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest of these pauses, as a power of two.
const PAUSES: u32 = 8;
/// How long a kind has its place at least, of which none shall wait.
const TURN: Duration = Duration::from_secs(60);

/// What waits, by kind.
#[derive(Debug)]
pub(super) struct Shelves<K, W> {
    /// How many may wait in all.
    most: usize,
    /// How long a kind is kept that nobody asks for.
    idle: Duration,
    shelves: Vec<Shelf<K, W>>,
    /// How often all was thrown away: what was begun before is not wanted.
    round: u64,
}

#[derive(Debug)]
struct Shelf<K, W> {
    kind: K,
    /// How many shall wait: one, and one more each time that there was none; none of a kind that was only noted.
    wanted: usize,
    /// Whether one waits although nobody asks for it.
    kept: bool,
    waiting: VecDeque<W>,
    asked: Instant,
    failures: u32,
    not_before: Instant,
}

/// One that is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lacking<K> {
    pub(super) kind: K,
    round: u64,
}

impl<K: Clone + PartialEq, W> Shelves<K, W> {
    pub(super) fn new(most: usize, idle: Duration) -> Self {
        Self {
            most,
            idle,
            shelves: Vec::new(),
            round: 0,
        }
    }

    /// Notes that a kind is asked for, without taking one.
    pub(super) fn ask(&mut self, kind: &K, now: Instant) {
        if self.most > 0 {
            self.shelf(kind, 1, now);
        }
    }

    /// Notes that a kind is asked for of which none shall wait. One that is new gets no place of another that was asked for a
    /// moment ago: they would have it by turns, and none would be of use.
    pub(super) fn note(&mut self, kind: &K, now: Instant) {
        let waits = self.place(kind).is_some_and(|place| self.shelves[place].wanted > 0);
        let has_place = |shelf: &&Shelf<K, W>| {
            let is_fresh = now.saturating_duration_since(shelf.asked) < TURN;
            shelf.kind != *kind && shelf.wanted == 0 && (shelf.kept || is_fresh)
        };
        if waits || self.shelves.iter().filter(has_place).count() < self.most {
            self.shelf(kind, 0, now);
        }
    }

    /// Has so many of these kinds wait from now on, none or one, whether or not somebody asks for them, and of no others.
    pub(super) fn keep(&mut self, kinds: &[(K, usize)], now: Instant) {
        if self.most == 0 {
            return;
        }
        for shelf in &mut self.shelves {
            shelf.kept = kinds.iter().any(|(kind, _)| shelf.kind == *kind);
        }
        for (kind, wanted) in kinds {
            let there = self.place(kind).map(|place| self.shelves[place].asked);
            let shelf = self.shelf(kind, *wanted, there.unwrap_or(now));
            (shelf.kept, shelf.wanted) = (true, shelf.wanted.max(*wanted));
        }
    }

    /// Takes the one that has waited longest, if there is one; there will be one next time.
    pub(super) fn take(&mut self, kind: &K, now: Instant) -> Option<W> {
        if self.most == 0 {
            return None;
        }
        let (most, is_new) = (self.most, self.place(kind).is_none());
        let shelf = self.shelf(kind, 1, now);
        let taken = shelf.waiting.pop_front();
        if taken.is_none() && !is_new {
            shelf.wanted = (shelf.wanted + 1).min(most);
        }
        taken
    }

    /// The shelf of a kind that is asked for now; at first so many shall wait.
    fn shelf(&mut self, kind: &K, wanted: usize, now: Instant) -> &mut Shelf<K, W> {
        let place = self.place(kind).unwrap_or_else(|| {
            self.shelves.push(Shelf {
                kind: kind.clone(),
                wanted,
                kept: false,
                waiting: VecDeque::new(),
                asked: now,
                failures: 0,
                not_before: now,
            });
            self.shelves.len() - 1
        });
        let shelf = &mut self.shelves[place];
        shelf.asked = now;
        shelf
    }

    fn place(&self, kind: &K) -> Option<usize> {
        self.shelves.iter().position(|shelf| shelf.kind == *kind)
    }

    /// What is to be made next: of the kinds that are kept the first one, and then of those that were asked for last.
    pub(super) fn lacking(&mut self, now: Instant) -> Option<Lacking<K>> {
        let round = self.round;
        let is_due = |(shelf, room): &(&mut Shelf<K, W>, usize)| shelf.waiting.len() < *room && shelf.not_before <= now;
        let mut due = self.with_room().filter(is_due).map(|(shelf, _)| &*shelf).peekable();
        let first = due.peek().copied();
        let shelf = due.find(|shelf| shelf.kept && shelf.waiting.is_empty()).or(first)?;
        Some(Lacking {
            kind: shelf.kind.clone(),
            round,
        })
    }

    /// Puts one where it waits; gives it back if it is not wanted any more.
    pub(super) fn put(&mut self, lacking: &Lacking<K>, made: W) -> Option<W> {
        let is_current = lacking.round == self.round;
        let mut shelves = self.shelves.iter_mut();
        match shelves.find(|shelf| is_current && shelf.kind == lacking.kind) {
            Some(shelf) => {
                shelf.failures = 0;
                shelf.waiting.push_back(made);
                None
            }
            None => Some(made),
        }
    }

    /// Leaves a kind alone for a while; gives how often it failed in a row.
    pub(super) fn failed(&mut self, kind: &K, now: Instant) -> u32 {
        let Some(shelf) = self.shelves.iter_mut().find(|shelf| shelf.kind == *kind) else {
            return 0;
        };
        shelf.not_before = now + PAUSE * (1 << shelf.failures.min(PAUSES));
        shelf.failures += 1;
        shelf.failures
    }

    /// Takes out what need not wait any more: of kinds that nobody asks for, and what has no room.
    pub(super) fn surplus(&mut self, now: Instant) -> Vec<W> {
        let idle = self.idle;
        let is_old = |shelf: &Shelf<K, W>| now.saturating_duration_since(shelf.asked) >= idle;
        for shelf in self.shelves.iter_mut().filter(|shelf| shelf.kept && is_old(shelf)) {
            shelf.wanted = shelf.wanted.min(1);
        }
        let is_given_up = |shelf: &mut Shelf<K, W>| !shelf.kept && is_old(shelf);
        let old = self.shelves.extract_if(.., is_given_up).flat_map(|shelf| shelf.waiting);
        let mut surplus: Vec<W> = old.collect();
        for (shelf, room) in self.with_room() {
            let beyond = shelf.waiting.len().saturating_sub(room);
            surplus.extend(shelf.waiting.drain(..beyond));
        }
        surplus
    }

    /// Takes out what has ended by itself, with its kind.
    pub(super) fn ended(&mut self, has_ended: impl Fn(&mut W) -> bool) -> Vec<(K, W)> {
        let mut ended = Vec::new();
        for shelf in &mut self.shelves {
            for mut one in std::mem::take(&mut shelf.waiting) {
                match has_ended(&mut one) {
                    true => ended.push((shelf.kind.clone(), one)),
                    false => shelf.waiting.push_back(one),
                }
            }
        }
        ended
    }

    /// Throws all away; what is being made is not wanted either.
    pub(super) fn clear(&mut self) -> Vec<W> {
        self.round += 1;
        self.shelves.drain(..).flat_map(|shelf| shelf.waiting).collect()
    }

    pub(super) fn resize(&mut self, most: usize, idle: Duration) {
        (self.most, self.idle) = (most, idle);
    }

    /// The kinds that are kept, and those that were asked for lately, the last one first: no more than may wait, and as many
    /// of which none shall.
    pub(super) fn kinds(&self) -> Vec<K> {
        let mut shelves: Vec<_> = self.shelves.iter().collect();
        shelves.sort_by_key(|shelf| (std::cmp::Reverse(shelf.kept), std::cmp::Reverse(shelf.asked)));
        let mut left = [self.most; 2];
        shelves.retain(|shelf| {
            let left = &mut left[usize::from(shelf.wanted > 0)];
            let is_among = *left > 0;
            *left = left.saturating_sub(1);
            is_among
        });
        shelves.into_iter().map(|shelf| shelf.kind.clone()).collect()
    }

    /// All that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &W> {
        self.shelves.iter().flat_map(|shelf| &shelf.waiting)
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.shelves.iter().map(|shelf| shelf.waiting.len()).sum()
    }

    /// All shelves, the one that was asked for last first, each with how many may wait there: one of each kind that is kept,
    /// before there are more of any.
    fn with_room(&mut self) -> impl Iterator<Item = (&mut Shelf<K, W>, usize)> {
        self.shelves.sort_by_key(|shelf| std::cmp::Reverse(shelf.asked));
        let is_kept = |shelf: &&Shelf<K, W>| shelf.kept && shelf.wanted > 0;
        let mut kept = self.shelves.iter().filter(is_kept).count().min(self.most);
        let mut left = self.most - kept;
        self.shelves.iter_mut().map(move |shelf| {
            let least = usize::from(shelf.kept && kept > 0).min(shelf.wanted);
            kept -= least;
            let more = (shelf.wanted - least).min(left);
            left -= more;
            (shelf, least + more)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(600);

    fn second(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    /// Makes what lacks, until nothing does; the kinds in their order.
    fn fill(shelves: &mut Shelves<char, u32>, now: Instant) -> String {
        let mut made = String::new();
        while let Some(lacking) = shelves.lacking(now) {
            made.push(lacking.kind);
            assert_eq!(shelves.put(&lacking, 7), None);
        }
        made
    }

    #[test]
    fn what_was_asked_for_waits_the_next_time() {
        let (mut shelves, now) = (Shelves::new(4, IDLE), Instant::now());
        assert_eq!(fill(&mut shelves, now), "");
        assert_eq!(shelves.take(&'a', now), None);
        assert_eq!(fill(&mut shelves, now), "a");
        assert_eq!(shelves.take(&'a', now), Some(7));
        assert_eq!(shelves.len(), 0);
        assert_eq!(fill(&mut shelves, now), "a");
    }

    #[test]
    fn there_are_more_of_a_kind_that_was_not_there_within_the_bound() {
        let (mut shelves, now) = (Shelves::new(3, IDLE), Instant::now());
        for _ in 0..9 {
            assert_eq!(shelves.take(&'a', now), None);
        }
        assert_eq!(fill(&mut shelves, now), "aaa");
    }

    #[test]
    fn room_goes_to_the_kind_that_was_asked_for_last() {
        let (mut shelves, now) = (Shelves::new(2, IDLE), Instant::now());
        shelves.take(&'a', now);
        shelves.take(&'a', now);
        assert_eq!(fill(&mut shelves, now), "aa");
        shelves.take(&'b', now + second(1));
        assert_eq!(shelves.surplus(now), [7]);
        assert_eq!(fill(&mut shelves, now + second(1)), "b");
        assert_eq!(shelves.len(), 2);
    }

    #[test]
    fn a_kind_that_nobody_asks_for_is_given_up() {
        let (mut shelves, now) = (Shelves::new(2, IDLE), Instant::now());
        shelves.take(&'a', now);
        fill(&mut shelves, now);
        assert!(shelves.surplus(now + IDLE - second(1)).is_empty());
        assert_eq!(shelves.surplus(now + IDLE), [7]);
        assert_eq!(fill(&mut shelves, now + IDLE), "");
    }

    #[test]
    fn what_fails_is_left_alone_longer_each_time() {
        let (mut shelves, now) = (Shelves::<char, u32>::new(2, IDLE), Instant::now());
        shelves.take(&'a', now);
        assert_eq!(shelves.failed(&'a', now), 1);
        assert_eq!(shelves.lacking(now), None);
        assert!(shelves.lacking(now + second(1)).is_some());
        assert_eq!(shelves.failed(&'a', now + second(1)), 2);
        assert_eq!(shelves.lacking(now + second(2)), None);
        assert!(shelves.lacking(now + second(3)).is_some());
        let always = (0..40).map(|_| shelves.failed(&'a', now)).last();
        assert_eq!(always, Some(42));
        assert!(shelves.lacking(now + second(256)).is_some());
    }

    #[test]
    fn what_was_begun_before_all_was_thrown_away_is_not_wanted() {
        let (mut shelves, now) = (Shelves::new(2, IDLE), Instant::now());
        shelves.take(&'a', now);
        let lacking = shelves.lacking(now).unwrap();
        assert!(shelves.clear().is_empty());
        shelves.take(&'a', now);
        assert_eq!(shelves.put(&lacking, 7), Some(7));
        assert_eq!(fill(&mut shelves, now), "a");
    }

    #[test]
    fn what_has_ended_by_itself_is_taken_out() {
        let (mut shelves, now) = (Shelves::new(2, IDLE), Instant::now());
        shelves.take(&'a', now);
        shelves.take(&'a', now);
        for number in [1, 2] {
            let lacking = shelves.lacking(now).unwrap();
            shelves.put(&lacking, number);
        }
        assert_eq!(shelves.ended(|number| *number == 1), [('a', 1)]);
        assert_eq!(shelves.take(&'a', now), Some(2));
    }

    #[test]
    fn of_a_kind_that_is_only_noted_none_waits_and_it_takes_the_place_of_none() {
        let (mut shelves, now) = (Shelves::new(1, IDLE), Instant::now());
        shelves.take(&'a', now);
        shelves.note(&'n', now);
        shelves.note(&'m', now + TURN - second(1));
        shelves.take(&'b', now + second(3));
        assert_eq!(shelves.kinds(), ['b', 'n']);
        shelves.note(&'m', now + TURN);
        assert_eq!(shelves.kinds(), ['m', 'b']);
        assert_eq!(fill(&mut shelves, now + TURN), "b");
        assert!(shelves.surplus(now + IDLE + second(1)).is_empty());
        assert_eq!(shelves.kinds(), ['m', 'b']);
    }

    #[test]
    fn kinds_that_are_only_noted_do_not_have_a_place_by_turns() {
        let (mut shelves, now) = (Shelves::<_, u8>::new(1, IDLE), Instant::now());
        shelves.note(&'n', now);
        shelves.note(&'m', now + TURN);
        assert_eq!(shelves.kinds(), ['m']);
        // One that had it before waits for its turn like any other.
        shelves.note(&'n', now + TURN + second(1));
        assert_eq!(shelves.kinds(), ['m']);
        let (mut shelves, long_ago) = (Shelves::<_, u8>::new(2, IDLE), now);
        shelves.keep(&[('k', 0)], long_ago);
        shelves.note(&'m', now + 2 * TURN);
        shelves.note(&'p', now + 2 * TURN + second(1));
        assert_eq!(shelves.kinds(), ['k', 'm']);
    }

    #[test]
    fn the_first_of_a_kind_that_is_kept_is_made_before_another_one_of_any() {
        let (mut shelves, now) = (Shelves::<_, u8>::new(3, IDLE), Instant::now());
        shelves.keep(&[('k', 1)], now);
        shelves.take(&'a', now + second(1));
        assert_eq!(shelves.lacking(now + second(1)).unwrap().kind, 'k');
    }

    #[test]
    fn one_of_a_kind_that_is_kept_waits_whoever_asks_for_what() {
        let (mut shelves, now) = (Shelves::new(2, IDLE), Instant::now());
        shelves.keep(&[('k', 1), ('n', 0)], now);
        assert_eq!(fill(&mut shelves, now), "k");
        for _ in 0..3 {
            shelves.take(&'a', now + second(1));
        }
        assert!(shelves.surplus(now + second(1)).is_empty());
        assert_eq!(fill(&mut shelves, now + second(1)), "a");
        assert_eq!(shelves.kinds(), ['k', 'n', 'a']);
        assert_eq!(shelves.surplus(now + second(1) + IDLE), [7]);
        assert_eq!(shelves.kinds(), ['k', 'n']);
        assert_eq!(shelves.take(&'k', now + second(1) + IDLE), Some(7));
        assert_eq!(fill(&mut shelves, now + second(1) + IDLE), "k");
    }

    #[test]
    fn a_kind_that_is_kept_no_more_is_as_any_other() {
        let (mut shelves, now) = (Shelves::new(2, IDLE), Instant::now());
        shelves.keep(&[('k', 1), ('n', 0)], now);
        assert_eq!(fill(&mut shelves, now), "k");
        shelves.keep(&[('j', 1)], now + second(1));
        assert_eq!(fill(&mut shelves, now + second(1)), "j");
        assert_eq!(shelves.surplus(now + IDLE), [7]);
        assert_eq!(shelves.kinds(), ['j']);
        assert_eq!(shelves.take(&'k', now + IDLE), None);
    }

    #[test]
    fn of_a_kind_that_is_kept_there_are_more_while_it_is_asked_for() {
        let (mut shelves, now) = (Shelves::new(3, IDLE), Instant::now());
        shelves.keep(&[('k', 1)], now);
        fill(&mut shelves, now);
        shelves.take(&'k', now);
        shelves.take(&'k', now + second(1));
        assert_eq!(fill(&mut shelves, now + second(1)), "kk");
        // What is said again changes nothing.
        shelves.keep(&[('k', 1)], now + IDLE);
        assert_eq!(shelves.surplus(now + IDLE + second(1)), [7]);
        assert_eq!(shelves.len(), 1);
    }

    #[test]
    fn without_room_nothing_is_kept_of_what_was_asked_for() {
        let (mut shelves, now) = (Shelves::<char, u32>::new(0, IDLE), Instant::now());
        assert_eq!(shelves.take(&'a', now), None);
        assert!(shelves.shelves.is_empty());
    }
}
