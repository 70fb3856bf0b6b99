//! When a thread that only fails gives up.
//!
//! Quick refusals may be many: they cost nothing, and a full store may take some writes again. An operation without an
//! answer costs a whole timeout, so that a run of many operations on a stopped server would hardly ever end.

use crate::clock::Clock;
use crate::store::StoreError;
use crate::workload::mix::OpKind;

/// Operations that fail one after the other before the thread gives up.
const ERRORS_IN_A_ROW_MAX: u32 = 1000;
/// Timeouts one after the other before the thread gives up.
const UNANSWERED_IN_A_ROW_MAX: u32 = 3;
/// Seconds without a success before the thread gives up.
const FAILING_MAX_S: u64 = 30;

/// What a thread has borne since its last success. Times are ticks.
#[derive(Debug, Default)]
pub(super) struct Patience {
    errors_in_a_row: u32,
    /// Beginning of the first operation that failed since the last success.
    failing_since: Option<u64>,
    /// Timeouts in a row by kind of operation: reads of shared memory succeed although the server is stopped, and
    /// must not hide that no write is answered.
    unanswered: [u32; OpKind::ALL.len()],
    /// End of the newest timeout that was counted.
    counted_until: u64,
}

impl Patience {
    /// An operation of `kind` was answered.
    #[inline]
    pub(super) fn succeeded(&mut self, kind: OpKind) {
        self.errors_in_a_row = 0;
        self.failing_since = None;
        self.unanswered[kind as usize] = 0;
    }

    /// An operation of `kind` from `begun` to `end` has failed; returns with what the thread gives up, if it does.
    #[cold]
    pub(super) fn failed<C: Clock>(
        &mut self,
        kind: OpKind,
        (begun, end): (u64, u64),
        error: &StoreError,
        clock: &C,
    ) -> Option<StoreError> {
        self.errors_in_a_row += 1;
        let since = *self.failing_since.get_or_insert(begun);
        if !error.is_unanswered() {
            self.unanswered[kind as usize] = 0;
        } else if begun >= self.counted_until {
            // Operations in flight together wait together: that is one timeout, whatever the depth.
            self.counted_until = end;
            self.unanswered[kind as usize] += 1;
        }
        let unanswered: u32 = self.unanswered.iter().sum();
        if matches!(error, StoreError::NoConnection(_)) {
            Some(error.clone())
        } else if unanswered >= UNANSWERED_IN_A_ROW_MAX {
            Some(error.given_up(&format!("{unanswered} timeouts in a row")))
        } else if clock.ns(end.saturating_sub(since)) >= FAILING_MAX_S * 1_000_000_000 {
            Some(error.given_up(&format!("no success for {FAILING_MAX_S} s")))
        } else if self.errors_in_a_row >= ERRORS_IN_A_ROW_MAX {
            Some(error.given_up(&format!("{ERRORS_IN_A_ROW_MAX} failures in a row")))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::FakeClock;

    fn silence() -> StoreError {
        StoreError::NoAnswer("no answer".into())
    }

    #[test]
    fn operations_that_wait_together_are_one_timeout() {
        let (mut patience, clock) = (Patience::default(), FakeClock::default());
        for (begun, end) in [(0, 1000), (10, 1010), (20, 1020), (30, 1030), (1000, 2000), (1010, 2010)] {
            assert_eq!(patience.failed(OpKind::Read, (begun, end), &silence(), &clock), None, "{begun}");
        }
        assert!(patience.failed(OpKind::Read, (2000, 3000), &silence(), &clock).is_some());
    }

    #[test]
    fn an_answer_of_the_same_kind_ends_the_row() {
        let (mut patience, clock) = (Patience::default(), FakeClock::default());
        let failed = |patience: &mut Patience, begun, error: &StoreError| {
            patience.failed(OpKind::Update, (begun, begun + 10), error, &clock)
        };
        for round in 0..10 {
            assert_eq!(failed(&mut patience, round * 100, &silence()), None);
            assert_eq!(failed(&mut patience, round * 100 + 10, &silence()), None);
            if round % 2 == 0 {
                patience.succeeded(OpKind::Update);
            } else {
                let refused = StoreError::Refused("full".into());
                assert_eq!(failed(&mut patience, round * 100 + 20, &refused), None);
            }
        }
    }
}
