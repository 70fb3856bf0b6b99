//! Requests to the server and their replies.

use std::borrow::Cow;
use std::time::Duration;

use kv_common::counter;
use kv_common::layout::{BLOCK_HEADER_BYTES, EXPIRY_BYTES, LINE_WORDS, LineNumber, is_large};
use kv_common::limits::INLINE_VALUE_MAX_BYTES;
use kv_common::transport::{Broken, SendError, Transport};
use kv_common::wire::{self, Condition, Op as WireOp, Reply, Request, Status};

use super::Driver;
use super::staging::{Halves, half_bytes};
use crate::error::Error;
use crate::get::Get;
use crate::op::{
    Answer, Appended, Change, Conditional, Count, GetState, Kind, Op, Outcome, SendState, TimeToLive, Upload,
    Value, Walk, WalkPart, Write,
};

/// A request that was sent and not answered to the end.
#[derive(Debug)]
pub(super) struct InFlight {
    seq: u64,
    /// The operation that waits for it; none if that has ended by its deadline.
    pub(super) op: Option<usize>,
    step: Step,
    /// What of the staging area stays lent until the answer.
    halves: Halves,
    /// It reports hits; nobody waits for it.
    is_report: bool,
}

impl InFlight {
    pub(super) fn report(seq: u64) -> InFlight {
        InFlight { seq, op: None, step: Step::Whole, halves: 0, is_report: true }
    }

    pub(super) fn is_report(&self) -> bool {
        self.is_report
    }
}

/// What a message is to its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// All of it.
    Whole,
    /// The beginning of an upload, a part of so many bytes, its end.
    Begin,
    Part {
        bytes: usize,
    },
    End,
}

impl<T: Transport> Driver<T> {
    /// Sends what waits, in order, as far as credit, room and staging area allow.
    pub(super) fn send_queued(&mut self) {
        while let Some(&key) = self.unsent.front() {
            if self.in_flight.len() >= self.requests_in_flight_max {
                return;
            }
            let step = self.next_step(key);
            match self.send_step(key, step) {
                Ok(()) => {}
                Err(SendError::Full) => return,
                Err(SendError::Broken(broken)) => return self.fail_all(broken),
            }
            let op = &mut self.ops[key];
            match (step, &mut op.kind) {
                (Step::Begin, Kind::Write { upload: Some(upload), .. }) => upload.is_begun = true,
                (Step::Part { bytes }, Kind::Write { upload: Some(upload), .. }) => {
                    upload.sent_bytes += bytes
                }
                _ => {
                    mark_sent(op);
                    self.unsent.pop_front();
                }
            }
        }
    }

    fn next_step(&self, key: usize) -> Step {
        let Kind::Write { upload: Some(upload), write, .. } = &self.ops[key].kind else { return Step::Whole };
        let left_bytes = write.value().len() - upload.sent_bytes;
        match upload.is_begun {
            false => Step::Begin,
            true if left_bytes == 0 => Step::End,
            true => Step::Part { bytes: left_bytes.min(self.half_bytes()) },
        }
    }

    /// Sends one message of an operation. Full also if it needs the staging area and that is lent.
    fn send_step(&mut self, key: usize, step: Step) -> Result<(), SendError> {
        let op = &self.ops[key];
        let number;
        let bytes = match (step, &op.kind) {
            (Step::Begin, _) => {
                number = (value_bytes(op).len() as u64).to_le_bytes();
                &number[..]
            }
            (Step::Part { bytes }, Kind::Write { upload: Some(upload), write, .. }) => {
                &write.value()[upload.sent_bytes..upload.sent_bytes + bytes]
            }
            (Step::End, _) => &[],
            (_, Kind::Get { state: GetState::Asked { answer, .. }, .. }) if !answer.value.is_empty() => {
                number = (answer.value.len() as u64).to_le_bytes();
                &number[..]
            }
            _ => value_bytes(op),
        };
        let (mut value, mut halves) = (wire::Value::Inline(bytes), 0);
        if bytes.len() > INLINE_VALUE_MAX_BYTES {
            let ready = self.staging.fill(self.transport.staging(), key, bytes).ok_or(SendError::Full)?;
            self.transport.stage(ready.at_word, ready.len_words())?;
            (value, halves) = (ready.value(), ready.halves);
        }
        let (wire_op, condition, ttl_ns) = wire_op(op, step);
        let name = if matches!(step, Step::Part { .. }) { &[] } else { &op.key[..] };
        let request =
            Request { condition, ttl_ns, ..Request::new(self.next_seq, self.session, wire_op, name, value) };
        self.transport.send(&request.parts(&request.header()))?;
        self.staging.sent();
        let (seq, op) = (self.next_seq, Some(key));
        self.in_flight.push_back(InFlight { seq, op, step, halves, is_report: false });
        self.next_seq += 1;
        Ok(())
    }

    /// How a put is sent: in parts, if its value is large and has no room in a half of the staging area.
    pub(super) fn upload_for(&self, key: &[u8], write: &Write) -> Option<Upload> {
        let Change::Put(value) = &write.change else { return None };
        let expiry_bytes = write.ttl_ns.map_or(0, |_| EXPIRY_BYTES);
        let block_bytes = BLOCK_HEADER_BYTES + key.len() + value.len() + expiry_bytes;
        let is_upload = is_large(block_bytes) && value.len() > self.half_bytes();
        is_upload.then(Upload::default)
    }

    /// What is appended is sent in one message.
    pub(super) fn check_append(&self, write: &Write) -> Result<(), Error> {
        let (found_bytes, limit_bytes) = (write.value().len(), self.transport.staging().len_words() * 8);
        if matches!(write.change, Change::Append(_)) && found_bytes > limit_bytes {
            return Err(Error::ValueTooLarge { found_bytes, limit_bytes });
        }
        Ok(())
    }

