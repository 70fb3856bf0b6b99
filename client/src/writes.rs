//! Writes: each is a request to the server.

use std::time::Duration;

use crate::op::{
    Appended, Change, Condition, Conditional, Count, Outcome, PutOptions, Ticket, TimeToLive, Value, Version,
    Write,
};
use crate::{Client, Error};

impl Client {
    /// Stores `value` under `key`, whether it was there or not, and returns the new version. An empty value is a
    /// value. It has no end, whatever time to live the one before had.
    ///
    /// # Errors
    /// [`Error::KeyEmpty`], [`Error::KeyTooLong`], [`Error::ValueTooLarge`], [`Error::Refused`] (region or index full:
    /// nothing was changed), [`Error::OutcomeUnknown`], [`Error::Timeout`] (not sent), [`Error::Broken`] (not sent).
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Version, Error> {
        let ticket = self.submit_put(key, value)?;
        let Outcome::Put(result) = self.driver.wait_for(ticket) else { unreachable!("a PUT ends as a PUT") };
        result
    }

    /// Stores `value` under `key` as `options`, or the [`Condition`] given in their place, say.
    ///
    /// # Errors
    /// As [`Client::put`]. A condition that does not hold is an outcome, no error.
    pub fn put_with(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: impl Into<PutOptions>,
    ) -> Result<Conditional<Version>, Error> {
        let ticket = self.submit_put_with(key, value, options)?;
        self.wait_conditional(ticket)
    }

    /// Stores `value` under `key` if the key is there with version `expected`: [`Client::put_with`] under
    /// [`Condition::Version`].
    ///
    /// # Errors
    /// As [`Client::put`]. Another version and an absent key are outcomes, no errors.
    pub fn compare_and_set(
        &mut self,
        key: &[u8],
        expected: Version,
        value: &[u8],
    ) -> Result<Conditional<Version>, Error> {
        self.put_with(key, value, Condition::Version(expected))
    }

