//! Completion statuses: names, usual causes, remedies.

use std::fmt;

/// Why a work request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionStatus {
    /// `IBV_WC_LOC_LEN_ERR`
    LocalLength,
    /// `IBV_WC_LOC_QP_OP_ERR`
    LocalOperation,
    /// `IBV_WC_LOC_EEC_OP_ERR`
    LocalEndToEndContext,
    /// `IBV_WC_LOC_PROT_ERR`
    LocalProtection,
    /// `IBV_WC_WR_FLUSH_ERR`
    Flushed,
    /// `IBV_WC_MW_BIND_ERR`
    MemoryWindowBind,
    /// `IBV_WC_BAD_RESP_ERR`
    BadResponse,
    /// `IBV_WC_LOC_ACCESS_ERR`
    LocalAccess,
    /// `IBV_WC_REM_INV_REQ_ERR`
    RemoteInvalidRequest,
    /// `IBV_WC_REM_ACCESS_ERR`
    RemoteAccess,
    /// `IBV_WC_REM_OP_ERR`
    RemoteOperation,
    /// `IBV_WC_RETRY_EXC_ERR`
    RetryExceeded,
    /// `IBV_WC_RNR_RETRY_EXC_ERR`
    ReceiverNotReady,
    /// `IBV_WC_LOC_RDD_VIOL_ERR`
    LocalReliableDatagram,
    /// `IBV_WC_REM_INV_RD_REQ_ERR`
    RemoteReliableDatagram,
    /// `IBV_WC_REM_ABORT_ERR`
    RemoteAborted,
    /// `IBV_WC_INV_EECN_ERR`
    InvalidEndToEndContext,
    /// `IBV_WC_INV_EEC_STATE_ERR`
    EndToEndContextState,
    /// `IBV_WC_FATAL_ERR`
    Fatal,
    /// `IBV_WC_RESP_TIMEOUT_ERR`
    ResponseTimeout,
    /// `IBV_WC_GENERAL_ERR`
    General,
    /// `IBV_WC_TM_ERR`
    TagMatching,
    /// `IBV_WC_TM_RNDV_INCOMPLETE`
    TagRendezvousIncomplete,
    /// A number that verbs did not have when this was written.
    Unknown(u32),
}

/// Name in verbs.h, usual cause, remedy.
type Explanation = (&'static str, &'static str, &'static str);

impl CompletionStatus {
    /// The status with this number in `enum ibv_wc_status`; none for success.
    #[inline]
    pub fn from_code(code: u32) -> Option<CompletionStatus> {
        use CompletionStatus::*;
        Some(match code {
            0 => return None,
            1 => LocalLength,
            2 => LocalOperation,
            3 => LocalEndToEndContext,
            4 => LocalProtection,
            5 => Flushed,
            6 => MemoryWindowBind,
            7 => BadResponse,
            8 => LocalAccess,
            9 => RemoteInvalidRequest,
            10 => RemoteAccess,
            11 => RemoteOperation,
            12 => RetryExceeded,
            13 => ReceiverNotReady,
            14 => LocalReliableDatagram,
            15 => RemoteReliableDatagram,
            16 => RemoteAborted,
            17 => InvalidEndToEndContext,
            18 => EndToEndContextState,
            19 => Fatal,
            20 => ResponseTimeout,
            21 => General,
            22 => TagMatching,
            23 => TagRendezvousIncomplete,
            other => Unknown(other),
        })
    }

    /// Its name in verbs.h.
    pub fn name(self) -> &'static str {
        self.explain().0
    }

    /// What usually causes it.
    pub fn usual_cause(self) -> &'static str {
        self.explain().1
    }

    /// What to do.
    pub fn remedy(self) -> &'static str {
        self.explain().2
    }

    fn explain(self) -> Explanation {
        use CompletionStatus::*;
        const RD: &str = "reliable datagrams, which nothing here uses";
        const REPORT: &str = "report it, with the vendor error";
        match self {
            LocalLength => (
                "IBV_WC_LOC_LEN_ERR",
                "a message was longer than the receive buffer, or than the port's largest message",
                "post receive buffers of the size that both sides agreed on; check the path MTU of datagrams",
            ),
            LocalOperation => (
                "IBV_WC_LOC_QP_OP_ERR",
                "the request does not fit the queue pair (too many segments, wrong operation, or a bug of the driver)",
                "compare the request with the queue pair's capacity; update the adapter's firmware",
            ),
            LocalEndToEndContext => ("IBV_WC_LOC_EEC_OP_ERR", RD, REPORT),
            LocalProtection => (
                "IBV_WC_LOC_PROT_ERR",
                "the local range is not inside memory that is registered in this protection domain, with this access",
                "keep the memory region until the completion; register it for what is done with it",
            ),
            Flushed => (
                "IBV_WC_WR_FLUSH_ERR",
                "the queue pair went to the error state before this request was done",
                "look at the first completion that is not flushed: it has the reason; then connect again",
            ),
            MemoryWindowBind => ("IBV_WC_MW_BIND_ERR", "a memory window, which nothing here uses", REPORT),
            BadResponse => (
                "IBV_WC_BAD_RESP_ERR",
                "the peer answered something that its opcode does not allow",
                "check the firmware of both adapters; connect again",
            ),
            LocalAccess => (
                "IBV_WC_LOC_ACCESS_ERR",
                "a peer's WRITE hit memory that it may not write to",
                "register the memory for remote write access, or find the peer that writes where it must not",
            ),
            RemoteInvalidRequest => (
                "IBV_WC_REM_INV_REQ_ERR",
                "the peer's queue pair does not allow the operation, has less READ depth, or a smaller receive buffer",
                "give the peer's queue pair remote access for this operation, and negotiate READ depth and sizes",
            ),
            RemoteAccess => (
                "IBV_WC_REM_ACCESS_ERR",
                "the remote key is of an earlier registration, or the range or the access is not allowed by it",
                "drop all keys and addresses of this peer and connect again: it has probably been restarted",
            ),
            RemoteOperation => (
                "IBV_WC_REM_OP_ERR",
                "the peer's adapter could not carry out the request",
                "look at the peer's log and at the receive buffers that it posts",
            ),
            RetryExceeded => (
                "IBV_WC_RETRY_EXC_ERR",
                "the peer does not answer: it ended, its queue pair is gone, or packets do not get through \
                 (wrong GID, MTU larger than the path's, lossy link)",
                "check that the peer runs; ping it with packets of the MTU; compare GID types (`kv doctor`)",
            ),
            ReceiverNotReady => (
                "IBV_WC_RNR_RETRY_EXC_ERR",
                "the peer had no receive buffer posted for this message, several times in a row",
                "the sender must keep to the credits that it was given; look whether the peer is stopped",
            ),
            LocalReliableDatagram => ("IBV_WC_LOC_RDD_VIOL_ERR", RD, REPORT),
            RemoteReliableDatagram => ("IBV_WC_REM_INV_RD_REQ_ERR", RD, REPORT),
            RemoteAborted => (
                "IBV_WC_REM_ABORT_ERR",
                "the peer gave the operation up",
                "look at the peer's log; connect again",
            ),
            InvalidEndToEndContext => ("IBV_WC_INV_EECN_ERR", RD, REPORT),
            EndToEndContextState => ("IBV_WC_INV_EEC_STATE_ERR", RD, REPORT),
            Fatal => (
                "IBV_WC_FATAL_ERR",
                "the adapter failed, or was removed or reset",
                "look at dmesg; open the device again when it is back",
            ),
            ResponseTimeout => (
                "IBV_WC_RESP_TIMEOUT_ERR",
                "the peer did not answer in time",
                "check that the peer runs and that the link is up",
            ),
            General => (
                "IBV_WC_GENERAL_ERR",
                "an error of the transport that has no other name",
                "look at the vendor error and at dmesg; connect again",
            ),
            TagMatching => ("IBV_WC_TM_ERR", "tag matching, which nothing here uses", REPORT),
            TagRendezvousIncomplete => {
                ("IBV_WC_TM_RNDV_INCOMPLETE", "tag matching, which nothing here uses", REPORT)
            }
            Unknown(_) => {
                ("unknown", "a status that is newer than this program", "compare its number with verbs.h")
            }
        }
    }
}

impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, cause, remedy) = self.explain();
        f.write_str(name)?;
        if let CompletionStatus::Unknown(number) = self {
            write!(f, " ({number})")?;
        }
        write!(f, ": {cause}; {remedy}")
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn success_is_no_error_and_every_other_number_is_one() {
        assert_eq!(CompletionStatus::from_code(0), None);
        for code in 1..=23 {
            let status = CompletionStatus::from_code(code).unwrap();
            assert!(!matches!(status, CompletionStatus::Unknown(_)), "{code}");
            assert!(status.name().starts_with("IBV_WC_"), "{code}");
            assert!(!status.usual_cause().is_empty() && !status.remedy().is_empty(), "{code}");
        }
        assert_eq!(CompletionStatus::from_code(24), Some(CompletionStatus::Unknown(24)));
    }

    /// Numbers and names come from verbs.h by way of the generated bindings.
    #[test]
    fn numbers_are_those_of_verbs() {
        use rdma_sys::ibv_wc_status as raw;
        let pairs = [
            (raw::IBV_WC_LOC_LEN_ERR, CompletionStatus::LocalLength),
            (raw::IBV_WC_LOC_QP_OP_ERR, CompletionStatus::LocalOperation),
            (raw::IBV_WC_LOC_PROT_ERR, CompletionStatus::LocalProtection),
            (raw::IBV_WC_WR_FLUSH_ERR, CompletionStatus::Flushed),
            (raw::IBV_WC_LOC_ACCESS_ERR, CompletionStatus::LocalAccess),
            (raw::IBV_WC_REM_INV_REQ_ERR, CompletionStatus::RemoteInvalidRequest),
            (raw::IBV_WC_REM_ACCESS_ERR, CompletionStatus::RemoteAccess),
            (raw::IBV_WC_REM_OP_ERR, CompletionStatus::RemoteOperation),
            (raw::IBV_WC_RETRY_EXC_ERR, CompletionStatus::RetryExceeded),
            (raw::IBV_WC_RNR_RETRY_EXC_ERR, CompletionStatus::ReceiverNotReady),
            (raw::IBV_WC_FATAL_ERR, CompletionStatus::Fatal),
            (raw::IBV_WC_RESP_TIMEOUT_ERR, CompletionStatus::ResponseTimeout),
            (raw::IBV_WC_GENERAL_ERR, CompletionStatus::General),
        ];
        for (code, status) in pairs {
            assert_eq!(CompletionStatus::from_code(code), Some(status));
        }
    }

    #[test]
    #[allow(unsafe_code, reason = "asks libibverbs for its own text")]
    fn the_library_calls_a_remote_access_error_so_too() {
        // SAFETY: the function returns a constant, zero-terminated text for any number.
        let text = unsafe { CStr::from_ptr(rdma_sys::ibv_wc_status_str(10)) };
        assert_eq!(text.to_str(), Ok("remote access error"));
        let ours = CompletionStatus::from_code(10).unwrap().to_string();
        assert!(ours.contains("IBV_WC_REM_ACCESS_ERR") && ours.contains("connect again"), "{ours}");
    }
}
