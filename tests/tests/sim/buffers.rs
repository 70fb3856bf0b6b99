//! GETs of a player into registered memory.

use kv_client::{Client, Error, NotSubmitted, Outcome, Registered, Ticket, Value, ValueRef};

/// Memory that GETs read into.
pub(crate) struct Buffers {
    /// Not in use; also that of earlier connections.
    spare: Vec<Registered>,
    /// What each is for. Values may be larger.
    value_bytes: usize,
}

impl Buffers {
    pub(crate) fn new(value_bytes: usize) -> Buffers {
        Buffers { spare: Vec::new(), value_bytes }
    }

    fn take(&mut self, client: &mut Client) -> Result<Registered, Error> {
        self.spare.pop().map_or_else(|| client.register(self.value_bytes), Ok)
    }

    /// A GET into one of them.
    pub(crate) fn get(&mut self, client: &mut Client, key: &[u8]) -> Result<Option<Value>, Error> {
        let mut buffer = self.take(client)?;
        let found = client.get_into(key, &mut buffer).map(|found| found.map(owned));
        self.spare.push(buffer);
        found
    }

    /// The same, submitted.
    pub(crate) fn submit(&mut self, client: &mut Client, key: &[u8]) -> Result<Ticket, Error> {
        let buffer = self.take(client)?;
        client.submit_get_into(key, buffer).map_err(|NotSubmitted { error, buffer }| {
            self.spare.push(buffer);
            error
        })
    }

    /// An outcome as that of a GET without such memory, which can be used again.
    pub(crate) fn outcome(&mut self, outcome: Outcome) -> Outcome {
        let (buffer, result) = match outcome {
            Outcome::GetInto(buffer, result) => (buffer, result),
            outcome => return outcome,
        };
        let found = buffer.value().map(owned);
        self.spare.push(buffer);
        let said = result.as_ref().ok().copied().flatten();
        assert_eq!(found.as_ref().map(|value| value.version), said, "what is in memory after {result:?}");
        Outcome::Get(result.map(|_| found))
    }
}

fn owned(value: ValueRef<'_>) -> Value {
    Value { bytes: value.bytes.to_vec(), version: value.version }
}
