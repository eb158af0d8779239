//! The only reader of clocks.
//!
//! It has two kinds of time. *Time* drives timers: the wall clock at the start, or where the store ended, plus the time since then
//! on the monotonic clock. It never goes back, and it never jumps. *Wall time* is for timestamps: the times of clients are compared
//! with it, and it is shown to people. [`WallShift`] says how far wall time is ahead of time; it changes only when the wall clock
//! is set (a step).

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

use crate::engine::span::Timestamp;
use crate::engine::time::{Moment, WallShift};

/// The smallest change of the shift that is a step; a smaller one makes no difference to any timestamp.
const TOLERANCE: Duration = Duration::from_secs(1);

/// The longest time between readings of the two clocks for which they can be compared; if it is longer, the thread was delayed.
const HELD_UP: Duration = Duration::from_millis(50);

/// Reads the time; clones share the clock.
#[derive(Clone, Debug)]
pub struct Clock {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    source: Source,
    // The time when the source began, Unix nanoseconds.
    base: AtomicU64,
    // How far wall time is ahead of time.
    shift: watch::Sender<WallShift>,
    // Held while base and shift are changed.
    setting: Mutex<()>,
    forward: AtomicU64,
    back: AtomicU64,
}

/// A reusable timer, which costs less than a new one for each wait.
#[derive(Debug)]
pub struct Timer {
    clock: Clock,
    sleep: Pin<Box<Sleep>>,
}

/// A reading of both clocks at one moment.
#[derive(Clone, Copy, Debug)]
struct ClockSample {
    /// The time since the source began.
    elapsed: Duration,
    /// The wall clock, Unix nanoseconds.
    wall: u64,
}

/// The source of readings.
enum Source {
    /// The system's clocks, since the moment when the source began. On Linux the monotonic one is `CLOCK_MONOTONIC`.
    System(Instant),
    #[cfg(test)]
    Fake(Arc<Mutex<ClockSample>>),
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
        Self::of(Source::System(Instant::now()))
    }

    fn of(source: Source) -> Self {
        let base = AtomicU64::new(source.wall());
        let (forward, back) = (AtomicU64::new(0), AtomicU64::new(0));
        let (shift, setting) = (watch::Sender::default(), Mutex::default());
        let shared = Shared { source, base, shift, setting, forward, back };
        Self { shared: Arc::new(shared) }
    }

    /// The time, for timers and arrivals. It is never before a time that was read earlier.
    pub fn now(&self) -> Timestamp {
        self.at(self.shared.source.elapsed())
    }

    /// The time, with the wall time at that time. Notices a step.
    pub fn moment(&self) -> Moment {
        self.watch();
        let now = self.now();
        self.shift().moment(now)
    }

    /// Wall time, for timestamps, within a second of the wall clock. Notices a step.
    pub fn wall(&self) -> Timestamp {
        self.moment().wall
    }

    /// How far wall time is ahead of the time.
    pub fn shift(&self) -> WallShift {
        *self.shared.shift.borrow()
    }

    /// Returns when the shift differs from `shift`.
    pub async fn stepped_from(&self, shift: WallShift) {
        let mut changes = self.shared.shift.subscribe();
        // Fails only when the clock is dropped, and `self` holds it.
        let _ = changes.wait_for(|held| *held != shift).await;
    }

    /// How long this clock has been running, by the monotonic clock.
    pub fn elapsed(&self) -> Duration {
        self.shared.source.elapsed()
    }

    /// The time that is left until `at`; zero if that is past.
    pub fn until(&self, at: Timestamp) -> Duration {
        at.since(self.now())
    }

    /// A timer of this clock.
    pub fn timer(&self) -> Timer {
        Timer { clock: self.clone(), sleep: Box::pin(sleep(Duration::ZERO)) }
    }

    /// Checks whether the wall clock was set; if so, counts and logs the step, and moves wall time with it, but not time.
    pub fn watch(&self) {
        if self.step().is_none() {
            return;
        }
        let setting = self.shared.setting();
        // Another thread may have noticed the step first.
        let Some((step, shift)) = self.step() else { return };
        self.shared.shift.send_replace(shift);
        drop(setting);
        let counter = if step > 0 { &self.shared.forward } else { &self.shared.back };
        counter.fetch_add(1, Ordering::Relaxed);
        let seconds = seconds(step);
        tracing::warn!(seconds, "the wall clock was set: timestamps follow it, timers continue");
    }

    /// The step that was not noticed yet, in nanoseconds, and the shift after it; `None` if there is none.
    fn step(&self) -> Option<(i64, WallShift)> {
        let ClockSample { elapsed, wall } = self.shared.source.both()?;
        let shift = WallShift::between(self.at(elapsed), Timestamp(wall));
        let step = shift.0.saturating_sub(self.shift().0);
        is_step(step).then_some((step, shift))
    }

    /// How often the wall clock was set, by direction.
    pub fn steps(&self) -> [(&'static str, u64); 2] {
        let Shared { forward, back, .. } = &*self.shared;
        [("forward", forward.load(Ordering::Relaxed)), ("back", back.load(Ordering::Relaxed))]
    }

    /// Continues where an earlier process ended: at time `last`, with this shift. The time that the wall clock has advanced since
    /// then has passed. If the wall clock is behind its value then, no time has passed, and that counts as a step back.
    ///
    /// Must be called before any time of this clock is kept.
    pub fn resume(&self, last: Timestamp, shift: WallShift) {
        let ClockSample { elapsed, wall } = self.shared.source.at_once();
        let behind = shift.wall(last).0.saturating_sub(wall);
        let is_back = is_step(i64::try_from(behind).unwrap_or(i64::MAX));
        let now = if is_back { last } else { last.max(shift.time(Timestamp(wall))) };
        let held = if is_back { WallShift::between(last, Timestamp(wall)) } else { shift };
        let base = now.0.saturating_sub(nanos(elapsed));
        let setting = self.shared.setting();
        self.shared.base.store(base, Ordering::SeqCst);
        self.shared.shift.send_replace(held);
        drop(setting);
        if is_back {
            self.shared.back.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                seconds = Duration::from_nanos(behind).as_secs_f64(),
                "the store was written by a clock that was ahead of this one: its timers go on from where they were; if this \
                 clock is wrong, set it"
            );
        }
    }

    fn at(&self, elapsed: Duration) -> Timestamp {
        let base = self.shared.base.load(Ordering::SeqCst);
        Timestamp(base.saturating_add(nanos(elapsed)))
    }
}

