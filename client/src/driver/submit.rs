//! How operations begin.

use kv_common::hash::KeyHash;
use kv_common::limits::CLIENT_OPERATIONS_MAX;
use kv_common::transport::Transport;

use super::Driver;
use crate::error::Error;
use crate::get::Get;
use crate::op::{GetState, Kind, Op, SendState, Ticket, Walk, Write};
use crate::registered::Registered;

impl<T: Transport> Driver<T> {
    /// Starts an operation. Its completion may be there at once.
    pub(crate) fn submit_get(&mut self, key: &[u8]) -> Result<Ticket, Error> {
        let ticket = self.submit_get_of_many(key)?;
        self.flush_alone();
        Ok(ticket)
    }

    /// As `submit_get`, by a caller who submits more or waits at once.
    pub(crate) fn submit_get_of_many(&mut self, key: &[u8]) -> Result<Ticket, Error> {
        self.admit()?;
        Ok(self.new_get(key, None))
    }

    /// As `submit_get`, into memory of the user that was registered; the operation was admitted.
    pub(crate) fn start_get_into(&mut self, key: &[u8], buffer: Registered) -> Ticket {
        let ticket = self.new_get(key, Some(buffer));
        self.flush_alone();
        ticket
    }

    fn new_get(&mut self, key: &[u8], into: Option<Registered>) -> Ticket {
        let hash = self.view.hash(key);
        let index = self.insert(key, hash, Kind::Get { get: Get::new(hash), state: GetState::Reading, into });
        let ticket = self.ops[index].ticket;
        if self.is_behind_write(hash) {
            self.stats.waited_for_own_write += 1;
            self.set_get_state(index, GetState::BehindWrite);
        } else {
            self.start_get(index);
        }
        ticket
    }

    /// Hands over what was posted, unless others are in flight: whoever has many takes completions, and the turn that
    /// brings these hands over all READs that were posted meanwhile.
    fn flush_alone(&mut self) {
        if self.ops.len() <= 1 {
            self.transport.flush();
        }
    }

    /// Starts a GET that the server answers.
    pub(crate) fn submit_ask(&mut self, key: &[u8]) -> Result<Ticket, Error> {
        self.admit()?;
        Ok(self.ask_into(key, None))
    }

    /// The same of one that was admitted, with the memory of the user for its value, if it has any.
    pub(crate) fn ask_into(&mut self, key: &[u8], into: Option<Registered>) -> Ticket {
        let hash = self.view.hash(key);
        let index = self.insert(key, hash, Kind::Get { get: Get::new(hash), state: GetState::Reading, into });
        let ticket = self.ops[index].ticket;
        self.ask(index);
        self.transport.flush();
        ticket
    }

    /// Makes READs into memory of the user possible.
    pub(crate) fn register(&mut self, buffer: &mut Registered) -> Result<(), Error> {
        let bytes = buffer.room_bytes();
        let memory = buffer.memory()?;
        self.transport.register(memory).map_err(|reason| Error::NotRegistered { bytes, reason })
    }

    /// As `submit_get`.
    pub(crate) fn submit_write(&mut self, key: &[u8], write: Write) -> Result<Ticket, Error> {
        self.admit()?;
        self.check_append(&write)?;
        let upload = self.upload_for(key, &write);
        let kind = Kind::Write { write, state: SendState::Queued, upload };
        self.submit_request(key, self.view.hash(key), kind)
    }

    /// Starts an operation that is one request.
    fn submit_request(&mut self, key: &[u8], hash: KeyHash, kind: Kind) -> Result<Ticket, Error> {
        self.admit()?;
        let index = self.insert(key, hash, kind);
        self.unsent.push_back(index);
        let ticket = self.ops[index].ticket;
        self.send_queued();
        self.transport.flush();
        Ok(ticket)
    }

    /// As `submit_get`.
    pub(crate) fn submit_ttl(&mut self, key: &[u8]) -> Result<Ticket, Error> {
        self.submit_request(key, self.view.hash(key), Kind::Ttl { state: SendState::Queued })
    }

    /// As `submit_get`.
    pub(crate) fn submit_walk(&mut self, walk: Walk, cursor: u64) -> Result<Ticket, Error> {
        let (cursor, bytes, state) = (cursor.to_le_bytes(), Vec::new(), SendState::Queued);
        self.submit_request(b"", KeyHash(0), Kind::Walk { walk, cursor, bytes, state })
    }

    /// As `submit_get`.
    pub(crate) fn submit_ping(&mut self) -> Result<Ticket, Error> {
        self.submit_request(b"", KeyHash(0), Kind::Ping { state: SendState::Queued })
    }

    /// Whether one more operation may be started.
    pub(crate) fn admit(&self) -> Result<(), Error> {
        self.check_alive()?;
        if self.pending() >= CLIENT_OPERATIONS_MAX {
            return Err(Error::TooManyInFlight { limit: CLIENT_OPERATIONS_MAX });
        }
        Ok(())
    }

    /// Takes an operation that was admitted.
    fn insert(&mut self, key: &[u8], hash: KeyHash, kind: Kind) -> usize {
        let started_ns = self.transport.now_ns();
        let deadline_ns = started_ns.saturating_add(self.timeout_ns);
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.ops.insert(Op { ticket, key: key.to_vec(), hash, started_ns, deadline_ns, furthest: 0, kind })
    }
}
