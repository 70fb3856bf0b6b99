//! The writers' locks. Readers see none of them.

use kv_common::layout::SEGMENT_LINES;
use kv_common::limits::STRIPES;
use parking_lot::{Mutex, MutexGuard};

/// One lock per line number in its segment, modulo [`STRIPES`]. A write holds the stripes of its home line and of the
/// next: another home can touch either of these lines, or the blocks that their slots name, only with one of the two
/// stripes. The overflow lines of a home are touched by its own writes alone, so its stripe covers them.
///
/// Lines of the same number in different segments share a stripe. So the stripes of a key follow from its hash alone, and
/// are the same before, during and after a split of its segment.
pub(super) struct Stripes(Box<[Mutex<()>]>);

const _: () = assert!(SEGMENT_LINES.is_multiple_of(STRIPES as u64));

/// Both stripes of a home.
pub(super) struct Held<'a>(#[expect(dead_code, reason = "held, not read")] [MutexGuard<'a, ()>; 2]);

impl Stripes {
    pub(super) fn new() -> Stripes {
        Stripes((0..STRIPES).map(|_| Mutex::new(())).collect())
    }

    /// Takes the stripes of the home with this number in its segment and of the next line, the lower first, so that no two
    /// writes wait for each other in a circle. They differ, since the lines are neighbours.
    pub(super) fn lock(&self, home: u64) -> Held<'_> {
        let [a, b] = [home, home + 1].map(|line| line as usize % STRIPES);
        Held([self.0[a.min(b)].lock(), self.0[a.max(b)].lock()])
    }
}
