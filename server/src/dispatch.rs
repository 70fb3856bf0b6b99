//! From the bytes of a request to the bytes of its replies.

use kv_common::adversary::{Mutant, mutant};
use kv_common::counter::CounterText;
use kv_common::layout::Counter;
use kv_common::limits::REPLY_CHUNK_BYTES;
use kv_common::region::Words;
use kv_common::wire::{self, Condition, Malformed, Op, Refusal, Reply, Request, Status};

use crate::table::{Change, Outcome, Value, Waiting, Worker, Written, value_bytes};

/// Where replies go, one message per call.
type Sink<'a> = &'a mut dyn FnMut(&Reply<'_>);

impl Worker {
    /// Serves one request message of `session` and hands its replies to `sink`: one, or several in order for a value
    /// larger than `limits::REPLY_CHUNK_BYTES`, of which an answer has at most `limits::ANSWER_MAX_BYTES`. `staging` is the
    /// memory that this client lends to the server.
    ///
    /// Any bytes may come: what is no request is refused, under sequence number 0 if it has none.
    pub fn handle(&mut self, session: u64, message: &[u8], staging: Option<&Words>, sink: Sink<'_>) {
        self.serve_message(session, message, staging, None, sink);
    }

    /// The same, of a caller who can come back with a request that needs room that is being made: then it is false, and
    /// nothing was done or answered. `waiting` is that request's, from the first time to the last.
    pub fn handle_or_wait(
        &mut self,
        session: u64,
        message: &[u8],
        staging: Option<&Words>,
        waiting: &mut Waiting,
        sink: Sink<'_>,
    ) -> bool {
        self.serve_message(session, message, staging, Some(waiting), sink)
    }

    fn serve_message(
        &mut self,
        session: u64,
        message: &[u8],
        staging: Option<&Words>,
        mut waiting: Option<&mut Waiting>,
        sink: Sink<'_>,
    ) -> bool {
        let decoded = Request::decode(message).map_err(|(seq, refusal)| (seq.unwrap_or(0), refusal));
        let request = decoded.and_then(|request| match request.session == session {
            true => Ok(request),
            false => Err((request.seq, Refusal::Malformed { reason: Malformed::Session })),
        });
        let served = match &request {
            Ok(request) => self.serve(request, staging, sink).map_err(|refusal| (request.seq, refusal)),
            Err(refused) => Err(*refused),
        };
        if let (Err((_, refusal)), Some(waiting)) = (&served, &mut waiting)
            && self.is_worth_waiting(*refusal, waiting)
        {
            return false;
        }
        if let Some(waiting) = waiting {
            self.end_wait(waiting);
        }
        let Err((seq, refusal)) = served else { return true };
        let op = request.ok().map(|request| request.op);
        if op == Some(Op::PutEnd) {
            drop(self.abandon(session));
        }
        self.count_request(op);
        self.count(Counter::Refused);
        sink(&Reply::new(seq, Status::Refused(refusal), 0));
        true
    }

    /// Counts a message, right before it is answered: one that waits for room is tried more than once.
    fn count_request(&self, op: Option<Op>) {
        self.count(Counter::Requests);
        match op {
            Some(Op::Get) => self.count(Counter::GetsByServer),
            Some(Op::Put | Op::PutEnd) => self.count(Counter::Puts),
            Some(Op::Add) => self.count(Counter::Adds),
            Some(Op::Append) => self.count(Counter::Appends),
            Some(Op::Touch | Op::GetAndTouch) => self.count(Counter::Touches),
            _ => {}
        }
    }

    fn serve(
        &mut self,
        request: &Request<'_>,
        staging: Option<&Words>,
        sink: Sink<'_>,
    ) -> Result<(), Refusal> {
        let seq = request.seq;
        let mut ack = Ack { seq, sink, is_sent: false, made_bytes: 0, made_text: None };
        if !request.op.is_write() {
            self.count_request(Some(request.op));
        }
        match request.op {
            Op::Ping => (ack.sink)(&Reply::new(seq, Status::Done, 0)),
            Op::Scan | Op::Clear => self.serve_part(request, ack.sink),
            Op::Get => reply_value(seq, self.get(request.key, operand(request).unwrap_or(0)), ack.sink),
            Op::PutBegin => {
                let value_bytes = operand(request).expect("the message was decoded");
                self.begin_upload(request.session, request.key, value_bytes, request.ttl_ns)?;
                self.count_request(Some(request.op));
                (ack.sink)(&Reply::new(seq, Status::Done, 0));
            }
            Op::PutPart => {
                self.upload_part(request.session, request.value, staging)?;
                self.count_request(Some(request.op));
                (ack.sink)(&Reply::new(seq, Status::Done, 0));
            }
            Op::Ttl => {
                let found = self.ttl(request.key);
                let left = found.and_then(|(_, left_ns)| left_ns).map(u64::to_le_bytes);
                let chunk = left.as_ref().map_or(&[][..], |left| left);
                let status = if found.is_some() { Status::Done } else { Status::NotFound };
                let reply = Reply::new(seq, status, found.map_or(0, |(version, _)| version));
                (ack.sink)(&Reply { total_bytes: chunk.len() as u32, chunk, ..reply });
            }
            Op::Hits => {
                // Decoding lets only inline ones through.
                if let wire::Value::Inline(places) = request.value {
                    self.note_hits(places);
                }
                (ack.sink)(&Reply::new(seq, Status::Done, 0));
            }
            _ => {
                let outcome = self.write_request(request, staging, &mut ack)?;
                self.count_request(Some(request.op));
                self.count_condition(request.condition, &outcome);
                match outcome {
                    Outcome::Written(Written { version, .. }) if request.op == Op::GetAndTouch => {
                        reply_value(seq, Some(self.touched_value(version)), ack.sink);
                    }
                    _ => ack.after_stores(&outcome),
                }
            }
        }
        Ok(())
    }

    /// A part of a walk over all keys.
    fn serve_part(&mut self, request: &Request<'_>, sink: Sink<'_>) {
        let cursor = operand(request).expect("the message was decoded");
        if request.op == Op::Scan {
            let mut keys = Vec::new();
            let next = self.scan(cursor, &mut keys);
            let part = Value { version: next, total_bytes: keys.len(), bytes: &keys };
            return reply_value(request.seq, Some(part), sink);
        }
        let (deleted, next) = self.clear(cursor);
        let bytes = &deleted.to_le_bytes();
        let part = Value { version: next, total_bytes: bytes.len(), bytes };
        reply_value(request.seq, Some(part), sink);
    }

    fn write_request(
        &mut self,
        request: &Request<'_>,
        staging: Option<&Words>,
        ack: &mut Ack<'_>,
    ) -> Result<Outcome, Refusal> {
        let Request { op, key, condition, ttl_ns, .. } = *request;
        if op == Op::Delete {
            return Ok(self.delete(key, condition, ack));
        }
        if op == Op::PutEnd {
            return self.end_upload(request.session, key, condition, ack);
        }
        let mut scratch = std::mem::take(&mut self.staged);
        let outcome = value_bytes(request.value, staging, &mut scratch).and_then(|value| {
            let change = match op {
                Op::Add => {
                    let delta = i64::from_le_bytes(value.try_into().expect("the message was decoded"));
                    Change::Add(delta)
                }
                Op::Append => Change::Append(value),
                Op::Touch | Op::GetAndTouch => Change::Touch(ttl_ns),
                _ => return self.put(key, value, ttl_ns, condition, ack),
            };
            self.modify(key, change, condition, ack)
        });
        self.staged = scratch;
        outcome
    }

    fn count_condition(&self, condition: Condition, outcome: &Outcome) {
        if condition != Condition::Always {
            self.count(Counter::ConditionalWrites);
            if !matches!(outcome, Outcome::Written(_)) {
                self.count(Counter::ConditionsUnmet);
            }
        }
    }
}

/// The number that is the value of a request, if it has one.
fn operand(request: &Request<'_>) -> Option<u64> {
    let wire::Value::Inline(bytes) = request.value else { return None };
    bytes.try_into().ok().map(u64::from_le_bytes)
}

/// The one reply to a write.
pub(crate) struct Ack<'a> {
    seq: u64,
    sink: Sink<'a>,
    is_sent: bool,
    /// Bytes of the value that an add or append has made, and the text of a counter.
    made_bytes: usize,
    made_text: Option<CounterText>,
}

