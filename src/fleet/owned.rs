//! A partition that is held: what it was made of, and how far it has come.

use std::collections::BTreeMap;
use std::time::Duration;

use super::part::Part;
use super::wire::{Envelope, Message, Record, unpack};
use crate::engine::span::Timestamp;
use crate::engine::time::{Moment, WallShift};

/// Timers of a replay that are due within this time run together.
const STEP: Duration = Duration::from_millis(100);

/// Nanoseconds from the wall clock that are no cause for anything: clocks of clients are allowed as much.
const FAR: u64 = 300_000_000_000;

/// Nanoseconds by which records come later than they were stamped.
const NEAR: u64 = 60_000_000_000;

/// A partition and how far it has come.
pub(super) struct OwnedPartition<P> {
    pub(super) part: P,
    pub(super) generation: u64,
    /// The next record to be applied.
    pub(super) next: i64,
    /// The end as it was when it was taken over.
    pub(super) target: i64,
    /// It has caught up.
    pub(super) live: bool,
    /// There was no record after the last one.
    pub(super) at_end: bool,
    /// It began with a checkpoint, or with everything.
    pub(super) whole: bool,
    pub(super) now: Timestamp,
    /// When it last went on: its time, and the clock's.
    pub(super) seen: (Timestamp, Timestamp),
    /// How far the wall clock is ahead of its time, if that is far.
    pub(super) shift: WallShift,
    /// The tick that was written and has not come yet.
    pub(super) ticked: Timestamp,
    pub(super) senders: BTreeMap<u32, u64>,
    /// What the last checkpoint goes on from.
    pub(super) saved: Option<i64>,
}

