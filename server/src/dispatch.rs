//! From the bytes of a request to the bytes of its replies.

use kv_common::adversary::{Mutant, mutant};
use kv_common::counter::CounterText;
use kv_common::layout::Counter;
use kv_common::limits::REPLY_CHUNK_BYTES;
use kv_common::region::Words;
use kv_common::wire::{Condition, Malformed, Op, Refusal, Reply, Request, Status};

use crate::table::{Change, Outcome, Value, Worker, Written, value_bytes};

/// Where replies go, one message per call.
type Sink<'a> = &'a mut dyn FnMut(&Reply<'_>);

impl Worker {
    /// Serves one request message of `session` and hands its replies to `sink`: one, or several in order for a value
    /// larger than `limits::REPLY_CHUNK_BYTES`, of which an answer has at most `limits::ANSWER_MAX_BYTES`. `staging` is the memory that this client lends to the server.
    ///
    /// Any bytes may come: what is no request is refused, under sequence number 0 if it has none.
    pub fn handle(&mut self, session: u64, message: &[u8], staging: Option<&Words>, sink: Sink<'_>) {
        self.count(Counter::Requests);
        let served = match Request::decode(message) {
            Err((seq, refusal)) => Err((seq.unwrap_or(0), refusal)),
            Ok(request) if request.session != session => {
                Err((request.seq, Refusal::Malformed { reason: Malformed::Session }))
            }
            Ok(request) => self.serve(&request, staging, sink).map_err(|refusal| (request.seq, refusal)),
        };
        if let Err((seq, refusal)) = served {
            self.count(Counter::Refused);
            sink(&Reply::new(seq, Status::Refused(refusal), 0));
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
        match request.op {
            Op::Ping => (ack.sink)(&Reply::new(seq, Status::Done, 0)),
            Op::Get => {
                self.count(Counter::GetsByServer);
                let from_bytes = operand(request).unwrap_or(0);
                reply_value(seq, self.get(request.key, from_bytes), ack.sink);
            }
            Op::PutBegin => {
                let value_bytes = operand(request).expect("the message was decoded");
                self.begin_upload(request.session, request.key, value_bytes)?;
                (ack.sink)(&Reply::new(seq, Status::Done, 0));
            }
            Op::PutPart => {
                self.upload_part(request.session, request.value, staging)?;
                (ack.sink)(&Reply::new(seq, Status::Done, 0));
            }
            _ => {
                let outcome = self.write_request(request, staging, &mut ack)?;
                self.count_condition(request.condition, &outcome);
                ack.after_stores(&outcome);
            }
        }
        Ok(())
    }

    fn write_request(
        &mut self,
        request: &Request<'_>,
        staging: Option<&Words>,
        ack: &mut Ack<'_>,
    ) -> Result<Outcome, Refusal> {
        let Request { op, key, condition, .. } = *request;
        if op == Op::Delete {
            return Ok(self.delete(key, condition, ack));
        }
        if op == Op::PutEnd {
            self.count(Counter::Puts);
            return self.end_upload(request.session, key, condition, ack);
        }
        let mut scratch = std::mem::take(&mut self.staged);
        let outcome = value_bytes(request.value, staging, &mut scratch).and_then(|value| {
            let (counter, change) = match op {
                Op::Add => {
                    let delta = i64::from_le_bytes(value.try_into().expect("the message was decoded"));
                    (Counter::Adds, Change::Add(delta))
                }
                Op::Append => (Counter::Appends, Change::Append(value)),
                _ => {
                    self.count(Counter::Puts);
                    return self.put(key, value, condition, ack);
                }
            };
            self.count(counter);
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
    let kv_common::wire::Value::Inline(bytes) = request.value else { return None };
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
