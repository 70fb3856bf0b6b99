//! What a client knows of the server's clock, by which keys expire.
//!
//! The server publishes its clock every few milliseconds in a word of its memory, and so the clock is never behind the
//! word. A client goes on from the word by its own monotonic clock; what its wall clock says plays no part. While both
//! agree, all is well. If they do not, either the server was stopped, so that the word is old, or the client's own clock is
//! wrong. The client then *watches* the word: if it changes between two looks that are close to each other, it is fresh and
//! counts; if it stands for long, the server is stopped, and the client's own clock counts, so that keys expire
//! nevertheless.
//!
//! A clock that goes on from a word of unknown age knows nothing. So the first word counts only if it was read soon after the
//! hello, which a server that is stopped does not answer. Otherwise the server is asked until a word was seen to be fresh.
//!
//! ```text
//!            word near what the own clock says: go on from the later of the two
//!             .---.
//!             v   |      word far from it
//!            Kept ----------------------------> Watching <--- connected
//!             ^ ^                                | |  ^
//!             | `--------------------------------' |  |
//!             |   word changed between close looks |  |
//!             |                                    v  |
//!             `-------------------------------- Standing
//!                word near again                  word changed, and far from what the own clock says
//! ```

use kv_common::adversary::{Mutant, mutant};

/// What is near: for word and clock, for the two ends of a READ, for two looks. With the server's pace of publishing, and
/// some room, it makes the 50 ms that an expiry may be wrong by.
const NEAR_NS: u64 = 20_000_000;
/// A word that was seen to stand for so long is that of a server that is stopped.
const STANDS_NS: u64 = 40_000_000;
/// What the time between two looks counts for at most: own clocks leap.
const LOOK_NS_MAX: u64 = 2_000_000;
/// Between two looks at a word that is watched.
pub(crate) const WATCH_PAUSE_NS: u64 = 1_000_000;
/// After so many looks that somebody waited for and that settled nothing, the server is asked: READs take too long here.
const VAIN_LOOKS_MAX: u32 = 4;
/// ... and all that is in doubt for so long.
const ASK_NS: u64 = 100_000_000;
/// Two clocks that are right drift apart by less than one part in so many.
const DRIFT_ONE_IN: u64 = 512;

/// What is to be done about a value whose time ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Live,
    Expired,
    /// The word has to be read again, not before this time of the own clock.
    LookAt(u64),
    /// READs take too long here for that: the server has to say.
    Ask,
}

/// The server's clock, as far as is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerClock {
    /// Before this time of the own clock the first word is fresh: the server has run not long ago.
    fresh_until_ns: u64,
    known: Option<Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// The word as it was seen last.
    word_ns: u64,
    /// When the READ began that brought it, and when it was there, by the own clock.
    posted_ns: u64,
    seen_ns: u64,
    /// From here the own clock leads on.
    server_ns: u64,
    own_ns: u64,
    trust: Trust,
    /// The word from which the own clock leads on was fresh then.
    is_sure: bool,
    /// Somebody waits for the next look.
    is_wanted: bool,
    vain_looks: u32,
    ask_until_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Kept,
    /// The word is watched, and has been seen to stand for so long.
    Watching {
        stood_ns: u64,
    },
    Standing,
}

impl ServerClock {
    /// Nothing is known yet, at `now_ns` of the own clock. The hello that the server has answered was sent so long ago, or less.
    pub(crate) fn after_hello(now_ns: u64, hello_ago_ns: u64) -> ServerClock {
        // Own clocks begin anywhere, also at 0, which was after the hello.
        let fresh_until_ns = now_ns.saturating_add(NEAR_NS).saturating_sub(hello_ago_ns);
        ServerClock { fresh_until_ns, known: None }
    }

    /// False until a word was fresh when it was read, or has stood for so long that the server is stopped.
    pub(crate) fn is_settled(&self) -> bool {
        self.known.is_some_and(|known| known.is_sure || known.trust == Trust::Standing)
    }

