//! Requests to the server and their replies.

use std::borrow::Cow;

use kv_common::hash::payload_hash;
use kv_common::layout::{LINE_WORDS, LineNumber};
use kv_common::limits::INLINE_VALUE_MAX_BYTES;
use kv_common::region::{Words, bytes_of_mut};
use kv_common::transport::{Broken, SendError, Transport};
use kv_common::wire::{self, Op as WireOp, Reply, Request, Status};

use super::Driver;
use crate::error::Error;
use crate::op::{CasOutcome, GetState, Kind, Op, Outcome, SendState, Write};

/// A request that was sent and not answered to the end.
#[derive(Debug)]
pub(super) struct InFlight {
    seq: u64,
    /// The operation that waits for it; none if that has ended by its deadline.
    pub(super) op: Option<usize>,
    /// Its value lies in the staging area, which stays lent until the answer.
    is_staged: bool,
}

impl<T: Transport> Driver<T> {
    /// Sends what waits, in order, as far as credit, room and staging area allow.
    pub(super) fn send_queued(&mut self) {
        while let Some(&key) = self.unsent.front() {
            if self.in_flight.len() >= self.requests_in_flight_max {
                return;
            }
            let Some(value) = wire_value(&self.ops[key], self.is_staging_lent) else { return };
            let is_staged = matches!(value, wire::Value::Staged { .. });
            if is_staged {
                let len_words = stage(self.transport.staging(), value_bytes(&self.ops[key]));
                match self.transport.stage(0, len_words) {
                    Ok(()) => {}
                    Err(SendError::Full) => return,
                    Err(SendError::Broken(broken)) => return self.fail_all(broken),
                }
            }
            let op = &self.ops[key];
            let (wire_op, operand) = wire_op(op);
            let request = Request {
                seq: self.next_seq,
                session: self.session,
                op: wire_op,
                operand,
                key: &op.key,
                value,
            };
            match self.transport.send(&request.parts(&request.header())) {
                Ok(()) => {}
                Err(SendError::Full) => return,
                Err(SendError::Broken(broken)) => return self.fail_all(broken),
            }
            self.in_flight.push_back(InFlight { seq: self.next_seq, op: Some(key), is_staged });
            self.next_seq += 1;
            self.is_staging_lent |= is_staged;
            self.unsent.pop_front();
            mark_sent(&mut self.ops[key]);
        }
    }

    pub(super) fn on_message(&mut self, message: &[u8]) {
        let reply = match Reply::decode(message) {
            Ok(reply) => reply,
            Err(malformed) => {
                return self.fail_all(Broken::Protocol { what: format!("a malformed reply: {malformed}") });
            }
        };
        if let (0, Status::Refused(refusal)) = (reply.seq, reply.status) {
            // Not about one request: the server gives the session up and says why.
            return self.fail_all(Broken::Protocol { what: format!("it says: {refusal}") });
        }
        let Some(at) = self.in_flight.iter().position(|request| request.seq == reply.seq) else {
            let what = format!("a reply to request {}, which is not in flight", reply.seq);
            return self.fail_all(Broken::Protocol { what });
        };
        let op = self.in_flight[at].op;
        if !reply.has_more {
            let ended = self.in_flight.remove(at).expect("just found");
            self.is_staging_lent &= !ended.is_staged;
        }
        let is_in_region = |line: LineNumber| line.0 < (self.view.region_words / LINE_WORDS) as u64;
        if let Some(hint) = reply.hint.filter(|hint| is_in_region(hint.line)) {
            self.cache.follow(&hint);
        }
        if let Some(key) = op {
            self.on_reply(key, &reply);
        }
    }

