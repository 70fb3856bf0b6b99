//! What is set up around a seed and taken down behind it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kv_common::adversary::{Mutant, set_mutant, set_pause_hook, set_store_hook};

use crate::server::Memory;
use crate::tasks;

/// Plays with a deliberate fault, or none. A panic is an error like any other that is found.
pub(crate) fn perform<T>(
    memory: &Memory,
    mutant: Option<Mutant>,
    play: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    set_mutant(mutant);
    let result = catch_unwind(AssertUnwindSafe(play));
    set_mutant(None);
    set_store_hook(None);
    tasks::leave();
    set_pause_hook(None);
    memory.clear();
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("a panic: {}", text.unwrap_or("without text")))
    })
}