    fn half_bytes(&self) -> usize {
        half_bytes(self.transport.staging().len_words())
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
        let InFlight { op, step, halves, .. } = self.in_flight[at];
        if !reply.has_more {
            self.in_flight.remove(at);
            self.staging.give_back(halves);
        }
        let is_in_region = |line: LineNumber| line.0 < (self.view.region_words / LINE_WORDS) as u64;
        if let Some(hint) = reply.hint.filter(|hint| is_in_region(hint.line)) {
            self.cache.follow(&hint);
        }
        match (op, step) {
            (None, _) => {}
            (Some(key), Step::Whole | Step::End) => self.on_reply(key, &reply),
            (Some(key), Step::Begin | Step::Part { .. }) => self.on_step(key, &reply),
        }
    }

    /// The answer to the beginning or a part of an upload.
    fn on_step(&mut self, key: usize, reply: &Reply) {
        match reply.status {
            Status::Done => {
                let furthest = self.ops[key].furthest + 1;
                self.note_progress(key, furthest);
            }
            // Nothing of it was done, and what follows is refused, too.
            Status::Refused(refusal) => self.end_with_error(key, Error::Refused(refusal)),
            status => self.cannot_be(status),
        }
    }

    fn cannot_be(&mut self, status: Status) {
        let what = format!("the answer {status:?} to a request that cannot have it");
        self.fail_all(Broken::Protocol { what });
    }

    /// A part of the value that the server was asked for.
    fn on_answer(&mut self, key: usize, reply: &Reply) {
        let Kind::Get { state: GetState::Asked { answer, .. }, .. } = &mut self.ops[key].kind else {
            unreachable!("its GET has asked")
        };
        let total_bytes = reply.total_bytes as usize;
        if answer.value.is_empty() {
            answer.version = reply.version;
        }
        answer.is_outdated |= answer.version != reply.version;
        if !answer.is_outdated {
            answer.value.extend_from_slice(reply.chunk);
        }
        let (len_bytes, is_outdated) = (answer.value.len(), answer.is_outdated);
        let comes_to_nothing = reply.chunk.is_empty() && (reply.has_more || len_bytes < total_bytes);
        if !is_outdated && (len_bytes > total_bytes || comes_to_nothing) {
            let what = format!("{len_bytes} bytes so far of a value of {total_bytes}");
            return self.fail_all(Broken::Protocol { what });
        }
        self.note_progress(key, len_bytes as u64);
        if reply.has_more {
            return;
        }
        let Kind::Get { state: GetState::Asked { answer, state }, .. } = &mut self.ops[key].kind else {
            unreachable!("as before")
        };
        if !is_outdated && len_bytes == total_bytes {
            let bytes = std::mem::take(&mut answer.value);
            let outcome = self.ops[key].found(Cow::Owned(bytes), reply.version);
            return self.end(key, outcome);
        }
        // The next part, or all anew.
        if is_outdated {
            *answer = Answer::default();
        }
        *state = SendState::Queued;
        self.unsent.push_back(key);
    }

    /// The answer to a touch has ended with the beginning of a large value: the rest is got.
    fn get_rest(&mut self, key: usize, mut value: Vec<u8>, reply: &Reply) {
        value.extend_from_slice(reply.chunk);
        let furthest = value.len() as u64;
        let answer = Answer { value, version: reply.version, is_outdated: false };
        let state = GetState::Asked { state: SendState::Queued, answer };
        let op = &mut self.ops[key];
        let hash = op.hash;
        op.kind = Kind::Get { get: Get::new(hash), state, into: None };
        self.unsent.push_back(key);
        self.note_progress(key, furthest);
        self.resume_behind(hash);
    }

    fn on_reply(&mut self, key: usize, reply: &Reply) {
        let op = &mut self.ops[key];
        let outcome = match &mut op.kind {
            Kind::Ping { .. } => match reply.status {
                Status::Done => Ok(Outcome::Ping(Ok(()))),
                status => Err(status),
            },
            Kind::Get { state: GetState::Asked { .. }, .. } => match reply.status {
                Status::Done => return self.on_answer(key, reply),
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
                Status::Done if ends_early(value, reply) => {
                    let value = std::mem::take(value);
                    return self.get_rest(key, value, reply);
                }
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
            Err(status) => self.cannot_be(status),
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

/// Whether an answer ends with this reply before the value is whole of which this much came before.
fn ends_early(value: &[u8], reply: &Reply) -> bool {
    let len_bytes = value.len() + reply.chunk.len();
    !reply.has_more && len_bytes > 0 && len_bytes < reply.total_bytes as usize
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

fn wire_op(op: &Op, step: Step) -> (WireOp, Condition, Option<u64>) {
    let write = match &op.kind {
        Kind::Ttl { .. } => return (WireOp::Ttl, Condition::Always, None),
        Kind::Get { .. } => return (WireOp::Get, Condition::Always, None),
        Kind::Ping { .. } => return (WireOp::Ping, Condition::Always, None),
        Kind::Walk { walk: Walk::Scan, .. } => return (WireOp::Scan, Condition::Always, None),
        Kind::Walk { walk: Walk::Clear, .. } => return (WireOp::Clear, Condition::Always, None),
        Kind::Write { write, .. } => write,
    };
    let wire_op = match write.change {
        Change::Put(_) => match step {
            Step::Whole => WireOp::Put,
            Step::Begin => return (WireOp::PutBegin, Condition::Always, write.ttl_ns),
            Step::Part { .. } => return (WireOp::PutPart, Condition::Always, None),
            Step::End => return (WireOp::PutEnd, write.condition.unwrap_or_default(), None),
        },
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
