//! A partition that this instance owns: its state, and its progress.

use std::collections::BTreeMap;
use std::time::Duration;

use super::partition::PartitionState;
use super::wire::{Envelope, Message, Record, unpack};
use crate::engine::span::Timestamp;
use crate::engine::time::{Moment, WallShift};

/// Timers that are due within this time run together.
const STEP: Duration = Duration::from_millis(100);

/// How far the time may be from the wall clock without a shift, in nanoseconds: clocks of clients may be off by as much.
const FAR: u64 = 300_000_000_000;

/// How much a shift may vary without effect, in nanoseconds, as records arrive later than their timestamps.
const NEAR: u64 = 60_000_000_000;

/// An owned partition, and its progress.
pub(super) struct OwnedPartition<P> {
    pub(super) part: P,
    pub(super) generation: u64,
    /// The offset of the next record to be applied.
    pub(super) next: i64,
    /// The CRC-32C of the record before that one, if it was read.
    pub(super) last_record: Option<u32>,
    /// The last record of its checkpoint, until it is found: its offset, and its CRC-32C.
    pub(super) expected: Option<(i64, u32)>,
    /// The end of its records when it was taken over.
    pub(super) target: i64,
    /// Whether it has caught up with that end.
    pub(super) live: bool,
    /// When its state was told that it has caught up.
    pub(super) listened: Option<Timestamp>,
    /// Whether there was no record after the last one.
    pub(super) at_end: bool,
    /// Whether it began with a checkpoint, or with all records.
    pub(super) whole: bool,
    pub(super) now: Timestamp,
    /// When its time last advanced: its time, and the clock's.
    pub(super) seen: (Timestamp, Timestamp),
    /// How far the wall clock is ahead of its time, if the difference is large.
    pub(super) shift: WallShift,
    /// The time of the last tick that was written.
    pub(super) ticked: Timestamp,
    pub(super) senders: BTreeMap<u32, u64>,
    /// The offset from which the last checkpoint continues; `None` before the first.
    pub(super) saved: Option<i64>,
}

/// The role of a record for the partition that reads it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RecordRole {
    /// It is to be applied.
    Next,
    /// The last record of the checkpoint.
    LastOfCheckpoint,
    /// Another record in the place of the last record of the checkpoint: the topic was recreated.
    Foreign,
}

impl<P: PartitionState> OwnedPartition<P> {
    /// A partition that has caught up with its topic before the first record.
    #[cfg(test)]
    pub(super) fn caught_up(part: P) -> Self {
        Self {
            part,
            generation: 1,
            next: 0,
            last_record: None,
            expected: None,
            target: 0,
            live: true,
            listened: None,
            at_end: true,
            whole: true,
            now: Timestamp(0),
            seen: (Timestamp(0), Timestamp(0)),
            shift: WallShift::default(),
            ticked: Timestamp(0),
            senders: BTreeMap::new(),
            saved: None,
        }
    }

    /// Looks for the last record of the checkpoint at this offset.
    pub(super) fn role(&mut self, offset: i64, sum: u32) -> RecordRole {
        let Some((at, last)) = self.expected.filter(|(at, _)| offset >= *at) else {
            return RecordRole::Next;
        };
        self.expected = None;
        if offset > at {
            // That record no longer exists.
            self.next = self.next.max(at + 1);
            RecordRole::Next
        } else if sum == last {
            RecordRole::LastOfCheckpoint
        } else {
            RecordRole::Foreign
        }
    }

    /// Restarts with the records from `next` to `target`, which are unrelated to those that were read before.
    pub(super) fn begin_anew(&mut self, next: i64, target: i64) {
        self.part.restart_offsets();
        (self.next, self.target, self.last_record) = (next, target, None);
        (self.live, self.at_end) = (next >= target, false);
    }

    /// Applies a record. A record that cannot be used is skipped, with the reason as the error.
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

    /// Continues with the record at this offset; returns how many before it were never read because the brokers deleted them. In a
    /// compacted topic that is unknown, as newer records have replaced others.
    pub(super) fn go_on_to(&mut self, offset: i64, compacted: bool) -> i64 {
        let gone = if compacted { 0 } else { (offset - self.next).max(0) };
        self.next = offset + 1;
        self.at_end = false;
        gone
    }

