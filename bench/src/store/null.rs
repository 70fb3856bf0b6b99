//! A store that does nothing. What an operation on it takes is the harness's own cost.

use super::deferred::{Deferred, batch_one_by_one, pipelined_by_deferring};
use super::{Factory, Store, StoreError};

/// Opens null stores.
#[derive(Debug, Clone, Copy)]
pub struct NullFactory {
    /// Bytes of the value that every read finds; they are zeros.
    pub value_bytes: usize,
}

/// A handle that finds every key and keeps nothing.
#[derive(Debug)]
pub struct NullStore {
    value_bytes: usize,
    scratch: Vec<u8>,
    deferred: Deferred,
}

impl Factory for NullFactory {
    type Handle = NullStore;

    fn open(&self) -> Result<NullStore, StoreError> {
        Ok(NullStore { value_bytes: self.value_bytes, scratch: Vec::new(), deferred: Deferred::default() })
    }

    fn transport(&self) -> String {
        "null".into()
    }
}

impl Store for NullStore {
    #[inline]
    fn read(&mut self, _key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError> {
        // Costs something only the first time; the caller reuses the buffer.
        value.resize(self.value_bytes, 0);
        Ok(true)
    }

    #[inline]
    fn write(&mut self, _key: &[u8], _value: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }

    batch_one_by_one!();
    pipelined_by_deferring!();
}
