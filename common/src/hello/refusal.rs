//! Why a server does not take a client.

use super::Wanted;

/// Why a server does not take a client. The server closes the connection after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloRefusal {
    /// The two speak different versions of the protocol.
    #[error("the server speaks protocol version {server}, the client {client}; use programs of one release")]
    WrongVersion {
        /// The server's version.
        server: u32,
        /// The client's version.
        client: u32,
    },
    /// The peer's user may not connect.
    #[error("user {uid} may not connect; the server has to be started with --allow-uid {uid}")]
    NotPermitted {
        /// The peer's user, as the kernel says.
        uid: u32,
    },
    /// As many clients as the server takes are connected.
    #[error(
        "{limit} clients are connected, which is the limit; close some or start the server with more --max-clients"
    )]
    TooManyClients {
        /// The limit.
        limit: u64,
    },
    /// The server drains.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// What the peer sent is no hello.
    #[error("what arrived is no hello of this protocol; is another program using this socket?")]
    Garbage,
    /// The hello did not come in time.
    #[error("no hello came within {waited_ms} ms")]
    TooLate {
        /// How long the server waited.
        waited_ms: u64,
    },
    /// The server does not offer this transport on the socket that was asked.
    #[error("the server does not offer {wanted} here; {}", remedy(*.wanted))]
    NotOffered {
        /// What was asked for.
        wanted: Wanted,
    },
    /// The server's RDMA device connects by rdma_cm only.
    #[error(
        "the server's device is iWARP, which only rdma_cm connects, and only to another iWARP device: kv+rdma://...?cm=rdma"
    )]
    RdmaCmOnly,
    /// The server has no descriptors or memory left for another client.
    #[error("the server has no resources left for another client: {errno}", errno = std::io::Error::from_raw_os_error(*.os_error as i32))]
    NoResources {
        /// The system's error number.
        os_error: u32,
    },
}

impl HelloRefusal {
    pub(super) fn encode(self) -> (u32, u64, u64) {
        match self {
            HelloRefusal::WrongVersion { server, client } => (1, server.into(), client.into()),
            HelloRefusal::NotPermitted { uid } => (2, uid.into(), 0),
            HelloRefusal::TooManyClients { limit } => (3, limit, 0),
            HelloRefusal::ShuttingDown => (4, 0, 0),
            HelloRefusal::Garbage => (5, 0, 0),
            HelloRefusal::TooLate { waited_ms } => (6, waited_ms, 0),
            HelloRefusal::NoResources { os_error } => (7, os_error.into(), 0),
            HelloRefusal::NotOffered { wanted } => (8, wanted as u64, 0),
            HelloRefusal::RdmaCmOnly => (9, 0, 0),
        }
    }

    pub(super) fn decode(status: u32, a: u64, b: u64) -> Option<HelloRefusal> {
        let word = |value: u64| u32::try_from(value).ok();
        Some(match status {
            1 => HelloRefusal::WrongVersion { server: word(a)?, client: word(b)? },
            2 => HelloRefusal::NotPermitted { uid: word(a)? },
            3 => HelloRefusal::TooManyClients { limit: a },
            4 => HelloRefusal::ShuttingDown,
            5 => HelloRefusal::Garbage,
            6 => HelloRefusal::TooLate { waited_ms: a },
            7 => HelloRefusal::NoResources { os_error: word(a).filter(|&number| number <= 4095)? },
            8 => HelloRefusal::NotOffered { wanted: Wanted::of(word(a)?)? },
            9 => HelloRefusal::RdmaCmOnly,
            _ => return None,
        })
    }
}

fn remedy(wanted: Wanted) -> &'static str {
    match wanted {
        Wanted::Shm => "shared memory is had by the server's Unix socket: kv+shm:///path/of/socket",
        Wanted::Rdma => "it has no RDMA device or does not use it; kv+tcp:// needs none",
        Wanted::RdmaCm => {
            "it has no RDMA, or rdma_cm cannot listen at its --listen address (its start-up lines say why: the address must be \
             the adapter's own, and /dev/infiniband/rdma_cm there); cm=tcp does without"
        }
        Wanted::Tcp | Wanted::Offer => "connect to what its --listen names",
    }
}
