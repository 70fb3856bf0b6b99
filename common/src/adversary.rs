//! Hooks for the simulated fabric and deliberate faults, by name. Without the `adversary` feature every question asked
//! here is answered "no" at compile time, and nothing is left of it in the binaries.
//!
//! The state is per thread: a simulation is one thread, and tests run many of them side by side.

#[cfg(feature = "adversary")]
use std::cell::{Cell, RefCell};
#[cfg(feature = "adversary")]
use std::rc::Rc;

/// A deliberate fault. The simulation must find each; `docs/verification.md` says what each would break.
///
/// Not here, because no reader can be misled by them, since the check of a block covers all of it and its version:
/// * an update in place that does not mark the block as being written, and a slot that is published before its block is
///   written: until the last word of the new block is there, no check agrees;
/// * a block that is used again while a thread of the server still looks at it without locks: that look judges the block
///   as a remote reader does;
/// * a reader that does not compare lengths with what it read: a place keeps its class as long as it may be used, so
///   whatever block is found there has lengths that fit. (Arbitrary words, which no server writes, are for the tests of `block`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The reader does not compare the check word.
    SkipCheck,
    /// The check covers only the length word: neither key nor value.
    CheckWithoutPayload,
    /// The check does not cover the version.
    CheckWithoutVersion,
    /// The reader does not compare the key.
    SkipKey,
    /// The reader takes a key that starts with the wanted one for the wanted one.
    PrefixKey,
    /// The reader believes word 0 even when it says "not live".
    SkipLive,
    /// The reader takes a valid block of another key for absence.
    OtherKeyIsMiss,
    /// The reader takes a block that is not live for absence.
    DeadIsMiss,
    /// The reader does not follow overflow lines.
    SkipOverflow,
    /// The reader takes a miss in its index cache for a miss.
    BelieveCachedMiss,
    /// The client does not hold back a GET behind its own PUT in flight.
    SkipOwnWrites,
    /// The writer acknowledges before its stores.
    AckBeforeStore,
    /// The writer makes the new block live before the old one is dead.
    LiveBeforeDead,
    /// The writer stores the slot and the live new block before it kills the old block.
    OldStaysAlive,
    /// The writer makes the block of an insert live before it stores the slot.
    LiveBeforeSlot,
    /// A delete clears the slot and leaves the block alive.
    ForgetTombstone,
    /// An overflow line is unlinked from the middle of a chain.
    UnlinkMiddleOverflow,
    /// The reader believes a miss in a line that is marked as moving.
    BelieveMovingMiss,
    /// The reader does not compare the hash bits of headers.
    SkipDepth,
    /// The reader believes a miss of a lookup that was slower than GRACE.
    BelieveSlowMiss,
    /// A split does not mark the lines whose keys it copies.
    SkipMarking,
    /// A split clears the slots that it has copied without waiting for GRACE.
    ClearWithoutGrace,
    /// A split moves keys out of overflow lines of homes that are not marked.
    TidyUnmarked,
    /// A split takes the mark of a home that it has tidied away without waiting for GRACE.
    UnmarkWithoutGrace,
    /// A split lets the directory lead to a segment that has not got its keys.
    PublishBeforeCopy,
    /// A split copies keys by the line that they are in, not by their home.
    SplitLineByLine,
    /// A write to a key that a split has copied leaves the copy of its slot as it was.
    ForgetTwin,
    /// A segment gets another use without a new place epoch.
    KeepPlaceEpoch,
    /// A segment gets another use right after the place epoch was raised.
    ReuseWithoutLease,
    /// The reader accepts a block whose place it learned under another place epoch.
    SkipPlaceEpoch,
    /// The reader does not look at the clock when it finds a value whose time ends.
    IgnoreExpiry,
    /// The reader goes by its own clock alone once it has read the server's.
    TrustOwnClock,
    /// The reader takes the server's clock for as old as it was read, though the server may have been stopped since.
    BelieveOldWord,
    /// The reader never lets its own clock be set back far.
    NeverDoubtOwnClock,
    /// The reader believes a large block once its first page is that of the key.
    CheckOnlyHead,
    /// The pages of a large block but the first begin with what was there before.
    SkipMarkers,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 36] = [
        Mutant::SkipCheck,
        Mutant::CheckWithoutPayload,
        Mutant::CheckWithoutVersion,
        Mutant::SkipKey,
        Mutant::PrefixKey,
        Mutant::SkipLive,
        Mutant::OtherKeyIsMiss,
        Mutant::DeadIsMiss,
        Mutant::SkipOverflow,
        Mutant::BelieveCachedMiss,
        Mutant::SkipOwnWrites,
        Mutant::AckBeforeStore,
        Mutant::LiveBeforeDead,
        Mutant::OldStaysAlive,
        Mutant::LiveBeforeSlot,
        Mutant::ForgetTombstone,
        Mutant::UnlinkMiddleOverflow,
        Mutant::BelieveMovingMiss,
        Mutant::SkipDepth,
        Mutant::BelieveSlowMiss,
        Mutant::SkipMarking,
        Mutant::ClearWithoutGrace,
        Mutant::TidyUnmarked,
        Mutant::UnmarkWithoutGrace,
        Mutant::PublishBeforeCopy,
        Mutant::SplitLineByLine,
        Mutant::ForgetTwin,
        Mutant::KeepPlaceEpoch,
        Mutant::ReuseWithoutLease,
        Mutant::SkipPlaceEpoch,
        Mutant::IgnoreExpiry,
        Mutant::TrustOwnClock,
        Mutant::BelieveOldWord,
        Mutant::NeverDoubtOwnClock,
        Mutant::CheckOnlyHead,
        Mutant::SkipMarkers,
    ];
}

