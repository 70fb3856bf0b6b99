//! Hooks for the simulated fabric and deliberate faults, by name. Without the `adversary` feature every question asked
//! here is answered "no" at compile time, and nothing is left of it in the binaries.
//!
//! The state is per thread: a simulation is one thread, and tests run many of them side by side.

#[cfg(feature = "adversary")]
use std::cell::{Cell, RefCell};
#[cfg(feature = "adversary")]
use std::rc::Rc;

/// A deliberate fault. The simulation must find each; `docs/verification.md` says what each would break.
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
    /// The reader believes a miss in a line that is marked moving.
    BelieveMovingMiss,
    /// The reader does not check depth bits (stale directory).
    BelieveStaleDirectory,
    /// The reader believes a miss whose lookup took longer than GRACE.
    BelieveSlowMiss,
    /// The reader takes a miss in its index cache for a miss.
    BelieveCachedMiss,
    /// The reader does not bounds-check lengths that came from remote memory.
    UnboundedLength,
    /// The reader uses places without regard to the place epoch.
    SkipPlaceEpoch,
    /// The client does not hold back a GET behind its own PUT in flight.
    SkipOwnWrites,
    /// The writer acknowledges before its stores.
    AckBeforeStore,
    /// The writer makes the new block live before the old one is dead.
    LiveBeforeDead,
    /// The writer stores the slot and the live new block before it kills the old block.
    OldStaysAlive,
    /// The writer publishes the slot of an insert before the block is written, and the block is live from the start.
    SlotBeforeBlock,
    /// A delete clears the slot and leaves the block alive.
    ForgetTombstone,
    /// An update in place does not mark the block as being written.
    InPlaceWithoutMark,
    /// A block is used again while server threads may still look at it.
    ReuseWithoutEpoch,
    /// An overflow line is unlinked from the middle of a chain.
    UnlinkMiddleOverflow,
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

#[cfg(feature = "adversary")]
thread_local! {
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
