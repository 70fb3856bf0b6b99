//! Tells a forked child from the process that made the client.
//!
//! A page that the kernel wipes in the child: looking costs one load, where asking for the process id costs a system
//! call per operation.
#![allow(unsafe_code)]

use memmap2::MmapMut;
use rustix::mm::{Advice, madvise};

pub(crate) struct ForkGuard(MmapMut);

impl ForkGuard {
    pub(crate) fn new() -> std::io::Result<ForkGuard> {
        let mut page = MmapMut::map_anon(1)?;
        // SAFETY: the page is a private anonymous mapping of its own, of at least one byte, that lives as long as this
        // guard; the advice changes nothing in this process.
        unsafe { madvise(page.as_mut_ptr().cast(), 1, Advice::LinuxWipeOnFork) }?;
        page[0] = 1;
        Ok(ForkGuard(page))
    }

    /// True in a child of the process that made this.
    #[inline]
    pub(crate) fn is_child(&self) -> bool {
        self.0[0] == 0
    }
}
