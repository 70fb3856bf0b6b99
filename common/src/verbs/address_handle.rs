//! Address handles: where datagrams go.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::ibv_ah;

use super::domain::ProtectionDomain;
use super::error::VerbError;
use super::path::Path;

/// The address of a port, for datagrams.
pub struct AddressHandle {
    raw: NonNull<ibv_ah>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs may be called from any thread, and the handle does not change.
unsafe impl Send for AddressHandle {}
// SAFETY: as for `Send`.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    /// The address that `path` leads to.
    ///
    /// # Errors
    /// If the device cannot have it, for instance because the peer's GID is not reachable.
    pub fn create(domain: &Arc<ProtectionDomain>, path: &Path) -> Result<Arc<AddressHandle>, VerbError> {
        let mut address = path.to_raw();
        // SAFETY: the domain lives and the address is valid.
        let raw = unsafe { rdma_sys::ibv_create_ah(domain.as_ptr(), &mut address) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbError::last("ibv_create_ah", path.to_string()))?;
        Ok(Arc::new(AddressHandle { raw, domain: Arc::clone(domain) }))
    }

    pub(super) fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: batches and the queue pairs that sent to it keep an `Arc` of it, so none uses it any more; once.
        if unsafe { rdma_sys::ibv_destroy_ah(self.raw.as_ptr()) } != 0 {
            tracing::error!(
                device = self.domain.context().device().name,
                "an address handle could not be destroyed"
            );
        }
    }
}
