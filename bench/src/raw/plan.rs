//! What can be measured, and what cannot, and why not.

use clap::ValueEnum;
use serde::Serialize;
use thiserror::Error;

use super::args::RawArgs;
use crate::range::{OutOfRange, in_range};

/// Bytes in front of each datagram that is received: the global route header.
pub const DATAGRAM_HEADER_BYTES: u64 = 40;
/// Buffers begin on a cache line.
const LINE_BYTES: u64 = 64;
/// Memory that one side registers for one test.
pub const MEMORY_MAX_BYTES: u64 = 1 << 30;
/// Messages of one test over all its queue pairs: two times of each are kept.
pub const MESSAGES_MAX: u64 = 10_000_000;
/// Fewest messages of which a tail can be told.
pub const ITERATIONS_MIN: u64 = 5;
/// Requests in flight on one queue pair.
pub const DEPTH_MAX: u64 = 1 << 15;
/// Queue pairs of one test.
pub const QUEUE_PAIRS_MAX: u64 = 256;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// SEND into a receive of the other side.
    Send,
}

/// On what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Connection {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams.
    Ud,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// Time of one message at a time.
    Latency,
    /// Rate of many messages in flight.
    Bandwidth,
}

impl Operation {
    /// Its name, as people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Send => "SEND",
        }
    }
}

impl Connection {
    /// Its name, as people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// What is done.
    pub operation: Operation,
    /// On what.
    pub connection: Connection,
    /// What is asked.
    pub measure: Measure,
    /// Bytes of a message.
    pub size_bytes: u32,
    /// Requests in flight on each queue pair; 1 for latency.
    pub depth: u32,
    /// Queue pairs; 1 for latency.
    pub queue_pairs: u32,
    /// Messages on each queue pair.
    pub iterations: u32,
}

/// Why something cannot be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// A number out of its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// READ without acknowledgements.
    #[error(
        "{} has no READ: its answer is part of the reliable protocol. Use --connection rc, or --operation write or send",
        .0.name()
    )]
    ReadUnreliable(Connection),
    /// WRITE by datagrams.
    #[error(
        "UD has no WRITE: a datagram names a queue pair and no memory. Use --connection rc or uc, or --operation send"
    )]
    WriteDatagram,
    /// A datagram is one packet.
    #[error(
        "--size {size_bytes} is more than a datagram holds: it is one packet, and the MTU of both sides is {mtu_bytes}"
    )]
    AboveMtu {
        /// Bytes of the message.
        size_bytes: u32,
        /// The smaller of both sides' MTUs.
        mtu_bytes: u32,
    },
    /// Buffers that are too large.
    #[error(
        "{queue_pairs} queue pairs with messages of {size_bytes} bytes need {needed_bytes} bytes of registered memory, and \
         a test has at most {MEMORY_MAX_BYTES}; use a smaller --size or fewer --queue-pairs"
    )]
    Memory {
        /// Queue pairs.
        queue_pairs: u32,
        /// Bytes of a message.
        size_bytes: u32,
        /// Bytes of all buffers.
        needed_bytes: u64,
    },
    /// Too many messages.
    #[error(
        "{queue_pairs} queue pairs with {iterations} messages each are more than {MESSAGES_MAX}; use a smaller --iterations"
    )]
    Messages {
        /// Queue pairs.
        queue_pairs: u32,
        /// Messages on each.
        iterations: u32,
    },
}

/// The number, if it is `from` to `to`, and those are 32 bits wide.
fn in_range_u32(flag: &'static str, found: u64, from: u64, to: u64) -> Result<u32, OutOfRange> {
    let out = OutOfRange { flag, found, from, to };
    in_range(flag, found, from, to).and_then(|number| u32::try_from(number).map_err(|_| out))
}

