//! Every bound of the store, with its reason. Queues, retries and waits take their limits from here and nowhere else.

use crate::layout;

/// Bytes of the longest key. Keys share their block with the value and are copied into every request.
pub const KEY_MAX_BYTES: usize = 1024;

/// Bytes of the largest value that a server can be told to take. Lengths have 32 bits in messages and blocks.
pub const VALUE_MAX_BYTES: usize = 1 << 30;

/// The longest time that a key can be given to live: 100 years of 365 days.
pub const TTL_MAX_NS: u64 = 100 * 365 * 24 * 3600 * 1_000_000_000;

/// Bytes of the largest value that a server takes unless it is told otherwise.
pub const VALUE_MAX_DEFAULT_BYTES: usize = 64 << 20;

/// Bytes of the largest block that lies in a size class, in one piece; larger ones lie in runs of pages. Beyond this a class
/// would waste too much of a segment: six blocks of 320 KiB leave 6 % of it unused, five of 384 KiB would leave 8 %, three
/// of 576 KiB 16 %.
pub const SMALL_BLOCK_MAX_BYTES: usize = 320 << 10;

/// Pages of a large block that one READ brings. So many are copied, hashed and put together while they are in the
/// processor's cache.
pub const PAGES_PER_READ: u64 = 4;

/// READs of one large block that are in flight, or whose pages wait for those before them.
pub const PAGE_READS_MAX: usize = 4;

/// Bytes of a value that the server answers to one GET by SEND; the client asks for the rest by further ones. What a server
/// keeps for a client that does not take its answers is no more than this.
pub const ANSWER_MAX_BYTES: usize = 512 << 10;

/// The smallest region: superblock, directory, one index segment, and five for values.
pub const REGION_MIN_BYTES: u64 = 8 * layout::SEGMENT_BYTES;

/// The largest region: a place has 40 bits and counts granules of 16 bytes.
pub const REGION_MAX_BYTES: u64 = 1 << (layout::PLACE_BITS + layout::GRANULE_BYTES.trailing_zeros());

/// Workers that a server may have: each owns an intent record and a counter page of the superblock.
pub const WORKERS_MAX: usize = 64;

/// Clients of one server at once; each costs the server a descriptor and a channel. `--max-clients` may lower it.
pub const CLIENTS_MAX: usize = 4096;

/// Overflow lines that one home may chain. The hash seed is known to every client, so someone can make keys that share
/// a home; with 14 slots in the window this allows 14 + 56 of them, far beyond what chance brings.
pub const OVERFLOW_CHAIN_MAX: usize = 8;

/// Times that a GET looks again (torn, dead, stale) before it asks the server.
pub const GET_ATTEMPTS_MAX: u32 = 8;

/// Times that a GET repeats itself because the directory was stale; each time it reads a new one.
pub const DIRECTORY_REFRESHES_MAX: u32 = 4;

/// Bytes of value that travel inside a message; larger ones lie in the staging area, whole or part by part.
pub const INLINE_VALUE_MAX_BYTES: usize = 8 << 10;

/// Bytes of value in one message of a GET answered by the server.
pub const REPLY_CHUNK_BYTES: usize = 8 << 10;

/// Places in one report of hits: as many as fit into a message. A server that sleeps has to be woken for it, which costs the
/// client some 30 us.
pub const HITS_PER_REPORT_MAX: usize = INLINE_VALUE_MAX_BYTES / 8;

/// Requests that one client may have in flight: the credit that the server grants.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 64;

/// Operations that one client may have submitted and not taken the completions of.
pub const CLIENT_OPERATIONS_MAX: usize = 4096;

/// Bytes of a ring or a staging area, at most: a client maps what the server announces, and no more than this.
pub const CHANNEL_MAX_BYTES: u64 = 64 << 20;

/// Peers that may be between connect and hello at once, each of which costs the server a descriptor. For one more, the
/// user who has the most of them loses the oldest.
pub const HANDSHAKES_MAX: usize = 256;

/// Replies and completed READs that a client takes before it looks at its deadlines again.
pub const EVENTS_PER_TURN_MAX: usize = 1024;

