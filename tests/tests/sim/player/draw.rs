//! What a client does next, drawn.

use kv_tests::oracle::{Call, When};
use kv_tests::value::NAMED_BYTES_MIN;

use super::{Player, Role};

impl Player {
    /// What to do next, to which key.
    pub(super) fn draw(&mut self) -> (usize, Call) {
        if self.plan.queue_burst_max > 0 && self.rng.below(100) >= self.plan.gets_percent {
            return self.draw_of_queue();
        }
        let key = self.draw_key();
        (key, self.draw_call(key))
    }

    fn draw_of_queue(&mut self) -> (usize, Call) {
        let keys = self.plan.roles.len();
        let is_at_end = self.queued == if self.is_filling { keys } else { 0 };
        if self.burst_left == 0 || is_at_end {
            self.is_filling = !self.is_filling;
            let is_to_the_end = self.is_filling && !self.rng.one_in(4);
            self.burst_left =
                if is_to_the_end { u64::MAX } else { 1 + self.rng.below(self.plan.queue_burst_max) };
        }
        self.burst_left -= 1;
        if self.is_filling {
            let newest = (self.oldest + self.queued) % keys;
            self.queued += 1;
            return (newest, Call::Put { len_bytes: self.draw_len(newest, None), ttl_ns: None });
        }
        let oldest = self.oldest;
        (self.oldest, self.queued) = ((oldest + 1) % keys, self.queued - 1);
        (oldest, Call::Delete)
    }

    /// Some keys are asked for more often than others, and those most that somebody is writing.
    pub(super) fn draw_key(&mut self) -> usize {
        if self.rng.below(100) < self.plan.follow_percent {
            return self.shared.written.get();
        }
        let keys = self.plan.roles.len() as u64;
        let hot_keys = self.plan.hot_keys.min(keys);
        let bound = if hot_keys > 0 && self.rng.one_in(3) { hot_keys } else { keys };
        self.rng.below(bound) as usize
    }

    fn draw_call(&mut self, key: usize) -> Call {
        let role = self.plan.roles[key];
        if role == Role::Read || self.rng.below(100) < self.plan.gets_percent {
            return Call::Get;
        }
        let ttl_ns = self.draw_ttl(role);
        let len_bytes = self.draw_len(key, ttl_ns);
        match self.rng.below(10) {
            0 => {
                let when = match self.rng.below(4) {
                    0 => When::Absent,
                    1 => When::Present,
                    _ => When::Version(self.versions[key]),
                };
                if role == Role::Any && self.rng.one_in(4) && when != When::Absent {
                    return Call::DeleteIf { when };
                }
                Call::PutIf { when, len_bytes, ttl_ns }
            }
            n if role == Role::Any && n <= if self.shared.is_growing.get() { 1 } else { 7 } => Call::Delete,
            _ => Call::Put { len_bytes, ttl_ns },
        }
    }

    /// From no time at all to longer than everything takes.
    fn draw_ttl(&mut self, role: Role) -> Option<u64> {
        let is_ending = role == Role::Any && self.rng.below(100) < self.plan.ttl_percent;
        is_ending
            .then(|| self.rng.pick(&[1, 100_000, 2_000_000, 20_000_000, 60_000_000, 200_000_000, 1 << 50]))
    }

    /// A length that brings the block into one of the classes in use, often to its very end.
    fn draw_len(&mut self, key: usize, ttl_ns: Option<u64>) -> usize {
        let overhead =
            24 + if ttl_ns.is_some() { 8 } else { 0 } + self.shared.oracle.borrow().keys()[key].bytes.len();
        let block_bytes = self.rng.pick(&self.shared.block_bytes);
        if self.rng.one_in(40) {
            return self.rng.below(9) as usize;
        }
        let unused = self.rng.pick(&[0, 0, 1, 7, 8, 15]);
        block_bytes.saturating_sub(overhead + unused).max(NAMED_BYTES_MIN)
    }
}
