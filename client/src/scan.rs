//! Walks over all keys.

use crate::op::{Outcome, Walk, WalkPart};
use crate::{Client, Error};
use kv_common::transport::Broken;

/// Where a scan goes on. It means something to the server that gave it, as long as that runs, and can be kept for any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cursor(u64);

impl Cursor {
    /// The cursor that [`Cursor::to_u64`] was called on. Any number may come: one that is no cursor is at the end.
    pub fn from_u64(word: u64) -> Cursor {
        Cursor(word)
    }

    /// As a number; 0 is the begin.
    pub fn to_u64(self) -> u64 {
        self.0
    }
}

/// A part of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Keys, in no particular order; none perhaps, though more follow.
    pub keys: Vec<Vec<u8>>,
    /// Where the next part begins; `None` if this was the last.
    pub next: Option<Cursor>,
}

impl Client {
    /// The next keys of a scan that begins at `Cursor::default()` and goes on where the page before says: some 8 KiB of keys,
    /// or what there is in about a thousand homes of the index.
    ///
    /// A key that is there from the first page to the last is in at least one of them, also if the index grows meanwhile;
    /// it may be in several then. Of keys that come or go meanwhile nothing is said. Keys whose time is over are left out.
    /// The server looks for the keys; their values can be read by [`Client::multi_get`], without it.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Broken`], [`Error::Refused`] while the server ends.
    pub fn scan(&mut self, cursor: Cursor) -> Result<Page, Error> {
        let WalkPart { bytes, next } = self.walk_part(Walk::Scan, cursor)?;
        let mut keys = Vec::new();
        let mut rest = &bytes[..];
        while let Some((length, more)) = rest.split_first_chunk::<2>() {
            let Some((key, more)) = more.split_at_checked(u16::from_le_bytes(*length) as usize) else {
                break;
            };
            keys.push(key.to_vec());
            rest = more;
        }
        if !rest.is_empty() {
            return Err(broken("a page of keys that ends in the middle of one"));
        }
        Ok(Page { keys, next: (next != 0).then_some(Cursor(next)) })
    }

    /// Deletes all keys, part by part, and returns how many: at least those that are there from the begin of the call to its
    /// end. Keys that are written meanwhile may be deleted, or not. If it fails in the middle, part of the keys is gone.
    ///
    /// # Errors
    /// As [`Client::scan`].
    pub fn clear(&mut self) -> Result<u64, Error> {
        let (mut deleted, mut cursor) = (0, Cursor::default());
        loop {
            let WalkPart { bytes, next } = self.walk_part(Walk::Clear, cursor)?;
            let part = bytes.try_into().map_err(|_| broken("a number of deleted keys that is none"))?;
            deleted += u64::from_le_bytes(part);
            if next == 0 {
                return Ok(deleted);
            }
            cursor = Cursor(next);
        }
    }

    fn walk_part(&mut self, walk: Walk, cursor: Cursor) -> Result<WalkPart, Error> {
        self.check_fork()?;
        let ticket = self.live()?.submit_walk(walk, cursor.0)?;
        let Outcome::Walk(result) = self.driver.wait_for(ticket) else {
            unreachable!("a part of a walk ends as one")
        };
        result
    }
}

fn broken(what: &str) -> Error {
    Error::Broken(Broken::Protocol { what: what.to_owned() })
}
