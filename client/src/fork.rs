//! Tells a forked child from the process that made the client.
//!
//! A page that the kernel wipes in the child: looking costs one load, where asking for the process id costs a system
//! call per operation.

use memmap2::{Advice, MmapMut};

pub(crate) struct ForkGuard(MmapMut);

impl ForkGuard {
    pub(crate) fn new() -> std::io::Result<ForkGuard> {
        let mut page = MmapMut::map_anon(1)?;
        page.advise(Advice::WipeOnFork)?;
        page[0] = 1;
        Ok(ForkGuard(page))
    }

    /// True in a child of the process that made this.
    #[inline]
    pub(crate) fn is_child(&self) -> bool {
        self.0[0] == 0
    }
}
