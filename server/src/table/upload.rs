//! Large values that come in parts: begun, filled part by part, and put at the end.
//!
//! Each session has at most one. Its run is the session's until it is published or given up: when another one is begun, a part
//! or the end is refused, or the session ends.

use std::sync::Arc;

use kv_common::hash::PayloadHasher;
use kv_common::layout::{Counter, Place, Span, is_large};
use kv_common::region::Words;
use kv_common::wire::{Condition, Malformed, Op, Refusal, Request, Value};

use super::draft::{Draft, Landing};
use super::put::{Outcome, Payload, block_bytes};
use super::staged::value_pieces;
use super::{Table, Worker};
use crate::dispatch::Ack;

/// A value that is coming.
pub(super) struct Upload {
    key: Vec<u8>,
    ttl_ns: Option<u64>,
    /// What it takes of the region.
    block: (Span, Place),
    filled: Filled,
}

/// How far it is.
enum Filled {
    /// Parts are awaited.
    Coming(Draft),
    /// All have come, and its end was tried: there was no room in the index.
    Whole(Payload),
}

/// The run of an upload that was given up. Its pages are free once this is dropped: not before nobody stores to them any more.
pub struct AbandonedRun {
    table: Arc<Table>,
    block: (Span, Place),
}

impl Drop for AbandonedRun {
    fn drop(&mut self) {
        let (slab, (span, place)) = (&self.table.slab, self.block);
        slab.give_back(span, place);
        slab.note_draft(-1);
    }
}

impl Worker {
    /// Begins to put a value of `value_bytes` under `key`, to live for `ttl_ns` from its end on.
    pub(crate) fn begin_upload(
        &mut self,
        session: u64,
        key: &[u8],
        value_bytes: u64,
        ttl_ns: Option<u64>,
    ) -> Result<(), Refusal> {
        drop(self.abandon(session));
        self.table.check_value_bytes(value_bytes)?;
        let value_bytes = value_bytes as usize;
        if !is_large(block_bytes(key.len() + value_bytes, ttl_ns.is_some())) {
            // It would be put whole; a client that does this knows another limit.
            return Err(Refusal::Malformed { reason: Malformed::Length });
        }
        let hash = self.table.view.hash(key);
        let draft = self.with_room(hash, |worker, left| {
            let draft = Draft::begin(&worker.table, key, value_bytes, ttl_ns.is_some(), left)?;
            // Kept for the upload.
            left.draft = None;
            Ok(draft)
        })?;
        self.table.slab.note_draft(1);
        let (key, block) = (key.to_vec(), draft.block());
        self.uploads.insert(session, Upload { key, ttl_ns, block, filled: Filled::Coming(draft) });
        self.count(Counter::Uploads);
        Ok(())
    }

    /// Where the bytes of a part are to go, for a link whose device can store them there. Then they are stored, all of them,
    /// before the part is served, or else the session ends.
    pub(crate) fn landing(&mut self, session: u64, request: &Request<'_>) -> Option<Landing> {
        let (Op::PutPart, Value::Staged { len_bytes, .. }) = (request.op, request.value) else { return None };
        match &mut self.uploads.get_mut(&session).filter(|_| request.session == session)?.filled {
            Filled::Coming(draft) => draft.begin_landing(&self.table.region, len_bytes as usize),
            Filled::Whole(_) => None,
        }
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
            Err(_) => drop(self.give_up(upload)),
        }
        taken
    }

    fn take_part(
        &mut self,
        upload: &mut Upload,
        part: Value<'_>,
        staging: Option<&Words>,
    ) -> Result<(), Refusal> {
        let Filled::Coming(draft) = &mut upload.filled else { return Err(Refusal::NoUpload) };
        let (announced, missing) = draft.value_bytes();
        let part_bytes = part.len_bytes();
        if part_bytes > missing {
            let found_bytes = (announced - missing + part_bytes) as u64;
            return Err(Refusal::UploadLength { announced_bytes: announced as u64, found_bytes });
        }
        let region = &self.table.region;
        match part {
            Value::Staged { hash, .. } if draft.has_landed(part_bytes) => {
                let mut hasher = PayloadHasher::new();
                draft.take_landed(region, part_bytes, &mut self.staged, |piece| hasher.update(piece));
                let found = hasher.finish();
                if found == hash { Ok(()) } else { Err(Refusal::StagedChanged { found }) }
            }
            _ => value_pieces(part, staging, &mut self.staged, |piece| draft.write(region, piece)),
        }
    }

    /// Puts the value that has come, if the condition holds. If there is no room for its slot, this can be tried again, until
    /// the upload is abandoned, which is the caller's to do when it answers a refusal.
    pub(crate) fn end_upload(
        &mut self,
        session: u64,
        key: &[u8],
        condition: Condition,
        ack: &mut Ack<'_>,
    ) -> Result<Outcome, Refusal> {
        let upload = self.uploads.get(&session).ok_or(Refusal::NoUpload)?;
        let (announced, missing) = match &upload.filled {
            Filled::Coming(draft) => draft.value_bytes(),
            Filled::Whole(_) => (0, 0),
        };
        let fault = if upload.key != key {
            Some(Refusal::UploadKey)
        } else if missing > 0 {
            let (announced_bytes, found_bytes) = (announced as u64, (announced - missing) as u64);
            Some(Refusal::UploadLength { announced_bytes, found_bytes })
        } else {
            None
        };
        if let Some(refusal) = fault {
            return Err(refusal);
        }
        let Upload { ttl_ns, block, filled, .. } = self.uploads.remove(&session).expect("just seen");
        let payload = match filled {
            Filled::Whole(payload) => payload,
            Filled::Coming(draft) => {
                let expires_ns = ttl_ns.map(|ttl_ns| self.table.expires_in(ttl_ns));
                draft.finish(&self.table.region, expires_ns)
            }
        };
        let hash = self.table.view.hash(key);
        let outcome = self.with_room(hash, |worker, left| {
            left.draft = Some(block);
            let outcome = worker.write(key, hash, &payload, condition, left, ack);
            if outcome.is_err() {
                // Kept for the next time.
                left.draft = None;
            }
            outcome
        });
        if outcome.is_err() {
            let upload = Upload { key: key.to_vec(), ttl_ns, block, filled: Filled::Whole(payload) };
            self.uploads.insert(session, upload);
        } else {
            self.table.slab.note_draft(-1);
        }
        outcome
    }

    /// Gives up what a session has begun and not ended; also when the session is over.
    pub fn abandon(&mut self, session: u64) -> Option<AbandonedRun> {
        let upload = self.uploads.remove(&session)?;
        Some(self.give_up(upload))
    }

    /// The same of all sessions. None of them has a link any more.
    pub(super) fn abandon_all(&mut self) {
        for (_, upload) in std::mem::take(&mut self.uploads) {
            drop(self.give_up(upload));
        }
    }

    fn give_up(&self, upload: Upload) -> AbandonedRun {
        self.counters.add(Counter::UploadsAbandoned, 1);
        AbandonedRun { table: Arc::clone(&self.table), block: upload.block }
    }
}