    /// The partition's time when the clock says `now`. Records may be ahead of the clock, stamped by a gateway with a wrong clock:
    /// then time continues from there, or no timer would run until the clock gets there.
    pub(super) fn time(&mut self, now: Timestamp) -> Timestamp {
        if self.now > self.seen.0 {
            self.seen = (self.now, now);
        }
        let (time, seen) = self.seen;
        now.max(Timestamp(time.0.saturating_add(now.0.saturating_sub(seen.0))))
    }

    /// Tells its state once that it has caught up, when the clock says `now`.
    pub(super) fn listen(&mut self, now: Timestamp) {
        if self.live && self.listened.is_none() {
            let time = self.time(now);
            self.listened = Some(time);
            self.part.listen(time);
        }
    }

    /// Lets windows follow the wall clock if the partition's time is far from it, as the ends of traces are in wall time.
    pub(super) fn follow(&mut self, clock: Moment) {
        let apart = WallShift::between(self.time(clock.now), clock.wall);
        let shift = if apart.0.unsigned_abs() > FAR { apart } else { WallShift::default() };
        // The shift varies with the delay of records; such a change has no effect.
        let is_same = shift.0.abs_diff(self.shift.0) < NEAR;
        if shift != self.shift && !(is_same && shift != WallShift::default()) {
            self.shift = shift;
            self.part.shift_to(shift);
        }
    }

    /// Whether a tick is to be written: a timer is due, no tick for it is pending, and `STEP` has passed, so that timers share
    /// ticks.
    pub(super) fn wants_tick(&mut self, now: Timestamp) -> bool {
        let due = self.part.due().is_some_and(|due| due <= now);
        let wants = due && self.ticked <= self.now && self.now.after(STEP) <= now;
        if wants {
            self.ticked = now;
        }
        wants
    }

    /// Advances time to `now`, and runs the timers that are due until then, each about when it is due.
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
    use crate::fleet::partition::PartitionState;
    use crate::fleet::wire::pack;

    const HOUR: u64 = 3_600_000_000_000;
    const SECOND: u64 = 1_000_000_000;
    const NOW: Timestamp = Timestamp(1_800_000_000 * SECOND);

    /// One timer, and the shifts of wall time that it received.
    #[derive(Default)]
    struct Timer {
        due: Option<Timestamp>,
        told: Vec<WallShift>,
    }

    impl PartitionState for Timer {
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

        fn publish(&mut self, _: Timestamp, _: &mut Vec<Record>) {}

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
        OwnedPartition { seen: (Timestamp(0), NOW), ..OwnedPartition::caught_up(Timer::default()) }
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
    fn records_that_were_jumped_over_are_gone_unless_newer_ones_replaced_them() {
        let mut held = held();
        held.next = 7;
        assert_eq!(held.go_on_to(7, false), 0);
        assert_eq!((held.go_on_to(18, false), held.next), (10, 19));
        assert_eq!((held.go_on_to(30, true), held.next), (0, 31));
        assert_eq!((held.go_on_to(5, false), held.next), (0, 6), "that is counted as going back");
    }

    #[test]
    fn the_last_record_of_the_checkpoint_is_known_again() {
        let expecting = || OwnedPartition { next: 6, expected: Some((6, 11)), ..held() };
        assert_eq!(expecting().role(6, 11), RecordRole::LastOfCheckpoint);
        assert_eq!(expecting().role(6, 12), RecordRole::Foreign);
        // A compacted topic is read from its first record, and may have lost that one.
        let mut before = expecting();
        assert_eq!(
            (before.role(4, 11), before.role(6, 11)),
            (RecordRole::Next, RecordRole::LastOfCheckpoint)
        );
        let mut without = expecting();
        assert_eq!(
            (without.role(9, 11), without.role(6, 12)),
            (RecordRole::Next, RecordRole::Next)
        );
        assert_eq!(without.next, 7, "what was read is not gone");
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