    /// Deletes `key`; false if it was not there.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        let ticket = self.submit_delete(key)?;
        let Outcome::Delete(result) = self.driver.wait_for(ticket) else {
            unreachable!("a DELETE ends as a DELETE")
        };
        result
    }

    /// Deletes `key` if the condition holds, and returns the version of the delete, which is above that of the value.
    ///
    /// # Errors
    /// As [`Client::put`]. A condition that does not hold and an absent key are outcomes, no errors.
    pub fn delete_if(&mut self, key: &[u8], condition: Condition) -> Result<Conditional<Version>, Error> {
        let ticket = self.submit_delete_if(key, condition)?;
        self.wait_conditional(ticket)
    }

    /// Adds `delta` to the counter `key`, and returns the sum. A counter is a value that is a decimal number of 64 bits with
    /// sign, as `42` or `-7`: what [`Client::get`] returns, and what can be put. An absent key counts as 0.
    ///
    /// An add whose outcome is unknown must not simply be repeated: it may have happened.
    ///
    /// # Errors
    /// As [`Client::put`]; [`Error::Refused`] also if the value is no counter or the sum needs more than 64 bits.
    pub fn add(&mut self, key: &[u8], delta: i64) -> Result<Count, Error> {
        self.add_if(key, delta, Condition::Always).map(always_done)
    }

    /// Adds `delta` to the counter `key` if the condition holds: with [`Condition::Present`], for instance, an absent key
    /// stays absent.
    ///
    /// # Errors
    /// As [`Client::add`]. A condition that does not hold is an outcome, no error.
    pub fn add_if(
        &mut self,
        key: &[u8],
        delta: i64,
        condition: Condition,
    ) -> Result<Conditional<Count>, Error> {
        let ticket = self.submit_add(key, delta, condition)?;
        let Outcome::Add(result) = self.driver.wait_for(ticket) else { unreachable!("an add ends as one") };
        result
    }

    /// Puts `bytes` behind the value of `key`. An absent key counts as one with an empty value.
    ///
    /// An append whose outcome is unknown must not simply be repeated: it may have happened.
    ///
    /// # Errors
    /// As [`Client::put`]; [`Error::Refused`] also if the whole value would be larger than values may be;
    /// [`Error::ValueTooLarge`] if `bytes` has more than the server takes at once, which is 1,114,112 unless values may only be
    /// smaller: append more in several calls.
    pub fn append(&mut self, key: &[u8], bytes: &[u8]) -> Result<Appended, Error> {
        self.append_if(key, bytes, Condition::Always).map(always_done)
    }

    /// Puts `bytes` behind the value of `key` if the condition holds.
    ///
    /// # Errors
    /// As [`Client::append`]. A condition that does not hold is an outcome, no error.
    pub fn append_if(
        &mut self,
        key: &[u8],
        bytes: &[u8],
        condition: Condition,
    ) -> Result<Conditional<Appended>, Error> {
        let ticket = self.submit_append(key, bytes, condition)?;
        let Outcome::Append(result) = self.driver.wait_for(ticket) else {
            unreachable!("an append ends as one")
        };
        result
    }

    /// Lets `key` live for `ttl` from now on, or without end, and returns the new version. A put sets the time to live anew,
    /// adds and appends leave it as it is.
    ///
    /// A key is absent once its time is over by the server's clock: for GETs, conditions, adds and appends. Who reads it
    /// one-sidedly knows that clock to 50 ms: around the end, one client may still find a key that another finds absent. The
    /// server's own answers, those to writes too, are exact. The client's wall clock plays no part, and time goes on while
    /// the server is stopped.
    ///
    /// # Errors
    /// As [`Client::put`]; [`Refusal::TtlOutOfRange`](crate::Refusal::TtlOutOfRange) for a time of 0, or more than
    /// [`TTL_MAX`](crate::TTL_MAX). An absent key is an outcome, no error.
    pub fn touch(&mut self, key: &[u8], ttl: Option<Duration>) -> Result<Conditional<Version>, Error> {
        let write = Write::conditional(Change::Touch, Condition::Always).with_ttl(ttl);
        let ticket = self.submit_value(key, b"", |_| write)?;
        self.wait_conditional(ticket)
    }

    /// The value of `key`, which lives for `ttl` from now on, or without end; `None` if it is absent.
    ///
    /// A value of more than 512 KiB comes in several answers, of which only the first touches the key. If the key is written
    /// before the last one, the outcome is that of a GET afterwards: the later value, with the time to live that its writer
    /// gave it, or `None` if it was deleted.
    ///
    /// # Errors
    /// As [`Client::touch`]; for a large value also as [`Client::get`].
    pub fn get_and_touch(&mut self, key: &[u8], ttl: Option<Duration>) -> Result<Option<Value>, Error> {
        let write = Write::conditional(Change::GetAndTouch(Vec::new()), Condition::Always).with_ttl(ttl);
        let ticket = self.submit_value(key, b"", |_| write)?;
        let Outcome::Get(result) = self.driver.wait_for(ticket) else {
            unreachable!("a get-and-touch ends as a GET")
        };
        result
    }

    /// How long `key` will live, asked of the server.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn ttl(&mut self, key: &[u8]) -> Result<TimeToLive, Error> {
        self.check_key(key)?;
        let ticket = self.live()?.submit_ttl(key)?;
        let Outcome::Ttl(result) = self.driver.wait_for(ticket) else { unreachable!("it ends as asked") };
        result
    }

    /// Starts a PUT; as [`Client::submit_get`]. Writes of one client to one key happen in the order submitted.
    ///
    /// # Errors
    /// As [`Client::submit_get`], and [`Error::ValueTooLarge`].
    pub fn submit_put(&mut self, key: &[u8], value: &[u8]) -> Result<Ticket, Error> {
        self.submit_value(key, value, |value| Write::plain(Change::Put(value)))
    }

    /// Starts a PUT with options; as [`Client::submit_put`]. It ends as [`Outcome::Conditional`].
    ///
    /// # Errors
    /// As [`Client::submit_put`].
    pub fn submit_put_with(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: impl Into<PutOptions>,
    ) -> Result<Ticket, Error> {
        let PutOptions { condition, ttl } = options.into();
        let write = |value| Write::conditional(Change::Put(value), condition).with_ttl(ttl);
        self.submit_value(key, value, write)
    }

    /// Starts a compare-and-set; as [`Client::submit_put_with`].
    ///
    /// # Errors
    /// As [`Client::submit_put`].
    pub fn submit_compare_and_set(
        &mut self,
        key: &[u8],
        expected: Version,
        value: &[u8],
    ) -> Result<Ticket, Error> {
        self.submit_put_with(key, value, Condition::Version(expected))
    }

    /// Starts a DELETE; as [`Client::submit_put`].
    ///
    /// # Errors
    /// As [`Client::submit_get`].
    pub fn submit_delete(&mut self, key: &[u8]) -> Result<Ticket, Error> {
        self.submit_value(key, b"", |_| Write::plain(Change::Delete))
    }

    /// Starts a DELETE with a condition; as [`Client::submit_put`]. It ends as [`Outcome::Conditional`].
    ///
    /// # Errors
    /// As [`Client::submit_get`].
    pub fn submit_delete_if(&mut self, key: &[u8], condition: Condition) -> Result<Ticket, Error> {
        self.submit_value(key, b"", |_| Write::conditional(Change::Delete, condition))
    }

    /// Starts an add; as [`Client::submit_put`].
    ///
    /// # Errors
    /// As [`Client::submit_get`].
    pub fn submit_add(&mut self, key: &[u8], delta: i64, condition: Condition) -> Result<Ticket, Error> {
        self.submit_value(key, b"", |_| Write::conditional(Change::Add(delta.to_le_bytes()), condition))
    }

    /// Starts an append; as [`Client::submit_put`].
    ///
    /// # Errors
    /// As [`Client::submit_put`].
    pub fn submit_append(&mut self, key: &[u8], bytes: &[u8], condition: Condition) -> Result<Ticket, Error> {
        self.submit_value(key, bytes, |bytes| Write::conditional(Change::Append(bytes), condition))
    }

    fn submit_value(
        &mut self,
        key: &[u8],
        value: &[u8],
        write: impl FnOnce(Vec<u8>) -> Write,
    ) -> Result<Ticket, Error> {
        self.check_key(key)?;
        let driver = self.live()?;
        driver.check_value_bytes(value.len())?;
        driver.submit_write(key, write(value.to_vec()))
    }

    fn wait_conditional(&mut self, ticket: Ticket) -> Result<Conditional<Version>, Error> {
        let Outcome::Conditional(result) = self.driver.wait_for(ticket) else {
            unreachable!("a conditional write ends as one")
        };
        result
    }
}

/// What a write made whose condition always holds.
fn always_done<T>(outcome: Conditional<T>) -> T {
    outcome.done().expect("no reply says that nothing does not hold")
}