/// How long a client waits at most, whatever was asked for; keeps arithmetic with deadlines from overflowing.
pub const TIMEOUT_MAX_NS: u64 = 366 * 24 * 3600 * 1_000_000_000;

/// A miss counts only if its lookup, first READ to last, took less than this by the client's own clock.
pub const GRACE_NS: u64 = 20_000_000;

/// The longest GRACE that a table may have: splits of its index take about as long.
pub const GRACE_NS_MAX: u64 = GRACE_NS * 1000;

/// A place counts only if the place epoch was read less than this ago by the client's own clock.
pub const LEASE_NS: u64 = 1_000_000_000;

/// How long an operation may take, or a large value may come no further, unless the user says otherwise.
pub const OPERATION_TIMEOUT_NS: u64 = 5_000_000_000;

/// How long a handshake may take; a peer that is silent longer is dropped, or sooner if its place is needed.
pub const HANDSHAKE_TIMEOUT_NS: u64 = 2_000_000_000;

/// Words of one READ over tcp: the largest block in one piece, the largest directory, and every larger piece that a client
/// reads are below.
pub const READ_MAX_WORDS: usize = layout::SEGMENT_WORDS;

/// READs that one client has in flight over tcp. They are served one after the other; so many keep the wires busy for the
/// time of a round trip.
pub const TCP_READS_IN_FLIGHT_MAX: usize = 64;

/// Words of the staging area in one frame over tcp: what is received whole before it is looked at stays small.
pub const STAGE_FRAME_MAX_WORDS: usize = 4 << 10;

/// Bytes that one side of a tcp connection keeps until the socket takes them, before it takes no more to send: the
/// replies to one request, or a staged value, may be on top.
pub const TCP_UNSENT_MAX_BYTES: usize = 64 << 10;

/// How long a tcp connection may be silent before its end asks the other host whether it is still there, ...
pub const TCP_SILENCE_SECONDS: u64 = 30;
/// ... and how long the other may leave that, or anything that was sent, without an answer. A peer that reads nothing
/// for so long, stopped in a debugger for instance, counts as gone, too.
pub const TCP_GONE_SECONDS: u64 = 120;

/// Requests that one client may have in flight over RDMA: for each of them the server keeps a registered receive buffer.
pub const RDMA_REQUESTS_IN_FLIGHT_MAX: usize = 32;

/// Replies that a server may have in flight to one client over RDMA: for each of them the client keeps a receive buffer.
pub const RDMA_REPLIES_IN_FLIGHT_MAX: usize = 32;

/// READs that one client has in flight over RDMA, whatever both devices could do.
pub const RDMA_READS_IN_FLIGHT_MAX: usize = 128;

/// Versions reserved in the superblock ahead of their use, so that no version is used twice after a crash.
pub const VERSION_RESERVE: u64 = 1 << 20;

/// Stripes of the writers' locks. Two homes collide in one with probability 1 / this.
pub const STRIPES: usize = 4096;

const _: () = assert!(
    SMALL_BLOCK_MAX_BYTES <= READ_MAX_WORDS * 8 && 1 << layout::DIRECTORY_DEPTH_MAX <= READ_MAX_WORDS
);
const _: () = assert!(PAGES_PER_READ * layout::PAGE_BYTES <= READ_MAX_WORDS as u64 * 8);
const _: () = assert!(STRIPES.is_power_of_two());
const _: () = assert!(SMALL_BLOCK_MAX_BYTES < layout::SEGMENT_BYTES as usize);
const _: () = assert!(SMALL_BLOCK_MAX_BYTES <= ANSWER_MAX_BYTES, "such a value is answered as a whole");
const _: () = assert!(VALUE_MAX_DEFAULT_BYTES <= VALUE_MAX_BYTES);
const _: () = assert!(KEY_MAX_BYTES <= u16::MAX as usize && VALUE_MAX_BYTES <= u32::MAX as usize);
const _: () = assert!(GRACE_NS < LEASE_NS);
const _: () = assert!(RDMA_REQUESTS_IN_FLIGHT_MAX <= REQUESTS_IN_FLIGHT_MAX);
