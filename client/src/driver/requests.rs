//! Requests to the server and their replies.

use std::borrow::Cow;
use std::time::Duration;

use kv_common::counter;
use kv_common::hash::payload_hash;
use kv_common::layout::{LINE_WORDS, LineNumber};
use kv_common::limits::INLINE_VALUE_MAX_BYTES;
use kv_common::region::{Words, bytes_of_mut};
use kv_common::transport::{Broken, SendError, Transport};
use kv_common::wire::{self, Condition, Op as WireOp, Reply, Request, Status};

use super::Driver;
use crate::error::Error;
use crate::op::{
    Appended, Change, Conditional, Count, GetState, Kind, Op, Outcome, SendState, TimeToLive, Value, Walk,
    WalkPart, Write,
};

/// A request that was sent and not answered to the end.
#[derive(Debug)]
pub(super) struct InFlight {
    seq: u64,
    /// The operation that waits for it; none if that has ended by its deadline.
    pub(super) op: Option<usize>,
    /// Its value lies in the staging area, which stays lent until the answer.
    is_staged: bool,
    /// It reports hits; nobody waits for it.
    is_report: bool,
}

impl InFlight {
    pub(super) fn report(seq: u64) -> InFlight {
        InFlight { seq, op: None, is_staged: false, is_report: true }
    }

    pub(super) fn is_report(&self) -> bool {
        self.is_report
    }
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
            let (wire_op, condition, ttl_ns) = wire_op(op);
            let request = Request {
                condition,
                ttl_ns,
                ..Request::new(self.next_seq, self.session, wire_op, &op.key, value)
            };
            match self.transport.send(&request.parts(&request.header())) {
                Ok(()) => {}
                Err(SendError::Full) => return,
                Err(SendError::Broken(broken)) => return self.fail_all(broken),
            }
            let (seq, op) = (self.next_seq, Some(key));
            self.in_flight.push_back(InFlight { seq, op, is_staged, is_report: false });
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
                Status::Done => match take_part(value, reply) {
                    Ok(None) => return,
                    Ok(Some(Value { bytes, version })) => Ok(op.found(Cow::Owned(bytes), version)),
                    Err(what) => return self.fail_all(Broken::Protocol { what }),
                },
                Status::NotFound => Ok(op.absent()),
                status => Err(status),
            },
            Kind::Get { .. } => Err(reply.status),
            Kind::Walk { bytes, .. } => match reply.status {
                Status::Done => match take_part(bytes, reply) {
                    Ok(None) => return,
                    Ok(Some(Value { bytes, version: next })) => {
                        Ok(Outcome::Walk(Ok(WalkPart { bytes, next })))
                    }
                    Err(what) => return self.fail_all(Broken::Protocol { what }),
                },
                status => Err(status),
            },
            Kind::Ttl { .. } => match (reply.status, reply.chunk.try_into()) {
                (Status::Done, Ok(left)) => {
                    let left = Duration::from_nanos(u64::from_le_bytes(left));
                    Ok(Outcome::Ttl(Ok(TimeToLive::Left(left))))
                }
                (Status::Done, Err(_)) if reply.chunk.is_empty() => Ok(Outcome::Ttl(Ok(TimeToLive::Forever))),
                (Status::NotFound, _) => Ok(Outcome::Ttl(Ok(TimeToLive::Absent))),
                (status, _) => Err(status),
            },
            Kind::Write { write: Write { change: Change::GetAndTouch(value), .. }, .. } => match reply.status
            {
                Status::Done => match take_part(value, reply) {
                    Ok(None) => return,
                    Ok(Some(value)) => Ok(Outcome::Get(Ok(Some(value)))),
                    Err(what) => return self.fail_all(Broken::Protocol { what }),
                },
                Status::NotFound => Ok(Outcome::Get(Ok(None))),
                status => Err(status),
            },
            Kind::Write { write, .. } => written(write, reply).ok_or(reply.status),
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

