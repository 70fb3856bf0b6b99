//! Large values that come in parts: begun, filled part by part, and put at the end.
//!
//! Each session has at most one. Its run is the session's until it is published or given up: when another one is begun, a part
//! or the end is refused, or the session ends.

use kv_common::layout::{BLOCK_HEADER_BYTES, Counter, is_large};
use kv_common::region::Words;
use kv_common::wire::{Condition, Malformed, Refusal, Value};

use super::Worker;
use super::draft::Draft;
use super::put::{Left, Outcome};
use super::staged::value_pieces;
use crate::dispatch::Ack;

/// A value that is coming.
pub(super) struct Upload {
    key: Vec<u8>,
    draft: Draft,
}

impl Worker {
    /// Begins to put a value of `value_bytes` under `key`.
    pub(crate) fn begin_upload(&mut self, session: u64, key: &[u8], value_bytes: u64) -> Result<(), Refusal> {
        self.abandon(session);
        self.table.check_value_bytes(value_bytes)?;
        let value_bytes = value_bytes as usize;
        if !is_large(BLOCK_HEADER_BYTES + key.len() + value_bytes) {
            // It would be put whole; a client that does this knows another limit.
            return Err(Refusal::Malformed { reason: Malformed::Length });
        }
        let draft = self.with_blocks(|worker, left| {
            let draft = Draft::begin(&worker.table, key, value_bytes, left)?;
            // Kept for the upload.
            left.draft = None;
            Ok(draft)
        })?;
        self.table.slab.note_draft(1);
        self.uploads.insert(session, Upload { key: key.to_vec(), draft });
        self.count(Counter::Uploads);
        Ok(())
    }

    /// Takes the next part. If it is refused, the upload is over.
    pub(crate) fn upload_part(
        &mut self,
        session: u64,
        part: Value<'_>,
        staging: Option<&Words>,
    ) -> Result<(), Refusal> {
        let mut upload = self.uploads.remove(&session).ok_or(Refusal::NoUpload)?;
        let taken = self.take_part(&mut upload, part, staging);
        match taken {
            Ok(()) => drop(self.uploads.insert(session, upload)),
            Err(_) => self.give_up(upload),
        }
        taken
    }

    fn take_part(
        &mut self,
        upload: &mut Upload,
        part: Value<'_>,
        staging: Option<&Words>,
    ) -> Result<(), Refusal> {
        let (announced, missing) = upload.draft.value_bytes();
        let part_bytes = part.len_bytes();
        if part_bytes > missing {
            let found_bytes = (announced - missing + part_bytes) as u64;
            return Err(Refusal::UploadLength { announced_bytes: announced as u64, found_bytes });
        }
        let region = &self.table.region;
        value_pieces(part, staging, &mut self.staged, |piece| upload.draft.write(region, piece))
    }

    /// Puts the value that has come, if the condition holds.
    pub(crate) fn end_upload(
        &mut self,
        session: u64,
        key: &[u8],
        condition: Condition,
        ack: &mut Ack<'_>,
    ) -> Result<Outcome, Refusal> {
        let upload = self.uploads.get(&session).ok_or(Refusal::NoUpload)?;
        let (announced, missing) = upload.draft.value_bytes();
        let fault = if upload.key != key {
            Some(Refusal::UploadKey)
        } else if missing > 0 {
            let (announced_bytes, found_bytes) = (announced as u64, (announced - missing) as u64);
            Some(Refusal::UploadLength { announced_bytes, found_bytes })
        } else {
            None
        };
        if let Some(refusal) = fault {
            self.abandon(session);
            return Err(refusal);
        }
        let Upload { key, draft } = self.uploads.remove(&session).expect("just seen");
        self.table.slab.note_draft(-1);
        let mut left = Left { draft: Some(draft.block()), retired: None };
        let payload = draft.finish(&self.table.region);
        let outcome = self.write(&key, &payload, condition, &mut left, ack);
        self.clean_up(left);
        outcome
    }

    /// Gives up what a session has begun and not ended.
    pub(crate) fn abandon(&mut self, session: u64) {
        if let Some(upload) = self.uploads.remove(&session) {
            self.give_up(upload);
        }
    }

    /// The same of all sessions.
    pub(super) fn abandon_all(&mut self) {
        for (_, upload) in std::mem::take(&mut self.uploads) {
            self.give_up(upload);
        }
    }

    fn give_up(&self, upload: Upload) {
        let (span, place) = upload.draft.block();
        self.table.slab.give_back(span, place);
        self.table.slab.note_draft(-1);
        self.counters.add(Counter::UploadsAbandoned, 1);
    }

    /// Tells that a session is over: what it has begun and not ended is given up.
    pub fn end_session(&mut self, session: u64) {
        self.abandon(session);
    }
}
