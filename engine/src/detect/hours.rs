//! Hours of the day that are regularly bad, and hours of the week that are regularly bad: a batch at two in the morning that always
//! fails in part is not a drop each night, and neither is a weekend with other users.
//!
//! ```text
//! level of an hour = the mean of its values, or with those of the two hours before if that is more, each less its standard error
//! usual = the third highest level of the hour of the day on the last seven days, or of the hour of the week in the last five weeks,
//!         that had values: if it is more than is tolerated; of this hour, the one before and the one after, whichever was worst
//! ```
//!
//! So whatever is bad at an hour is a drop three times, and then usual at that hour; other hours are unaffected. Nothing is noted
//! before there was a drop. A drop is not noted for the hours of the day after half a day or once it recurred, nor for those of the
//! week after three days. What is usual at an hour of the week, but not on nearly all days, says nothing about that hour on other
//! days, unless it was worse than that: a batch that moves by two hours is learned again within three days, although its old hours
//! are nearby in earlier weeks.

use serde::{Deserialize, Serialize};

use super::baseline::ValueSum;
use crate::span::Timestamp;

/// What a stream was like at each hour of the last days and weeks.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Hours {
    /// The levels of each hour of the day, the latest first, in steps of 1/255.
    days: [[u8; DAYS]; HOURS_OF_DAY],
    of_day: Values,
    /// Likewise for each hour of the week.
    weeks: Vec<[u8; WEEKS]>,
    of_week: Values,
    /// The current hour, since the epoch.
    hour: u64,
    /// The level of the current hour, by the days before and by the weeks before.
    by_day: f64,
    by_week: f64,
}

/// The values of the current hour and of those before it, the latest first.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
struct Values([ValueSum; TOGETHER]);

/// For which hours a value is noted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noted {
    pub(super) of_day: bool,
    pub(super) of_week: bool,
}

impl Hours {
    /// From this moment on.
    pub(super) fn since(at: Timestamp) -> Self {
        Self {
            days: [[0; DAYS]; HOURS_OF_DAY],
            of_day: Values::default(),
            weeks: vec![[0; WEEKS]; HOURS_OF_WEEK],
            of_week: Values::default(),
            hour: at.0 / HOUR,
            by_day: 0.0,
            by_week: 0.0,
        }
    }

    /// Begins the hour of this moment; `usual` is the usual level, `tolerated` the worst one that is tolerated, and `ratio` how many times
    /// what is usual at an hour.
    pub(super) fn begin(&mut self, at: Timestamp, usual: f64, tolerated: f64, ratio: f64) {
        let hour = at.0 / HOUR;
        if hour <= self.hour {
            return;
        }
        let of_week = self.by_week > tolerated && !self.is_daily(tolerated);
        let known = if of_week { self.by_week * ratio } else { 0.0 };
        self.of_day.end(self.hour, &mut self.days, usual, known);
        self.of_week.end(self.hour, &mut self.weeks, usual, 0.0);
        if hour > self.hour + 1 {
            (self.of_day, self.of_week) = Default::default();
        }
        self.hour = hour;
        self.by_day = near(&self.days, hour);
        self.by_week = near(&self.weeks, hour);
    }

    /// Notes a value of the current hour.
    pub(super) fn note(&mut self, value: f64, noted: Noted) {
        for (values, noted) in
            [(&mut self.of_day, noted.of_day), (&mut self.of_week, noted.of_week)]
        {
            if noted {
                values.0[0].add(value);
            }
        }
    }

    /// The level of the current hour, by the days and the weeks before.
    pub(super) fn level(&self) -> f64 {
        self.by_day.max(self.by_week)
    }

    /// Whether the current hour is usually bad on nearly all days of the week.
    fn is_daily(&self, tolerated: f64) -> bool {
        let days = (0..7).map(|day| self.hour + day * HOURS_OF_DAY as u64);
        days.filter(|hour| near(&self.weeks, *hour) > tolerated).count() >= NEARLY_ALL
    }
}

impl Values {
    /// Notes the level of an hour that is over; one up to `known` is usual elsewhere, and counts as none.
    fn end<const PERIODS: usize>(
        &mut self,
        hour: u64,
        levels: &mut [[u8; PERIODS]],
        usual: f64,
        known: f64,
    ) {
        if self.0[0].count >= FEW {
            let mut together = ValueSum::default();
            let sums = self.0.map(|values| {
                together.count += values.count;
                together.sum += values.sum;
                step(level_of(together, usual))
            });
            let levels = &mut levels[place(hour, levels.len())];
            levels.rotate_right(1);
            let level = sums[0].max(sums[TOGETHER - 1]);
            levels[0] = if level > step(known) { level } else { 0 };
        }
        self.0.rotate_right(1);
        self.0[0] = ValueSum::default();
    }
}

/// The mean of values, with some at the usual level, less its standard error.
fn level_of(values: ValueSum, usual: f64) -> f64 {
    let count = values.count as f64 + PRIOR;
    let mean = ((values.sum + PRIOR * usual) / count).clamp(0.0, 1.0);
    mean - (mean * (1.0 - mean) / count).sqrt()
}

/// The usual level at an hour: that of this hour, the one before or the one after, whichever was worst, as the clock of an hourly
/// job may change, and the job may be early or late. The most recent level of the hour before does not count: that may be a drop in
/// progress.
fn near<const PERIODS: usize>(levels: &[[u8; PERIODS]], hour: u64) -> f64 {
    let of = |hour: u64| levels[place(hour, levels.len())];
    let mut before = of(hour + levels.len() as u64 - 1);
    before.rotate_left(1);
    before[PERIODS - 1] = 0;
    let (own, after) = (of(hour), of(hour + 1));
    let mut worst: [u8; PERIODS] =
        std::array::from_fn(|period| before[period].max(own[period]).max(after[period]));
    worst.sort_unstable();
    f64::from(worst[PERIODS - OFTEN]) / STEPS
}

fn step(level: f64) -> u8 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 255")]
    let step = (level.clamp(0.0, 1.0) * STEPS) as u8;
    step
}

fn place(hour: u64, hours: usize) -> usize {
    usize::try_from(hour % hours as u64).unwrap_or_default()
}

const HOUR: u64 = 3_600_000_000_000;

const HOURS_OF_DAY: usize = 24;
const HOURS_OF_WEEK: usize = 168;

/// Days that are remembered for each hour of the day.
const DAYS: usize = 7;

/// Weeks that are remembered for each hour of the week.
const WEEKS: usize = 5;

/// Number of times an hour was bad after which that is usual.
const OFTEN: usize = 3;

/// Days of the week on which an hour is bad, if it is bad daily.
const NEARLY_ALL: usize = 6;

/// Hours whose values are combined if one alone has too few.
const TOGETHER: usize = 3;

/// Number of values of an hour that suffice for its level.
const FEW: u64 = 4;

/// Values at the usual level that are added to those of an hour.
const PRIOR: f64 = 10.0;

const STEPS: f64 = 255.0;
