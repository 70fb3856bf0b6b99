//! Progress on standard error: a bar on a terminal, a plain line every few seconds elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::sink::tell;
use crate::runner::{Length, RunPlan};

/// Time between two plain lines, in seconds.
const LINE_INTERVAL_S: f64 = 5.0;

/// Shows how far a run is.
#[derive(Debug)]
pub struct Progress {
    what: String,
    length: Length,
    bar: Option<ProgressBar>,
    next_line_s: f64,
    last: (u64, f64),
}

impl Progress {
    /// For a run of `plan`, called `what`.
    pub fn new(what: &str, plan: &RunPlan) -> Self {
        let total = match plan.length {
            Length::Operations(operations) => operations,
            Length::Time(time) => u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
        };
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total);
            let style = ProgressStyle::with_template("{prefix} [{bar:40}] {percent:>3} % {msg}");
            bar.set_style(style.expect("the template is a constant and valid").progress_chars("=> "));
            bar.set_prefix(what.to_owned());
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        Self { what: what.into(), length: plan.length, bar, next_line_s: LINE_INTERVAL_S, last: (0, 0.0) }
    }

    /// `done` operations after `seconds` of measurement, or during the warm-up.
    pub fn show(&mut self, done: u64, seconds: Option<f64>) {
        let Some(seconds) = seconds else {
            match &self.bar {
                Some(bar) => bar.set_message("warming up"),
                None => tell(format_args!("{}: started", self.what)),
            }
            return;
        };
        if let Some(bar) = self.bar.clone() {
            bar.set_position(match self.length {
                Length::Operations(_) => done,
                Length::Time(_) => (seconds * 1000.0) as u64,
            });
            bar.set_message(format!("{} operations/s", self.rate(done, seconds)));
        } else if seconds >= self.next_line_s {
            self.next_line_s = seconds + LINE_INTERVAL_S;
            let rate = self.rate(done, seconds);
            tell(format_args!("{}: {seconds:.0} s, {done} operations, {rate} operations/s", self.what));
        }
    }

    /// Operations per second since the last time that this was asked.
    fn rate(&mut self, done: u64, seconds: f64) -> u64 {
        let (done_before, seconds_before) = std::mem::replace(&mut self.last, (done, seconds));
        (done.saturating_sub(done_before) as f64 / (seconds - seconds_before).max(1e-3)) as u64
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
