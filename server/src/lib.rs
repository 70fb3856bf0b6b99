//! The server: the only writer of the region, and the answer of last resort for readers.

pub mod dispatch;
pub mod table;