impl Test {
    /// Refuses what cannot be: of the command line, and of what a peer asks for.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), PlanError> {
        match (self.operation, self.connection) {
            (Operation::Read, kind @ (Connection::Uc | Connection::Ud)) => {
                return Err(PlanError::ReadUnreliable(kind));
            }
            (Operation::Write, Connection::Ud) => return Err(PlanError::WriteDatagram),
            _ => (),
        }
        in_range("--size", self.size_bytes.into(), 1, MEMORY_MAX_BYTES / 2 - 2 * LINE_BYTES)?;
        in_range("--depth", self.depth.into(), 1, DEPTH_MAX)?;
        in_range("--queue-pairs", self.queue_pairs.into(), 1, QUEUE_PAIRS_MAX)?;
        in_range("--iterations", self.iterations.into(), ITERATIONS_MIN, MESSAGES_MAX)?;
        let &Self { size_bytes, queue_pairs, iterations, .. } = self;
        if self.memory_bytes() > MEMORY_MAX_BYTES {
            let needed_bytes = self.memory_bytes();
            return Err(PlanError::Memory { queue_pairs, size_bytes, needed_bytes });
        }
        if self.messages() > MESSAGES_MAX {
            return Err(PlanError::Messages { queue_pairs, iterations });
        }
        Ok(())
    }

    /// Refuses a datagram of more than one packet.
    ///
    /// # Errors
    /// If it is one.
    pub fn check_mtu(&self, mtu_bytes: u32) -> Result<(), PlanError> {
        if self.connection == Connection::Ud && self.size_bytes > mtu_bytes {
            return Err(PlanError::AboveMtu { size_bytes: self.size_bytes, mtu_bytes });
        }
        Ok(())
    }

    /// Messages over all queue pairs.
    pub fn messages(&self) -> u64 {
        u64::from(self.iterations) * u64::from(self.queue_pairs)
    }

    /// Bytes of one buffer: a message, and for receives a datagram's header.
    fn buffer_bytes(&self) -> u64 {
        (u64::from(self.size_bytes) + DATAGRAM_HEADER_BYTES).next_multiple_of(LINE_BYTES)
    }

    /// Bytes that each side registers: two buffers for each queue pair.
    pub fn memory_bytes(&self) -> u64 {
        2 * self.buffer_bytes() * u64::from(self.queue_pairs)
    }

    /// Where queue pair `lane` sends from and READs into.
    pub fn source_at(&self, lane: u32) -> u64 {
        2 * self.buffer_bytes() * u64::from(lane)
    }

    /// Where queue pair `lane` is sent to, written to and read from.
    pub fn target_at(&self, lane: u32) -> u64 {
        self.source_at(lane) + self.buffer_bytes()
    }

    /// True if its latency is half of a ping-pong, as perftest reports it; that of a READ is a whole round trip.
    pub fn halves(&self) -> bool {
        self.operation != Operation::Read
    }
}

/// What the arguments ask for, in this order.
///
/// # Errors
/// The first thing that is wrong.
pub fn tests(args: &RawArgs) -> Result<Vec<Test>, PlanError> {
    use {Measure::*, Operation::*};
    let wanted: Vec<(Operation, Measure)> = match (args.operation, args.measure) {
        (None, _) => vec![(Read, Latency), (Write, Latency), (Send, Latency), (Read, Bandwidth)],
        (Some(operation), None) => vec![(operation, Latency), (operation, Bandwidth)],
        (Some(operation), Some(measure)) => vec![(operation, measure)],
    };
    let depth = in_range_u32("--depth", args.depth, 1, DEPTH_MAX)?;
    let queue_pairs = in_range_u32("--queue-pairs", args.queue_pairs, 1, QUEUE_PAIRS_MAX)?;
    let iterations = in_range_u32("--iterations", args.iterations, ITERATIONS_MIN, MESSAGES_MAX)?;
    let mut tests = Vec::new();
    for (operation, measure) in wanted {
        for &size in &args.size {
            let one_at_a_time = measure == Latency;
            let test = Test {
                operation,
                connection: args.connection.unwrap_or(Connection::Rc),
                measure,
                size_bytes: in_range_u32("--size", size, 1, MEMORY_MAX_BYTES / 2 - 2 * LINE_BYTES)?,
                depth: if one_at_a_time { 1 } else { depth },
                queue_pairs: if one_at_a_time { 1 } else { queue_pairs },
                iterations,
            };
            test.check()?;
            tests.push(test);
        }
    }
    Ok(tests)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
