//! What a client knows of the server's clock, by which keys expire.
//!
//! The server publishes its clock every few milliseconds in a word of its memory. A client adds to the last value that it has
//! READ the time that has passed since by its own monotonic clock; what its wall clock says plays no part. So time goes on
//! while the server is stopped and its word stands still.

/// A READ of the word that took longer than this says too little: half of what an expiry may be wrong by.
const SAMPLE_MAX_NS: u64 = 25_000_000;
/// Two monotonic clocks drift apart by less than one part in so many.
const DRIFT_ONE_IN: u64 = 1024;

/// The server's clock, as far as is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServerClock {
    known: Option<Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// The word that was read last.
    word_ns: u64,
    server_ns: u64,
    own_ns: u64,
}

impl ServerClock {
    /// Takes note of the word, read between `posted_ns` and `now_ns` by the client's own clock.
    ///
    /// A word that has not changed comes from a server that stands, or was read a moment ago: nothing is learned from it. One
    /// that has changed may be old by now, if the server was stopped right after it was stored. So the clock is set back
    /// only as far as the two clocks can have drifted apart.
    pub(crate) fn note(&mut self, word_ns: u64, posted_ns: u64, now_ns: u64) {
        if now_ns.saturating_sub(posted_ns) > SAMPLE_MAX_NS {
            return;
        }
        let server_ns = match self.known {
            None => word_ns,
            Some(known) if known.word_ns == word_ns => return,
            Some(known) => {
                let passed_ns = now_ns.saturating_sub(known.own_ns);
                let least_ns = known.server_ns.saturating_add(passed_ns - passed_ns / DRIFT_ONE_IN);
                word_ns.max(least_ns)
            }
        };
        self.known = Some(Known { word_ns, server_ns, own_ns: now_ns });
    }

    /// The server's clock at `now_ns` of the client's own; `None` if no READ of it was quick enough yet.
    pub(crate) fn at(&self, now_ns: u64) -> Option<u64> {
        self.known.map(|known| known.server_ns.saturating_add(now_ns.saturating_sub(known.own_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn time_goes_on_while_the_word_stands() {
        let mut clock = ServerClock::default();
        assert_eq!(clock.at(5), None);
        clock.note(1000 * MS, 0, MS);
        assert_eq!(clock.at(11 * MS), Some(1010 * MS));
        clock.note(1000 * MS, 9000 * MS, 9001 * MS);
        assert_eq!(clock.at(9001 * MS), Some(10_000 * MS));
        // The word was stored once more right before the server was stopped: less than the drift is lost.
        clock.note(1020 * MS, 9002 * MS, 9002 * MS);
        let now_ns = clock.at(9002 * MS).unwrap();
        assert!((9991 * MS..=10_001 * MS).contains(&now_ns), "{now_ns}");
        // It goes on.
        clock.note(10_020 * MS, 9010 * MS, 9011 * MS);
        assert_eq!(clock.at(9011 * MS), Some(10_020 * MS));
    }

    #[test]
    fn slow_reads_say_nothing() {
        let mut clock = ServerClock::default();
        clock.note(1000 * MS, 0, 26 * MS);
        assert_eq!(clock.at(26 * MS), None);
        clock.note(1000 * MS, 30 * MS, 31 * MS);
        clock.note(1020 * MS, 40 * MS, 90_000 * MS);
        assert_eq!(clock.at(131 * MS), Some(1100 * MS));
    }
}
