//! The first message each way: bytes with a length before them, and descriptors.
//!
//! ```text
//!   length:32, little-endian | that many bytes, 1 to 4096        descriptors ride on the first byte (SCM_RIGHTS)
//! ```
//!
//! Whoever connects may be anybody and send anything, one byte at a time or never. So receiving and sending are small
//! state machines that are fed when the socket is ready, never read beyond their message, hold no more than one message
//! and [`DESCRIPTORS_MAX`] descriptors, and close what they received if anything is wrong.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, take};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most bytes of a hello, its length not counted.
pub const HELLO_MAX_BYTES: usize = 4096;

/// Most descriptors that a hello can carry.
pub const DESCRIPTORS_MAX: usize = 8;

const PREFIX_BYTES: usize = 4;

/// What was received.
#[derive(Debug)]
pub struct Hello {
    /// The message.
    pub bytes: Vec<u8>,
    /// The descriptors, in the order in which they were sent. They are closed on exec.
    pub descriptors: Vec<OwnedFd>,
}

/// Why there is no hello.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// The peer closed the connection first.
    #[error("the peer closed the connection after {found_bytes} bytes of its hello")]
    Closed {
        /// Bytes received until then.
        found_bytes: usize,
    },
    /// A length that no hello has.
    #[error(
        "a hello of {found_bytes} bytes: 1 to {HELLO_MAX_BYTES} are possible; does the peer speak this protocol?"
    )]
    Length {
        /// The length found.
        found_bytes: usize,
    },
    /// More descriptors than expected.
    #[error(
        "the peer sent more than the {limit} descriptors expected, or this process has none free (see `ulimit -n`)"
    )]
    TooManyDescriptors {
        /// Most descriptors expected.
        limit: usize,
    },
    /// The deadline passed.
    #[error("no complete hello by the deadline; is the peer stopped?")]
    Timeout,
    /// The kernel refused.
    #[error("hello: {0}")]
    Os(#[from] io::Error),
}

/// A hello on its way in.
pub struct PendingHello {
    prefix: [u8; PREFIX_BYTES],
    body: Vec<u8>,
    /// Bytes received, prefix included.
    received: usize,
    descriptors: Vec<OwnedFd>,
    descriptors_limit: usize,
}

impl PendingHello {
    /// A hello with at most `descriptors_limit` descriptors, itself at most [`DESCRIPTORS_MAX`].
    pub fn new(descriptors_limit: usize) -> PendingHello {
        PendingHello {
            prefix: [0; PREFIX_BYTES],
            body: Vec::new(),
            received: 0,
            descriptors: Vec::new(),
            descriptors_limit: descriptors_limit.min(DESCRIPTORS_MAX),
        }
    }

    /// Receives what is there, without waiting. `Some` when the hello is complete; what follows it stays in the socket.
    ///
    /// # Errors
    /// [`HelloError`]; the descriptors received so far are closed, and the connection is of no more use.
    pub fn feed(&mut self, socket: BorrowedFd<'_>) -> Result<Option<Hello>, HelloError> {
        let fed = self.receive(socket);
        if fed.is_err() {
            self.descriptors.clear();
        }
        fed
    }

    fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<Option<Hello>, HelloError> {
        while self.received < PREFIX_BYTES + self.body.len() || self.body.is_empty() {
            match self.receive_some(socket) {
                Ok(0) => return Err(HelloError::Closed { found_bytes: self.received }),
                Ok(count) => self.received += count,
                Err(HelloError::Os(error)) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            if self.received == PREFIX_BYTES {
                self.body = vec![0; parse_length(self.prefix)?];
            }
        }
        self.received = 0;
        Ok(Some(Hello { bytes: take(&mut self.body), descriptors: take(&mut self.descriptors) }))
    }

    /// Receives once, into the prefix or the body.
    fn receive_some(&mut self, socket: BorrowedFd<'_>) -> Result<usize, HelloError> {
        let target = match self.received.checked_sub(PREFIX_BYTES) {
            Some(received) => &mut self.body[received..],
            None => &mut self.prefix[self.received..],
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let message =
            retry_interrupted(|| recvmsg(socket, &mut [IoSliceMut::new(target)], &mut control, flags))
                .map_err(io::Error::from)?;
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = part {
                self.descriptors.extend(descriptors);
            }
        }
        if message.flags.contains(ReturnFlags::CTRUNC) || self.descriptors.len() > self.descriptors_limit {
            return Err(HelloError::TooManyDescriptors { limit: self.descriptors_limit });
        }
        Ok(message.bytes)
    }
}

/// A hello on its way out.
pub struct OutgoingHello {
    frame: Vec<u8>,
    sent: usize,
}

impl OutgoingHello {
    /// The hello `bytes`.
    ///
    /// # Errors
    /// [`HelloError::Length`].
    pub fn new(bytes: &[u8]) -> Result<OutgoingHello, HelloError> {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
        parse_length(length)?;
        Ok(OutgoingHello { frame: [&length, bytes].concat(), sent: 0 })
    }

    /// Sends what the socket takes, without waiting. True when all is sent. The descriptors, the same in each call, go
    /// with the first byte.
    ///
    /// # Errors
    /// [`HelloError::Closed`] if the peer is gone, [`HelloError::TooManyDescriptors`], or what the kernel said.
    pub fn feed(
        &mut self,
        socket: BorrowedFd<'_>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<bool, HelloError> {
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(HelloError::TooManyDescriptors { limit: DESCRIPTORS_MAX });
        }
        while self.sent < self.frame.len() {
            let with_first_byte = if self.sent == 0 { descriptors } else { &[] };
            match send_some(socket, &self.frame[self.sent..], with_first_byte) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(HelloError::Closed { found_bytes: 0 }),
                Err(errno) => return Err(HelloError::Os(errno.into())),
            }
        }
        Ok(true)
    }
}

fn send_some(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "the space is for DESCRIPTORS_MAX, and there are not more");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    retry_interrupted(|| sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags))
}

/// Sends a hello, waiting for room in the socket until `deadline`.
///
/// # Errors
/// As [`OutgoingHello::feed`], and [`HelloError::Timeout`].
pub fn send_hello(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    deadline: Instant,
) -> Result<(), HelloError> {
    let mut hello = OutgoingHello::new(bytes)?;
    while !hello.feed(socket.as_fd(), descriptors)? {
        wait_for(socket.as_fd(), PollFlags::OUT, deadline)?;
    }
    Ok(())
}

/// Receives a hello with at most `descriptors_limit` descriptors, waiting for it until `deadline`.
///
/// # Errors
/// As [`PendingHello::feed`], and [`HelloError::Timeout`].
pub fn receive_hello(
    socket: impl AsFd,
    descriptors_limit: usize,
    deadline: Instant,
) -> Result<Hello, HelloError> {
    let mut pending = PendingHello::new(descriptors_limit);
    loop {
        if let Some(hello) = pending.feed(socket.as_fd())? {
            return Ok(hello);
        }
        wait_for(socket.as_fd(), PollFlags::IN, deadline)?;
    }
}

/// Waits until the socket is ready, or fails at the deadline.
fn wait_for(socket: BorrowedFd<'_>, ready: PollFlags, deadline: Instant) -> Result<(), HelloError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(HelloError::Timeout);
        }
        // A deadline beyond what the kernel can count is no deadline.
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::from_borrowed_fd(socket, ready)], timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(HelloError::Os(errno.into())),
        }
    }
}

/// The length that a prefix announces. Foreign protocols mostly announce a huge one.
fn parse_length(prefix: [u8; PREFIX_BYTES]) -> Result<usize, HelloError> {
    let found_bytes = u32::from_le_bytes(prefix) as usize;
    if found_bytes == 0 || found_bytes > HELLO_MAX_BYTES {
        return Err(HelloError::Length { found_bytes });
    }
    Ok(found_bytes)
}

fn retry_interrupted<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
