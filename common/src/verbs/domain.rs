//! Protection domains.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::ibv_pd;

use super::context::Context;
use super::error::VerbError;

/// What memory regions and queue pairs must share to work together.
pub struct ProtectionDomain {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread, and the pointer is only used in such calls.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as for `Send`.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// A new one.
    ///
    /// # Errors
    /// If the device has none left.
    pub fn allocate(context: &Arc<Context>) -> Result<Arc<ProtectionDomain>, VerbError> {
        // SAFETY: the context is open; the result is checked for null.
        let raw = unsafe { rdma_sys::ibv_alloc_pd(context.as_ptr()) };
        let raw = NonNull::new(raw)
            .ok_or_else(|| VerbError::last("ibv_alloc_pd", context.device().name.clone()))?;
        Ok(Arc::new(ProtectionDomain { raw, context: Arc::clone(context) }))
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: whatever was made in this domain keeps an `Arc` of it, so nothing is left in it; freed once.
        if unsafe { rdma_sys::ibv_dealloc_pd(self.raw.as_ptr()) } != 0 {
            tracing::error!(device = self.context.device().name, "a protection domain could not be freed");
        }
    }
}
