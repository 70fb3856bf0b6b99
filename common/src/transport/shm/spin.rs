//! How long to look for a message before going to sleep.
//!
//! A wake-up through the kernel takes tens of microseconds, a look at a ring some nanoseconds; but who looks all the time
//! uses a whole core. So the budget follows experience: it doubles when looking paid off and halves when it did not.

use std::num::NonZero;
use std::thread;

use crate::sync::spin_loop;

/// A budget of looks, between limits.
#[derive(Clone, Debug)]
pub struct Spin {
    budget: u32,
    min: u32,
    max: u32,
}

impl Spin {
    /// Looks that a wait has at least, unless the machine has a single processor. They take longer than a round trip by
    /// way of the kernel (10 us and more): two sides that both went to sleep otherwise never find out again that looking
    /// pays off, and every message waits for a wake-up from then on.
    pub const MIN_LOOKS: u32 = 1024;

    /// Looks that a wait has at most. A look with its pause takes 10 to 60 ns, so that is below a millisecond.
    pub const MAX_LOOKS: u32 = 16 * 1024;

    /// A budget that starts at `max`. Always 0 if this process may use only one processor: there the peer cannot do
    /// anything while we look.
    ///
    /// # Panics
    /// Panics if `min` is above `max`.
    pub fn new(min: u32, max: u32) -> Spin {
        Spin::on(thread::available_parallelism().map_or(1, NonZero::get), min, max)
    }

    fn on(processors: usize, min: u32, max: u32) -> Spin {
        assert!(min <= max, "spin budget: {min} is above {max}");
        if processors == 1 {
            return Spin { budget: 0, min: 0, max: 0 };
        }
        Spin { budget: max, min, max }
    }

    /// Looks until `ready` says so or the budget is used up; returns what it said last. Reads no clock.
    #[inline]
    pub fn wait(&mut self, mut ready: impl FnMut() -> bool) -> bool {
        for _ in 0..self.budget {
            if ready() {
                self.paid_off();
                return true;
            }
            spin_loop();
        }
        self.in_vain();
        ready()
    }

    /// Looks that the next wait may take.
    pub fn budget(&self) -> u32 {
        self.budget
    }

    /// For loops that count for themselves: a look found something within the budget.
    #[inline]
    pub fn paid_off(&mut self) {
        self.budget = self.budget.saturating_mul(2).clamp(self.min, self.max);
    }

    /// For loops that count for themselves: the budget was used up in vain.
    #[inline]
    pub fn in_vain(&mut self) {
        self.budget = (self.budget / 2).clamp(self.min, self.max);
    }
}

impl Default for Spin {
    fn default() -> Spin {
        Spin::new(Spin::MIN_LOOKS, Spin::MAX_LOOKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_follows_experience_within_its_limits() {
        let mut spin = Spin::on(2, 4, 20);
        let mut budgets = Vec::new();
        for _ in 0..4 {
            assert!(!spin.wait(|| false));
            budgets.push(spin.budget());
        }
        for _ in 0..4 {
            assert!(spin.wait(|| true));
            budgets.push(spin.budget());
        }
        assert_eq!(budgets, [10, 5, 4, 4, 8, 16, 20, 20]);
    }

    #[test]
    fn a_wait_looks_as_often_as_its_budget_and_once_more() {
        let mut looks = 0;
        let mut spin = Spin::on(2, 4, 20);
        assert!(!spin.wait(|| {
            looks += 1;
            false
        }));
        assert_eq!(looks, 21);
        looks = 0;
        assert!(spin.wait(|| {
            looks += 1;
            looks == 3
        }));
        assert_eq!(looks, 3);
    }

    #[test]
    fn one_processor_never_spins() {
        let mut spin = Spin::on(1, 4, 20);
        let mut looks = 0;
        for _ in 0..3 {
            spin.wait(|| {
                looks += 1;
                true
            });
            spin.paid_off();
        }
        assert_eq!((looks, spin.budget()), (3, 0));
    }
}