impl<P: Part> OwnedPartition<P> {
    /// Applies a record; what cannot be used is skipped, and why is returned.
    pub(super) fn apply(
        &mut self,
        payload: &[u8],
        offset: i64,
        out: &mut Vec<Record>,
    ) -> Result<(), &'static str> {
        let envelope: Envelope = unpack(payload).map_err(|_| "malformed")?;
        if envelope.generation > 0 {
            let known = self.senders.entry(envelope.shard).or_default();
            if envelope.generation < *known {
                return Err("replaced_sender");
            }
            *known = envelope.generation;
        }
        self.advance(envelope.time, out);
        if matches!(envelope.message, Message::Tick) {
            return Ok(());
        }
        self.part.apply(envelope.message, offset, self.now, out)
    }

    /// What time it is here when the clock says `now`. Records may be ahead of it, stamped by a gateway whose clock was wrong: its
    /// time goes on from there, or no timer would run until the clock gets there.
    pub(super) fn time(&mut self, now: Timestamp) -> Timestamp {
        if self.now > self.seen.0 {
            self.seen = (self.now, now);
        }
        let (time, seen) = self.seen;
        now.max(Timestamp(time.0.saturating_add(now.0.saturating_sub(seen.0))))
    }

    /// Where its time is far from the wall clock, windows follow the wall clock: ends of traces are by that.
    pub(super) fn follow(&mut self, clock: Moment) {
        let apart = WallShift::between(self.time(clock.now), clock.wall);
        let shift = if apart.0.unsigned_abs() > FAR { apart } else { WallShift::default() };
        // It goes along with what comes late by a second or so, and stays where it is.
        let is_same = shift.0.abs_diff(self.shift.0) < NEAR;
        if shift != self.shift && !(is_same && shift != WallShift::default()) {
            self.shift = shift;
            self.part.shift_to(shift);
        }
    }

    /// Whether a timer is due and no tick is under way that sees to it. A part of a step is waited for more of them.
    pub(super) fn wants_tick(&mut self, now: Timestamp) -> bool {
        let due = self.part.due().is_some_and(|due| due <= now);
        let wants = due && self.ticked <= self.now && self.now.after(STEP) <= now;
        if wants {
            self.ticked = now;
        }
        wants
    }

    /// Time goes on to `now`: timers run, each about when it is due.
    pub(super) fn advance(&mut self, now: Timestamp, out: &mut Vec<Record>) {
        self.now = self.now.max(now);
        while let Some(due) = self.part.due().filter(|due| *due <= self.now) {
            let at = due.after(STEP).min(self.now);
            self.part.timers(at, out);
            if at == self.now {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::part::Part;
    use crate::fleet::wire::pack;

    const HOUR: u64 = 3_600_000_000_000;
    const SECOND: u64 = 1_000_000_000;
    const NOW: Timestamp = Timestamp(1_800_000_000 * SECOND);

    /// One timer, and what it was told of the wall clock.
    #[derive(Default)]
    struct Timer {
        due: Option<Timestamp>,
        told: Vec<WallShift>,
    }

    impl Part for Timer {
        fn apply(
            &mut self,
            _: Message,
            _: i64,
            now: Timestamp,
            _: &mut Vec<Record>,
        ) -> Result<(), &'static str> {
            self.due = Some(now.after(Duration::from_secs(10)));
            Ok(())
        }

        fn due(&self) -> Option<Timestamp> {
            self.due
        }

        fn timers(&mut self, _: Timestamp, _: &mut Vec<Record>) {
            self.due = None;
        }

        fn shift_to(&mut self, shift: WallShift) {
            self.told.push(shift);
        }

        fn tell(&mut self, _: Timestamp, _: &mut Vec<Record>) {}

        fn save(&self) -> Option<BTreeMap<String, Vec<u8>>> {
            None
        }

        fn give_up(&mut self) {}

        fn holds(&self) -> (&'static str, usize) {
            ("timers", usize::from(self.due.is_some()))
        }

        fn counts(&self) -> Vec<(String, &'static str, &'static str, u64)> {
            Vec::new()
        }
    }

    fn held() -> OwnedPartition<Timer> {
        OwnedPartition {
            part: Timer::default(),
            generation: 1,
            next: 0,
            target: 0,
            live: true,
            at_end: true,
            whole: true,
            now: Timestamp(0),
            seen: (Timestamp(0), NOW),
            shift: WallShift::default(),
            ticked: Timestamp(0),
            senders: BTreeMap::new(),
            saved: None,
        }
    }

    fn record(at: Timestamp, message: Message) -> Vec<u8> {
        pack(&Envelope { message, shard: 0, generation: 0, time: at }).unwrap()
    }

    fn later(seconds: u64) -> Timestamp {
        NOW.after(Duration::from_secs(seconds))
    }

    #[test]
    fn a_timer_runs_in_its_time_however_far_ahead_its_records_are() {
        for ahead in [0, 2 * SECOND, HOUR, 24 * HOUR] {
            let mut held = held();
            let stamped = Timestamp(NOW.0 + ahead);
            held.apply(&record(stamped, Message::Inputs(Vec::new())), 0, &mut Vec::new()).unwrap();
            assert!(held.part.due.is_some());
            let mut ticked = None;
            for second in 0..20 {
                let time = held.time(later(second));
                if held.wants_tick(time) {
                    held.apply(&record(time, Message::Tick), 1, &mut Vec::new()).unwrap();
                    ticked = Some(second);
                }
            }
            assert_eq!((held.part.due, ticked), (None, Some(10)), "{ahead} ns ahead");
        }
    }

    #[test]
    fn windows_follow_the_wall_clock_where_it_is_far_from_the_records() {
        let mut held = held();
        let moment = |seconds| Moment { now: later(seconds), wall: later(seconds) };
        held.apply(&record(later(60), Message::Inputs(Vec::new())), 0, &mut Vec::new()).unwrap();
        held.follow(moment(0));
        assert_eq!(held.part.told, [], "as far as a client may be");
        let hour = Timestamp(NOW.0 + HOUR);
        held.apply(&record(hour, Message::Inputs(Vec::new())), 1, &mut Vec::new()).unwrap();
        (0..30).for_each(|second| held.follow(moment(second)));
        assert_eq!(held.part.told, [WallShift(-3_600_000_000_000)]);
        // The wall clock gets there, and it was right.
        held.follow(Moment { now: later(30), wall: Timestamp(later(30).0 + HOUR) });
        assert_eq!(held.part.told[1..], [WallShift(0)]);
    }
}