/// True if the fault is switched on for this thread.
#[inline(always)]
pub fn mutant(_which: Mutant) -> bool {
    #[cfg(feature = "adversary")]
    return ACTIVE.get() == Some(_which);
    #[cfg(not(feature = "adversary"))]
    false
}

/// Called with the address of the word that is about to be stored.
#[cfg(feature = "adversary")]
type Hook = Rc<dyn Fn(usize)>;

/// Called instead of sleeping.
#[cfg(feature = "adversary")]
type PauseHook = Rc<dyn Fn()>;

#[cfg(feature = "adversary")]
thread_local! {
    static PAUSE_HOOK: RefCell<Option<PauseHook>> = const { RefCell::new(None) };
    static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Switches a fault on for this thread, or all off.
#[cfg(feature = "adversary")]
pub fn set_mutant(which: Option<Mutant>) {
    ACTIVE.set(which);
}

/// Calls `hook` before each store that this thread makes to shared words, with the word's address; `None` stops that.
/// The hook may suspend the coroutine that stores, and others may store meanwhile.
#[cfg(feature = "adversary")]
pub fn set_store_hook(hook: Option<Hook>) {
    HOOK.replace(hook);
}

/// Calls `hook` whenever this thread would sleep for a moment; `None` stops that. The hook lets others run.
#[cfg(feature = "adversary")]
pub fn set_pause_hook(hook: Option<PauseHook>) {
    PAUSE_HOOK.replace(hook);
}

/// Sleeps; over the simulated fabric, lets others run.
pub fn pause_for(duration: std::time::Duration) {
    #[cfg(feature = "adversary")]
    {
        // Not borrowed while it runs, as for stores.
        let hook = PAUSE_HOOK.with_borrow(Clone::clone);
        if let Some(hook) = hook {
            return hook();
        }
    }
    std::thread::sleep(duration);
}

/// The scheduling point of the simulated fabric.
#[cfg(feature = "adversary")]
#[inline]
pub(crate) fn before_store(address: usize) {
    // Not borrowed while it runs: it may suspend this coroutine, and another one stores.
    let hook = HOOK.with_borrow(Clone::clone);
    if let Some(hook) = hook {
        hook(address);
    }
}