impl Ack<'_> {
    /// Notes what the new value is, of a write whose client cannot know it.
    pub(crate) fn has_made(&mut self, value_bytes: usize, text: Option<CounterText>) {
        (self.made_bytes, self.made_text) = (value_bytes, text);
    }

    /// Called when a write is certain and before its first store: the deliberate fault of a too early reply.
    pub(crate) fn before_stores(&mut self, written: &Written) {
        if mutant(Mutant::AckBeforeStore) {
            self.after_stores(&Outcome::Written(*written));
        }
    }

    /// Replies, once.
    fn after_stores(&mut self, outcome: &Outcome) {
        if std::mem::replace(&mut self.is_sent, true) {
            return;
        }
        (self.sink)(&match outcome {
            Outcome::Written(Written { version, hint }) => Reply {
                hint: Some(*hint),
                total_bytes: self.made_bytes as u32,
                chunk: self.made_text.as_ref().map_or(&[], CounterText::as_bytes),
                ..Reply::new(self.seq, Status::Done, *version)
            },
            Outcome::NotFound => Reply::new(self.seq, Status::NotFound, 0),
            Outcome::Unmet(version) => Reply::new(self.seq, Status::Unmet, *version),
        });
    }
}

/// A value, or a part of it, in as many messages as it takes; an empty one takes one too.
fn reply_value(seq: u64, value: Option<Value<'_>>, sink: Sink<'_>) {
    let Some(Value { version, total_bytes, bytes }) = value else {
        return sink(&Reply::new(seq, Status::NotFound, 0));
    };
    let mut start = 0;
    loop {
        let end = bytes.len().min(start + REPLY_CHUNK_BYTES);
        sink(&Reply {
            total_bytes: total_bytes as u32,
            has_more: end < bytes.len(),
            chunk: &bytes[start..end],
            ..Reply::new(seq, Status::Done, version)
        });
        start = end;
        if start == bytes.len() {
            return;
        }
    }
}