/// Takes the part of a value that came with a reply; the value once it is whole. The error says what is wrong.
fn take_part(value: &mut Vec<u8>, reply: &Reply) -> Result<Option<Value>, String> {
    value.extend_from_slice(reply.chunk);
    let is_whole = value.len() == reply.total_bytes as usize;
    if is_whole == reply.has_more || (reply.has_more && reply.chunk.is_empty()) {
        return Err(format!("{} bytes so far of a value of {}", value.len(), reply.total_bytes));
    }
    Ok(is_whole.then(|| Value { bytes: std::mem::take(value), version: reply.version }))
}

/// How a write ends with this reply; `None` if it cannot have such a one.
fn written(write: &Write, reply: &Reply) -> Option<Outcome> {
    if write.condition.is_none() && matches!(write.change, Change::Put(_) | Change::Delete) {
        return Some(match (&write.change, reply.status) {
            (Change::Put(_), Status::Done) => Outcome::Put(Ok(reply.version)),
            (Change::Delete, Status::Done) => Outcome::Delete(Ok(true)),
            (Change::Delete, Status::NotFound) => Outcome::Delete(Ok(false)),
            _ => return None,
        });
    }
    let made = reply.version;
    Some(match &write.change {
        Change::Put(_) | Change::Delete | Change::Touch => {
            Outcome::Conditional(Ok(conditional(write, reply, made)?))
        }
        Change::GetAndTouch(_) => return None,
        Change::Add(_) => {
            // Only the reply to an add that was done has a number.
            let value = if reply.status == Status::Done { counter::parse(reply.chunk)? } else { 0 };
            Outcome::Add(Ok(conditional(write, reply, Count { value, version: made })?))
        }
        Change::Append(_) => {
            let appended = Appended { value_bytes: reply.total_bytes as usize, version: made };
            Outcome::Append(Ok(conditional(write, reply, appended)?))
        }
    })
}

/// The same of a write with a condition, that has made this if it was done.
fn conditional<T>(write: &Write, reply: &Reply, made: T) -> Option<Conditional<T>> {
    let condition = write.condition.unwrap_or_default();
    let wants_presence = matches!(write.change, Change::Delete | Change::Touch);
    match reply.status {
        Status::Done => Some(Conditional::Done(made)),
        Status::Unmet if !condition.holds(Some(reply.version)) => Some(Conditional::Mismatch(reply.version)),
        Status::NotFound if wants_presence || !condition.holds(None) => Some(Conditional::NotFound),
        _ => None,
    }
}

fn wire_op(op: &Op) -> (WireOp, Condition, Option<u64>) {
    let write = match &op.kind {
        Kind::Ttl { .. } => return (WireOp::Ttl, Condition::Always, None),
        Kind::Get { .. } => return (WireOp::Get, Condition::Always, None),
        Kind::Ping { .. } => return (WireOp::Ping, Condition::Always, None),
        Kind::Walk { walk: Walk::Scan, .. } => return (WireOp::Scan, Condition::Always, None),
        Kind::Walk { walk: Walk::Clear, .. } => return (WireOp::Clear, Condition::Always, None),
        Kind::Write { write, .. } => write,
    };
    let wire_op = match write.change {
        Change::Put(_) => WireOp::Put,
        Change::Delete => WireOp::Delete,
        Change::Add(_) => WireOp::Add,
        Change::Append(_) => WireOp::Append,
        Change::Touch => WireOp::Touch,
        Change::GetAndTouch(_) => WireOp::GetAndTouch,
    };
    (wire_op, write.condition.unwrap_or_default(), write.ttl_ns)
}

fn value_bytes(op: &Op) -> &[u8] {
    match &op.kind {
        Kind::Write { write, .. } => write.value(),
        Kind::Walk { cursor, .. } => cursor,
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
        | Kind::Ttl { state }
        | Kind::Walk { state, .. }
        | Kind::Ping { state } => *state = SendState::Sent,
        Kind::Get { .. } => unreachable!("a GET is sent only after it was asked"),
    }
}