    fn on_reply(&mut self, key: usize, reply: &Reply) {
        let op = &mut self.ops[key];
        let outcome = match &mut op.kind {
            Kind::Ping { .. } => match reply.status {
                Status::Done => Ok(Outcome::Ping(Ok(()))),
                status => Err(status),
            },
            Kind::Get { state: GetState::Asked { value, .. }, .. } => match reply.status {
                Status::Done => {
                    value.extend_from_slice(reply.chunk);
                    let is_whole = value.len() == reply.total_bytes as usize;
                    if is_whole == reply.has_more || (reply.has_more && reply.chunk.is_empty()) {
                        let what =
                            format!("{} bytes so far of a value of {}", value.len(), reply.total_bytes);
                        return self.fail_all(Broken::Protocol { what });
                    }
                    if reply.has_more {
                        return;
                    }
                    let bytes = std::mem::take(value);
                    Ok(op.found(Cow::Owned(bytes), reply.version))
                }
                Status::NotFound => Ok(op.absent()),
                status => Err(status),
            },
            Kind::Get { .. } => Err(reply.status),
            Kind::Write { write: Write::Put(_), .. } => match reply.status {
                Status::Done => Ok(Outcome::Put(Ok(reply.version))),
                status => Err(status),
            },
            Kind::Write { write: Write::Delete, .. } => match reply.status {
                Status::Done => Ok(Outcome::Delete(Ok(true))),
                Status::NotFound => Ok(Outcome::Delete(Ok(false))),
                status => Err(status),
            },
            Kind::Write { write: Write::CompareAndSet { .. }, .. } => {
                let done = |outcome| Ok(Outcome::CompareAndSet(Ok(outcome)));
                match reply.status {
                    Status::Done => done(CasOutcome::Stored(reply.version)),
                    Status::VersionMismatch => done(CasOutcome::Mismatch(reply.version)),
                    Status::NotFound => done(CasOutcome::NotFound),
                    status => Err(status),
                }
            }
        };
        match outcome {
            Ok(outcome) => self.end(key, outcome),
            Err(Status::Refused(refusal)) => self.end_with_error(key, Error::Refused(refusal)),
            Err(status) => {
                let what = format!("the answer {status:?} to a request that cannot have it");
                self.fail_all(Broken::Protocol { what });
            }
        }
    }
}

fn wire_op(op: &Op) -> (WireOp, u64) {
    match &op.kind {
        Kind::Get { .. } => (WireOp::Get, 0),
        Kind::Ping { .. } => (WireOp::Ping, 0),
        Kind::Write { write: Write::Put(_), .. } => (WireOp::Put, 0),
        Kind::Write { write: Write::Delete, .. } => (WireOp::Delete, 0),
        Kind::Write { write: Write::CompareAndSet { expected, .. }, .. } => {
            (WireOp::CompareAndSet, *expected)
        }
    }
}

fn value_bytes(op: &Op) -> &[u8] {
    match &op.kind {
        Kind::Write { write: Write::Put(value) | Write::CompareAndSet { value, .. }, .. } => value,
        _ => &[],
    }
}

/// How the value travels; `None` if it needs the staging area and that is lent.
fn wire_value(op: &Op, is_staging_lent: bool) -> Option<wire::Value<'_>> {
    let bytes = value_bytes(op);
    if bytes.len() <= INLINE_VALUE_MAX_BYTES {
        return Some(wire::Value::Inline(bytes));
    }
    (!is_staging_lent).then(|| wire::Value::Staged {
        offset_bytes: 0,
        len_bytes: bytes.len() as u32,
        hash: payload_hash(bytes),
    })
}

/// Copies a value to the start of the staging area, which nobody reads at the moment. Returns how many words it takes.
fn stage(staging: &Words, bytes: &[u8]) -> usize {
    let mut chunk = [0u64; 512];
    for (i, part) in bytes.chunks(size_of_val(&chunk)).enumerate() {
        let words = part.len().div_ceil(8);
        chunk[words - 1] = 0;
        bytes_of_mut(&mut chunk)[..part.len()].copy_from_slice(part);
        staging.copy_in(i * chunk.len(), &chunk[..words]);
    }
    bytes.len().div_ceil(8)
}

fn mark_sent(op: &mut Op) {
    match &mut op.kind {
        Kind::Get { state: GetState::Asked { state, .. }, .. }
        | Kind::Write { state, .. }
        | Kind::Ping { state } => *state = SendState::Sent,
        Kind::Get { .. } => unreachable!("a GET is sent only after it was asked"),
    }
}