    /// Takes note of the word, read between `posted_ns` and `now_ns` by the client's own clock.
    pub(crate) fn note(&mut self, word_ns: u64, posted_ns: u64, now_ns: u64) {
        let Some(known) = &mut self.known else {
            let (server_ns, own_ns, seen_ns) = (word_ns, now_ns, now_ns);
            let trust = Trust::Watching { stood_ns: 0 };
            let is_sure = now_ns < self.fresh_until_ns;
            self.known = Some(Known {
                word_ns,
                posted_ns,
                seen_ns,
                server_ns,
                own_ns,
                trust,
                is_sure,
                is_wanted: false,
                vain_looks: 0,
                ask_until_ns: 0,
            });
            return;
        };
        if mutant(Mutant::TrustOwnClock) {
            known.trust = Trust::Kept;
            return;
        }
        known.note(word_ns, posted_ns, now_ns);
        (known.word_ns, known.posted_ns, known.seen_ns) = (word_ns, posted_ns, now_ns);
    }

    /// Whether a time has come by the server's clock, at `now_ns` of the own one.
    pub(crate) fn judge(&mut self, expires_ns: u64, now_ns: u64) -> Judgement {
        let Some(known) = &mut self.known else { return Judgement::LookAt(now_ns) };
        if mutant(Mutant::TrustOwnClock) {
            return if expires_ns <= known.at(now_ns) { Judgement::Expired } else { Judgement::Live };
        }
        // The server's clock is never behind its word.
        if expires_ns <= known.word_ns {
            return Judgement::Expired;
        }
        let at_ns = if let Trust::Watching { .. } = known.trust {
            known.seen_ns.saturating_add(WATCH_PAUSE_NS)
        } else if !known.is_sure {
            return Judgement::Ask;
        } else if expires_ns > known.at(now_ns) {
            known.vain_looks = 0;
            return Judgement::Live;
        } else if now_ns.saturating_sub(known.posted_ns) <= NEAR_NS {
            known.vain_looks = 0;
            return Judgement::Expired;
        } else {
            // It is the own clock that says so, and it may have leapt since the last look.
            now_ns
        };
        if known.vain_looks >= VAIN_LOOKS_MAX {
            // After that two looks are tried, with which it is settled if READs are quick again.
            known.vain_looks = VAIN_LOOKS_MAX - 2;
            known.ask_until_ns = now_ns.saturating_add(ASK_NS);
        }
        if now_ns < known.ask_until_ns {
            return Judgement::Ask;
        }
        known.is_wanted = true;
        Judgement::LookAt(at_ns)
    }
}

impl Known {
    /// The server's clock by the own one.
    fn at(&self, now_ns: u64) -> u64 {
        self.server_ns.saturating_add(now_ns.saturating_sub(self.own_ns))
    }

    fn lead_on_from(&mut self, server_ns: u64, now_ns: u64) {
        (self.server_ns, self.own_ns) = (server_ns, now_ns);
    }

    fn note(&mut self, word_ns: u64, posted_ns: u64, now_ns: u64) {
        let is_quick = now_ns.saturating_sub(posted_ns) <= NEAR_NS;
        let is_same = word_ns == self.word_ns;
        // One that saw the word stand has brought its end nearer.
        let is_of_use = is_same && matches!(self.trust, Trust::Watching { .. });
        self.vain_looks += u32::from(self.is_wanted && !is_of_use);
        self.is_wanted = false;
        let stood_ns = match self.trust {
            Trust::Standing if is_same => return,
            Trust::Watching { stood_ns } if is_same => Some(stood_ns),
            Trust::Watching { .. } => None,
            Trust::Kept | Trust::Standing => return self.compare(word_ns, is_quick, now_ns),
        };
        if let Some(stood_ns) = stood_ns {
            let stood_ns = stood_ns + posted_ns.saturating_sub(self.seen_ns).min(LOOK_NS_MAX);
            let is_standing = stood_ns >= STANDS_NS;
            self.trust = if is_standing { Trust::Standing } else { Trust::Watching { stood_ns } };
            return;
        }
        // Stored since the last look began.
        let is_fresh = now_ns.saturating_sub(self.posted_ns) <= NEAR_NS;
        if is_fresh || word_ns > self.at(now_ns) {
            self.lead_on_from(word_ns, now_ns);
        }
        self.is_sure |= is_fresh;
        self.trust = if is_fresh { Trust::Kept } else { Trust::Watching { stood_ns: 0 } };
    }

