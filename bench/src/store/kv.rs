//! The store, through its client library: one client per thread.

use kv_client::{Client, Connection, Error, GetMode, Options};

use super::{Completion, Counters, Factory, Outcome, Request, Retries, Store, StoreError};
use crate::rng::{GAMMA, Rng};
use crate::units::show_size_bytes;

/// Connects clients to one server.
#[derive(Debug)]
pub struct KvFactory {
    url: String,
    options: Options,
    /// What the first client was connected to.
    connection: Connection,
}

impl KvFactory {
    /// Connects once, so that a server that is not there is known before anything else is done.
    ///
    /// # Errors
    /// [`StoreError::NoConnection`].
    pub fn connect(url: &str, options: Options) -> Result<Self, StoreError> {
        let client = Client::connect_with(url, &options).map_err(store_error)?;
        Ok(Self { url: url.into(), options, connection: client.connection().clone() })
    }
}

impl Factory for KvFactory {
    type Handle = KvStore;

    fn open(&self) -> Result<KvStore, StoreError> {
        let client = Client::connect_with(&self.url, &self.options).map_err(store_error)?;
        Ok(KvStore { client, places: Rng::new(GAMMA) })
    }

    fn transport(&self) -> String {
        self.connection.transport.into()
    }

    fn has_raw_reads(&self) -> bool {
        self.connection.transport == "verbs"
    }

    fn server_pid(&self) -> Option<u32> {
        self.connection.server_pid
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let of = &self.connection;
        vec![
            ("server", of.url.clone()),
            ("chosen_because", of.why.clone()),
            (
                "gets",
                if self.options.get_mode == GetMode::Server { "by the server" } else { "one-sided" }.into(),
            ),
            ("region", show_size_bytes(of.region_bytes)),
            ("region_pages", show_size_bytes(of.region_page_bytes)),
            ("index_cache", show_size_bytes(of.index_cache_bytes)),
            ("index_cache_pages", of.index_cache_pages.into()),
        ]
    }
}

/// A client of one thread.
#[derive(Debug)]
pub struct KvStore {
    client: Client,
    /// Where bare READs read.
    places: Rng,
}

/// What the library's errors mean to the harness.
#[cold]
pub(crate) fn store_error(error: Error) -> StoreError {
    let text = error.to_string();
    match error {
        Error::Url { .. }
        | Error::Connect { .. }
        | Error::WithoutRdma { .. }
        | Error::Identity(_)
        | Error::Broken(_) => StoreError::NoConnection(text),
        Error::Refused(_)
        | Error::NotAdmitted { .. }
        | Error::KeyEmpty
        | Error::KeyTooLong { .. }
        | Error::ValueTooLarge { .. } => StoreError::Refused(text),
        Error::OutcomeUnknown { .. } => StoreError::Unknown(text),
        Error::Timeout { .. } => StoreError::NoAnswer(text),
        _ => StoreError::Failed(text),
    }
}

impl Store for KvStore {
    type Ticket = kv_client::Ticket;

    #[inline]
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError> {
        match self.client.get_to_vec(key, value) {
            Ok(found) => Ok(found.is_some()),
            Err(error) => Err(store_error(error)),
        }
    }

    #[inline]
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        match self.client.put(key, value) {
            Ok(_version) => Ok(()),
            Err(error) => Err(store_error(error)),
        }
    }

    fn multi_read(
        &mut self,
        keys: &[&[u8]],
        mut each: impl FnMut(usize, Result<Option<&[u8]>, StoreError>),
    ) -> Result<(), StoreError> {
        self.client.multi_get_with(keys, |index, found| match found {
            Ok(found) => each(index, Ok(found.map(|(value, _version)| value))),
            Err(error) => each(index, Err(store_error(error))),
        });
        Ok(())
    }

    fn submit(&mut self, request: Request<'_>) -> Result<Self::Ticket, StoreError> {
        match request {
            Request::Read(key) => self.client.submit_get(key),
            Request::Write(key, value) => self.client.submit_put(key, value),
        }
        .map_err(store_error)
    }

    fn complete(
        &mut self,
        wait: bool,
        value: &mut Vec<u8>,
    ) -> Result<Option<Completion<Self::Ticket>>, StoreError> {
        let completed = if wait { self.client.wait() } else { self.client.poll() };
        let Some(kv_client::Completion { ticket, outcome }) = completed.map_err(store_error)? else {
            return Ok(None);
        };
        let outcome = match outcome {
            kv_client::Outcome::Get(Ok(Some(found))) => {
                *value = found.bytes;
                Ok(Outcome::Found)
            }
            kv_client::Outcome::Get(Ok(None)) => Ok(Outcome::NotFound),
            kv_client::Outcome::Put(Ok(_version)) => Ok(Outcome::Written),
            kv_client::Outcome::Get(Err(error)) | kv_client::Outcome::Put(Err(error)) => {
                Err(store_error(error))
            }
            // Only GETs and PUTs are submitted.
            other => {
                Err(StoreError::Failed(format!("the client completed what was not submitted: {other:?}")))
            }
        };
        Ok(Some(Completion { ticket, outcome }))
    }

    fn warm_up(&mut self) -> Result<(), StoreError> {
        self.client.warm_up().map(|_| ()).map_err(store_error)
    }

    #[inline]
    fn raw_read(&mut self, bytes: u64) -> Result<bool, StoreError> {
        // On a cache line, as blocks are.
        let at_byte = self.places.next_u64() & !63;
        self.client.raw_read(at_byte, usize::try_from(bytes).unwrap_or(usize::MAX)).map_err(store_error)
    }

    fn counters(&self) -> Option<Counters> {
        let of = self.client.stats();
        Some(Counters {
            reads: of.reads,
            read_bytes: of.read_bytes,
            cache_lookups: of.index_cache_lookups,
            cache_hits: of.index_cache_hits,
            retries: Retries {
                torn: of.retries_torn,
                stale: of.retries_stale,
                dead: of.retries_dead,
                asked_server: of.asked_server,
            },
        })
    }
}