impl Timer {
    /// Waits until `due`; for ever if it is `None`.
    pub async fn until(&mut self, due: Option<Timestamp>) {
        let Some(due) = due else { return std::future::pending().await };
        match self.clock.shared.source {
            Source::System(began) => {
                let base = self.clock.shared.base.load(Ordering::SeqCst);
                let due = began + Duration::from_nanos(due.0.saturating_sub(base));
                if self.sleep.deadline() != due.into() {
                    self.sleep.as_mut().reset(due.into());
                }
                self.sleep.as_mut().await;
            }
            // Moving a fake clock wakes no task.
            #[cfg(test)]
            Source::Fake(_) => {
                while self.clock.now() < due {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl Shared {
    /// The lock under which base and shift may be changed.
    fn setting(&self) -> MutexGuard<'_, ()> {
        self.setting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source {
    fn elapsed(&self) -> Duration {
        match self {
            #[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
            Self::System(began) => began.elapsed(),
            #[cfg(test)]
            Self::Fake(reading) => reading.lock().unwrap().elapsed,
        }
    }

    /// The wall clock in Unix nanoseconds, which fit until the year 2554.
    fn wall(&self) -> u64 {
        match self {
            Self::System(_) => {
                #[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
                let system = SystemTime::now();
                nanos(system.duration_since(UNIX_EPOCH).unwrap_or_default())
            }
            #[cfg(test)]
            Self::Fake(reading) => reading.lock().unwrap().wall,
        }
    }

    /// Reads both clocks at one moment; `None` if the thread was delayed between them.
    fn both(&self) -> Option<ClockSample> {
        let before = self.elapsed();
        let wall = self.wall();
        let elapsed = self.elapsed();
        (elapsed.saturating_sub(before) < HELD_UP).then_some(ClockSample { elapsed, wall })
    }

    /// Reads both clocks at one moment, or as nearly so as possible if the thread is delayed repeatedly.
    fn at_once(&self) -> ClockSample {
        let reading = (0..100).find_map(|_| self.both());
        reading.unwrap_or_else(|| ClockSample { elapsed: self.elapsed(), wall: self.wall() })
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn is_step(nanos: i64) -> bool {
    Duration::from_nanos(nanos.unsigned_abs()) >= TOLERANCE
}

fn seconds(nanos: i64) -> f64 {
    Duration::from_nanos(nanos.unsigned_abs()).as_secs_f64() * if nanos < 0 { -1.0 } else { 1.0 }
}

/// A clock that is set by hand.
#[cfg(test)]
#[derive(Clone, Debug)]
pub(crate) struct Hand(Arc<Mutex<ClockSample>>);

#[cfg(test)]
impl Hand {
    /// A clock that shows `wall`, Unix seconds, and the hand that moves it.
    pub(crate) fn clock(wall: u64) -> (Clock, Self) {
        let wall = wall * 1_000_000_000;
        let reading = Arc::new(Mutex::new(ClockSample { elapsed: Duration::ZERO, wall }));
        (Clock::of(Source::Fake(reading.clone())), Self(reading))
    }

    /// Time passes on both clocks.
    pub(crate) fn pass(&self, seconds: u64) {
        let mut reading = self.0.lock().unwrap();
        reading.elapsed += Duration::from_secs(seconds);
        reading.wall += seconds * 1_000_000_000;
    }

    /// The wall clock is set.
    pub(crate) fn step(&self, milliseconds: i64) {
        let mut reading = self.0.lock().unwrap();
        reading.wall = reading.wall.saturating_add_signed(milliseconds * 1_000_000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGAN: u64 = 1_800_000_000;
    const HOUR: i64 = 3_600_000;
    const DAY: i64 = 24 * HOUR;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    #[test]
    fn a_step_of_the_wall_clock_moves_stamps_and_no_timer() {
        for step in [-20_000, -HOUR, HOUR, DAY] {
            let (clock, hand) = Hand::clock(BEGAN);
            let copy = clock.clone();
            let due = clock.now().after(Duration::from_secs(30));
            hand.pass(10);
            hand.step(step);
            assert_eq!(copy.now(), at(BEGAN + 10));
            assert_eq!(copy.until(due), Duration::from_secs(20));
            assert_eq!(clock.shift(), WallShift(0), "nobody has looked");
            let wall = Timestamp(at(BEGAN + 10).0.saturating_add_signed(step * 1_000_000));
            assert_eq!(copy.moment(), Moment { now: at(BEGAN + 10), wall });
            hand.pass(5);
            assert_eq!(
                (clock.now(), clock.wall()),
                (at(BEGAN + 15), at(5 + wall.0 / 1_000_000_000))
            );
            let steps = if step > 0 { [1, 0] } else { [0, 1] };
            assert_eq!(
                clock.steps().map(|(_, count)| count),
                steps,
                "looked at often, counted once"
            );
        }
    }

    #[tokio::test]
    async fn whoever_waits_for_a_step_is_told_of_it() {
        let (clock, hand) = Hand::clock(BEGAN);
        let shift = clock.shift();
        let waiter = clock.clone();
        let told = tokio::spawn(async move { waiter.stepped_from(shift).await });
        hand.step(HOUR);
        clock.watch();
        told.await.unwrap();
        clock.stepped_from(shift).await;
    }

    #[test]
    fn what_is_no_step_moves_nothing_until_it_adds_up_to_one() {
        let (clock, hand) = Hand::clock(BEGAN);
        for counted in [0, 0, 1, 1, 1, 2] {
            hand.step(-400);
            clock.watch();
            assert_eq!(clock.steps(), [("forward", 0), ("back", counted)]);
            let apart = clock.wall().0.abs_diff(clock.shared.source.wall());
            assert!(Duration::from_nanos(apart) < TOLERANCE);
        }
    }

    #[test]
    fn a_clock_that_is_set_back_and_forth_ends_where_it_was() {
        let (clock, hand) = Hand::clock(BEGAN);
        for step in [HOUR, -HOUR, DAY, -DAY] {
            hand.step(step);
            clock.watch();
        }
        assert_eq!(clock.shift(), WallShift(0));
        assert_eq!(clock.steps(), [("forward", 2), ("back", 2)]);
    }

    #[test]
    fn a_process_goes_on_where_the_one_before_ended_and_what_passed_between_them_has_passed() {
        let (clock, hand) = Hand::clock(BEGAN);
        hand.pass(2);
        clock.resume(at(BEGAN - 100), WallShift(0));
        assert_eq!((clock.now(), clock.wall()), (at(BEGAN + 2), at(BEGAN + 2)));
        assert_eq!(clock.steps(), [("forward", 0), ("back", 0)]);
        // The clock of the previous process was set by an hour while it ran.
        let hour = WallShift(3_600_000_000_000);
        clock.resume(at(BEGAN - 3_700), hour);
        assert_eq!((clock.now(), clock.wall()), (at(BEGAN + 2 - 3_600), at(BEGAN + 2)));
        assert_eq!(clock.steps(), [("forward", 0), ("back", 0)]);
    }

    #[test]
    fn a_store_of_the_future_keeps_its_time_and_gets_the_right_stamps() {
        for ahead in [20, 3_600, 86_400, 40 * 365 * 86_400] {
            let (clock, hand) = Hand::clock(BEGAN);
            clock.resume(at(BEGAN + ahead), WallShift(0));
            assert_eq!((clock.now(), clock.wall()), (at(BEGAN + ahead), at(BEGAN)));
            assert_eq!(clock.steps(), [("forward", 0), ("back", 1)]);
            hand.pass(7);
            assert_eq!((clock.now(), clock.wall()), (at(BEGAN + ahead + 7), at(BEGAN + 7)));
            // The wall clock was wrong, and is corrected.
            hand.step(i64::try_from(ahead).unwrap() * 1_000);
            assert_eq!((clock.now(), clock.wall()), (at(BEGAN + ahead + 7), at(BEGAN + ahead + 7)));
            assert_eq!(clock.steps(), [("forward", 1), ("back", 1)]);
        }
    }

    #[test]
    fn a_store_without_anything_in_it_changes_nothing() {
        let (clock, _) = Hand::clock(BEGAN);
        clock.resume(Timestamp(0), WallShift(0));
        assert_eq!((clock.now(), clock.wall()), (at(BEGAN), at(BEGAN)));
    }

    #[test]
    fn the_system_tells_both() {
        let clock = Clock::system();
        let now = clock.now();
        assert!(now > at(1_700_000_000));
        assert_eq!(clock.until(now), Duration::ZERO);
        assert!(clock.until(now.after(Duration::from_secs(60))) > Duration::from_secs(1));
        assert!(clock.wall().0.abs_diff(now.0) < 1_000_000_000 && clock.now() >= now);
    }
}