    /// Word and own clock.
    fn compare(&mut self, word_ns: u64, is_quick: bool, now_ns: u64) {
        let own_says_ns = self.at(now_ns);
        if mutant(Mutant::BelieveOldWord) {
            return self.lead_on_from(word_ns, now_ns);
        }
        if !is_quick {
            return self.lead_on_from(word_ns.max(own_says_ns), now_ns);
        }
        let is_near = self.is_sure && word_ns.abs_diff(own_says_ns) <= NEAR_NS;
        if is_near || mutant(Mutant::NeverDoubtOwnClock) {
            let drift_ns = now_ns.saturating_sub(self.own_ns) / DRIFT_ONE_IN;
            self.lead_on_from(word_ns.max(own_says_ns - drift_ns), now_ns);
            self.trust = Trust::Kept;
        } else {
            self.lead_on_from(word_ns.max(own_says_ns), now_ns);
            self.trust = Trust::Watching { stood_ns: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const PAUSE: u64 = WATCH_PAUSE_NS;

    /// A client beside a server that publishes every 5 ms.
    struct World {
        clock: ServerClock,
        /// True time, the own clock's lead over it, and the word.
        now: u64,
        ahead: u64,
        word: u64,
        is_stopped: bool,
        looks: u64,
    }

    impl World {
        fn new() -> World {
            let (now, ahead) = (10_000_000 * MS, 77);
            World {
                clock: ServerClock::after_hello(now + ahead, 0),
                now,
                ahead,
                word: 9_999_998 * MS,
                is_stopped: false,
                looks: 0,
            }
        }

        fn pass(&mut self, ns: u64) {
            self.now += ns;
            if !self.is_stopped {
                self.word = self.now / (5 * MS) * 5 * MS;
            }
        }

        /// As a GET does, with a READ that takes some 10 us.
        fn is_expired(&mut self, expires: u64) -> bool {
            for _ in 0..1000 {
                match self.clock.judge(expires, self.now + self.ahead) {
                    Judgement::Live => return false,
                    Judgement::Expired => return true,
                    Judgement::Ask => panic!("READs are quick"),
                    Judgement::LookAt(at) => {
                        self.pass(at.saturating_sub(self.now + self.ahead));
                        let posted = self.now + self.ahead;
                        self.pass(10_000);
                        self.looks += 1;
                        self.clock.note(self.word, posted, self.now + self.ahead);
                    }
                }
            }
            panic!("it is judged in the end");
        }

        /// Judges exactly to 50 ms.
        fn check(&mut self) {
            for off in [50, 1000, 3_600_000] {
                assert!(self.is_expired(self.now - off * MS), "{off} ms ago");
                let expires = self.now + off * MS;
                // It may take some looks.
                assert!(!self.is_expired(expires) || self.now >= expires - 50 * MS, "in {off} ms");
            }
        }
    }

    #[test]
    fn a_running_server_is_followed() {
        let mut world = World::new();
        for step in [0, MS, 30 * MS, 1000 * MS, 3_600_000 * MS] {
            world.pass(step);
            world.check();
        }
    }

    #[test]
    fn time_goes_on_while_the_server_is_stopped() {
        let mut world = World::new();
        world.check();
        for _ in 0..2 {
            world.is_stopped = true;
            for step in [0, 10 * MS, 100 * MS, 10_000 * MS] {
                world.pass(step);
                world.check();
            }
            // It runs for a moment, and is stopped again.
            world.is_stopped = false;
            world.pass(6 * MS);
            world.is_stopped = true;
            for step in [10 * MS, 1000 * MS] {
                world.pass(step);
                world.check();
            }
            world.is_stopped = false;
            world.pass(6 * MS);
            world.check();
        }
    }

    /// The server was stopped between the hello and the first look: how long ago, the word does not say.
    #[test]
    fn a_first_word_long_after_the_hello_is_not_believed() {
        for (late, hello_ago) in [(21 * MS, 0), (4000 * MS, 0), (0, 21 * MS), (0, u64::MAX)] {
            let mut world = World::new();
            world.ahead = 0;
            world.clock = ServerClock::after_hello(world.now, hello_ago);
            world.is_stopped = true;
            world.pass(late);
            // The word, this moment, and one far ahead: none of them is known to be over, or not to be.
            let (over, open) = (world.word, [world.now, world.now + 3_600_000 * MS]);
            for _ in 0..100 {
                world.pass(PAUSE);
                let now = world.now + world.ahead;
                world.clock.note(world.word, now, now);
            }
            for expires in open {
                assert_eq!(
                    world.clock.judge(expires, world.now + world.ahead),
                    Judgement::Ask,
                    "{late} {hello_ago}"
                );
            }
            assert_eq!(world.clock.judge(over, world.now + world.ahead), Judgement::Expired);
            // It runs again: a fresh word is enough, and one that only looks right is none.
            let guess = world.clock.known.expect("it was noted").at(world.now + world.ahead);
            world.clock.note(guess, world.now + world.ahead, world.now + world.ahead);
            assert!(matches!(world.clock.judge(open[1], world.now + world.ahead), Judgement::LookAt(_)));
            world.is_stopped = false;
            world.pass(6 * MS);
            world.check();
        }
    }

    #[test]
    fn own_clocks_may_begin_after_the_hello() {
        for (hello_ago, is_sure) in [(0, true), (19 * MS, true), (20 * MS, false), (600 * MS, false)] {
            let mut clock = ServerClock::after_hello(100, hello_ago);
            clock.note(1000 * MS, 200, 300);
            assert_eq!(clock.is_settled(), is_sure, "{hello_ago} ns");
        }
    }

    /// A word that was looked at long ago, has changed since, and is old.
    #[test]
    fn a_word_that_was_not_watched_is_not_believed() {
        let mut world = World::new();
        world.check();
        world.pass(3000 * MS);
        world.is_stopped = true;
        world.pass(3000 * MS);
        world.check();
    }

    #[test]
    fn an_own_clock_that_leaps_is_set_right() {
        let mut world = World::new();
        world.check();
        for leap in [10 * MS, 300 * MS, 3_600_000 * MS] {
            world.ahead += leap;
            world.check();
            world.pass(500 * MS);
            world.check();
        }
        let looks = world.looks;
        world.pass(10 * MS);
        assert!(!world.is_expired(world.now + 1000 * MS));
        assert_eq!(world.looks, looks, "it is known again");
    }

    #[test]
    fn own_clocks_that_run_too_fast_or_too_slowly_are_set_right() {
        for (numerator, denominator) in [(101, 100), (99, 100), (2, 1)] {
            let mut world = World::new();
            for _ in 0..500 {
                world.pass(7 * MS);
                world.ahead = (world.ahead + 7 * MS * numerator / denominator).saturating_sub(7 * MS);
                let (posted, now) = (world.now + world.ahead, world.now + world.ahead + 10_000);
                world.clock.note(world.word, posted, now);
                world.check();
            }
        }
    }

    #[test]
    fn slow_reads_prove_nothing_but_what_has_passed() {
        let mut clock = ServerClock::after_hello(0, 0);
        clock.note(1000 * MS, 0, MS);
        clock.note(1005 * MS, MS + PAUSE, MS + PAUSE);
        assert_eq!(clock.judge(1007 * MS, 3 * MS), Judgement::Live);
        // 25 ms on its way: what it brings has passed, how long ago is not known.
        clock.note(1010 * MS, 4 * MS, 29 * MS);
        assert_eq!(clock.judge(1010 * MS, 29 * MS), Judgement::Expired);
        assert_eq!(clock.judge(1011 * MS, 29 * MS), Judgement::LookAt(29 * MS));
        assert_eq!(clock.judge(1060 * MS, 29 * MS), Judgement::Live);
    }

    /// Over a network on which a READ takes so long, with a GET of two READs after each look. It waits for a bounded time.
    #[test]
    fn where_reads_are_slow_the_server_is_asked() {
        for read_ms in [8, 15, 60] {
            let (mut now, mut asked) = (10_000 * MS, 0);
            let mut clock = ServerClock::after_hello(now, 0);
            clock.note(now, now - read_ms * MS, now);
            for get in 0..20 {
                let mut looks = 0;
                loop {
                    now += 2 * read_ms * MS;
                    // Over, but not yet by a word.
                    match clock.judge(now - read_ms * MS, now) {
                        Judgement::LookAt(at) => {
                            let posted = at.max(now);
                            now = posted + read_ms * MS;
                            clock.note(posted, posted, now);
                            looks += 1;
                        }
                        Judgement::Ask => break asked += 1,
                        Judgement::Live | Judgement::Expired => break,
                    }
                }
                assert!(looks <= if get == 0 { 4 } else { 2 }, "{looks} looks of {read_ms} ms");
            }
            assert!(asked > 0, "{read_ms} ms");
            // Once READs are quick, nobody has to be asked.
            for _ in 0..20 {
                now += MS;
                clock.note(now / (5 * MS) * 5 * MS, now, now);
            }
            assert_eq!(clock.judge(now + 1000 * MS, now), Judgement::Live, "{read_ms} ms");
        }
    }
}
