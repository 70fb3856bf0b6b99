//! A TCP connection that never waits: bytes that came and were not looked at, bytes that the socket has no room for.
//!
//! Both are bounded by whoever uses it: it receives only what it was asked to, and says how much is unsent. Whatever the
//! socket says about the peer's end is kept, and said again to everybody who asks later.

use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::frame::{FrameError, HEAD_BYTES, Head, Sender, WHOLE_FRAME_MAX_BYTES};

/// Bytes received at once, at first; doubles when it was all used.
const INBOX_MIN_BYTES: usize = 4 << 10;
/// The same at most: a whole frame of the largest, and many small ones.
const INBOX_MAX_BYTES: usize = 64 << 10;
/// An empty buffer of outgoing bytes is given back to the system if it has become larger than this.
const OUTBOX_KEPT_BYTES: usize = 64 << 10;
/// Bytes that are read and dropped when a connection is closed because of what came over it.
const DROPPED_MAX_BYTES: usize = 256 << 10;

const _: () = assert!(WHOLE_FRAME_MAX_BYTES <= INBOX_MAX_BYTES);

/// Why nothing comes or goes any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// The peer closed the connection, or its host did when the process died.
    #[error("the peer closed the connection")]
    Closed,
    /// The system gave the connection up.
    #[error("the connection is lost: {}", std::io::Error::from(*.0))]
    Lost(Errno),
}

/// A frame that is there from its first byte to its last.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// What it is.
    pub head: Head,
    /// Its body.
    pub body: &'a [u8],
}

/// A connection after the hellos.
pub struct Stream {
    socket: TcpStream,
    inbox: Vec<u8>,
    /// `inbox[start..end]` was received and not taken.
    start: usize,
    end: usize,
    outbox: Vec<u8>,
    /// So many bytes of it are sent.
    sent: usize,
    gone: Option<Gone>,
    is_unwritable: bool,
}

impl Stream {
    /// The connection whose hellos are done. The socket does not block any more from now on.
    ///
    /// # Errors
    /// What the system said.
    pub fn new(socket: TcpStream) -> std::io::Result<Stream> {
        socket.set_nonblocking(true)?;
        super::socket::tune(&socket)?;
        Ok(Stream {
            socket,
            inbox: vec![0; INBOX_MIN_BYTES],
            start: 0,
            end: 0,
            outbox: Vec::new(),
            sent: 0,
            gone: None,
            is_unwritable: false,
        })
    }

    /// The head of the next frame, if it has come. Its bytes stay.
    ///
    /// # Errors
    /// As [`Head::decode`].
    pub fn head(&self, sender: Sender) -> Result<Option<Head>, FrameError> {
        Head::decode(self.received(), sender)
    }

    /// The frame behind `head`, if it has come whole. Its bytes stay; [`Stream::take`] takes them.
    pub fn frame(&self, head: Head) -> Option<Frame<'_>> {
        let body = self.received().get(HEAD_BYTES..HEAD_BYTES + head.body_bytes)?;
        Some(Frame { head, body })
    }

    /// What was received and not taken.
    pub fn received(&self) -> &[u8] {
        &self.inbox[self.start..self.end]
    }

    /// Takes the first bytes of what was received.
    ///
    /// # Panics
    /// Panics if there are fewer.
    pub fn take(&mut self, bytes: usize) {
        assert!(bytes <= self.end - self.start, "nobody takes what has not come");
        self.start += bytes;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Receives once. Returns the number of bytes, 0 if nothing has come or frames have to be taken first, and whether there
    /// may be more now.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn fill(&mut self) -> Result<(usize, bool), Gone> {
        self.make_room();
        let room = self.inbox.len() - self.end;
        if room == 0 {
            return Ok((0, true));
        }
        let received = self.receive(|socket, inbox, end| recv_some(socket, &mut inbox[end..]))?;
        self.end += received;
        Ok((received, received == room))
    }

    /// Receives once, into the caller's memory instead of this buffer, which is empty.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn fill_directly(&mut self, out: &mut [u8]) -> Result<usize, Gone> {
        assert!(self.received().is_empty(), "what came first has to be taken first");
        self.receive(|socket, _, _| recv_some(socket, out))
    }

    fn receive(
        &mut self,
        receive: impl FnOnce(&TcpStream, &mut [u8], usize) -> Result<Option<usize>, Gone>,
    ) -> Result<usize, Gone> {
        if let Some(gone) = self.gone {
            return Err(gone);
        }
        match receive(&self.socket, &mut self.inbox, self.end) {
            Ok(received) => Ok(received.unwrap_or(0)),
            Err(gone) => {
                self.gone = Some(gone);
                Err(gone)
            }
        }
    }

    /// Makes room behind what was received, unless whole frames wait there to be taken.
    fn make_room(&mut self) {
        if self.start > 0 && self.end == self.inbox.len() {
            self.inbox.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.inbox.len() && self.end < INBOX_MAX_BYTES {
            self.inbox.resize(self.inbox.len() * 2, 0);
        }
    }

    /// Appends bytes to what is to be sent.
    pub fn push(&mut self, bytes: &[u8]) {
        // Nobody will read them.
        if !self.is_unwritable {
            self.outbox.extend_from_slice(bytes);
        }
    }

    /// Bytes that wait for room in the socket.
    pub fn unsent_bytes(&self) -> usize {
        self.outbox.len() - self.sent
    }

    /// Sends what the socket takes now. Returns the number of bytes.
    ///
    /// # Errors
    /// [`Gone`] if nothing can be sent any more; what the peer sent before may still be there.
    pub fn flush(&mut self) -> Result<usize, Gone> {
        let before = self.sent;
        while self.unsent_bytes() > 0 {
            match send(&self.socket, &self.outbox[self.sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    self.is_unwritable = true;
                    (self.outbox, self.sent) = (Vec::new(), 0);
                    return Err(gone(errno));
                }
            }
        }
        let sent = self.sent - before;
        if self.unsent_bytes() == 0 {
            self.sent = 0;
            self.outbox.clear();
            if self.outbox.capacity() > OUTBOX_KEPT_BYTES {
                self.outbox = Vec::new();
            }
        } else if self.sent > self.outbox.len() / 2 {
            self.outbox.drain(..self.sent);
            self.sent = 0;
        }
        Ok(sent)
    }

    /// Gives back to the system what a connection at rest does not need.
    pub fn rest(&mut self) {
        if self.received().is_empty() && self.inbox.len() > INBOX_MIN_BYTES {
            self.inbox = vec![0; INBOX_MIN_BYTES];
        }
    }

    /// Waits until something came, or there is room for what is unsent, or `timeout` has passed.
    pub fn wait(&self, timeout: Duration) {
        // A time beyond what the kernel can count is forever.
        let timeout = Timespec::try_from(timeout).ok();
        let room = if self.unsent_bytes() > 0 { PollFlags::OUT } else { PollFlags::empty() };
        // Whatever it says: the socket says it again.
        let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN | room)], timeout.as_ref());
    }

    /// Says that nothing more will be sent, and drops what came: a socket that is closed with unread bytes takes back
    /// what it sent last, which is the reason why it is closed.
    pub fn end(&mut self) {
        let _ = self.flush();
        let _ = self.socket.shutdown(Shutdown::Write);
        drop_received(&self.socket);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reads what has come and drops it, up to a limit.
pub fn drop_received(socket: &TcpStream) {
    let mut dropped = [0; 4 << 10];
    for _ in 0..DROPPED_MAX_BYTES / dropped.len() {
        if !matches!(recv_some(socket, &mut dropped), Ok(Some(_))) {
            return;
        }
    }
}

/// `None` if nothing has come.
fn recv_some(socket: &TcpStream, out: &mut [u8]) -> Result<Option<usize>, Gone> {
    loop {
        match recv(socket, &mut *out, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(Gone::Closed),
            Ok((received, _)) => return Ok(Some(received)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(gone(errno)),
        }
    }
}

fn gone(errno: Errno) -> Gone {
    match errno {
        Errno::CONNRESET | Errno::PIPE => Gone::Closed,
        errno => Gone::Lost(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::super::frame::Kind;
    use super::*;

    fn pair() -> (Stream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Stream::new(listener.accept().unwrap().0).unwrap(), peer)
    }

    fn fill(stream: &mut Stream) -> usize {
        stream.wait(Duration::from_secs(10));
        stream.fill().unwrap().0
    }

    #[test]
    fn frames_come_whole_however_they_were_cut() {
        let (mut stream, mut peer) = pair();
        let frames: Vec<Vec<u8>> = (0..50u8)
            .map(|i| {
                let body = vec![i; i as usize * 300];
                [&Head { kind: Kind::Request, body_bytes: body.len() }.encode()[..], &body].concat()
            })
            .collect();
        let writer = std::thread::spawn({
            let all = frames.concat();
            move || {
                for piece in all.chunks(777) {
                    peer.write_all(piece).unwrap();
                }
                peer
            }
        });
        for frame in &frames {
            let head = loop {
                match stream.head(Sender::Client).unwrap() {
                    Some(head) if stream.frame(head).is_some() => break head,
                    _ => assert!(fill(&mut stream) > 0),
                }
            };
            assert_eq!(stream.frame(head).unwrap().body, &frame[HEAD_BYTES..]);
            stream.take(frame.len());
        }
        drop(writer.join().unwrap());
        stream.rest();
        stream.wait(Duration::from_secs(10));
        assert_eq!(stream.fill(), Err(Gone::Closed));
        assert_eq!(stream.fill(), Err(Gone::Closed), "it is said again");
        assert_eq!(stream.fill_directly(&mut [0]), Err(Gone::Closed));
    }

    #[test]
    fn what_the_socket_has_no_room_for_stays_and_goes_in_order() {
        let (mut stream, mut peer) = pair();
        let all: Vec<u8> = (0..20_000_000u32).map(|i| (i % 251) as u8).collect();
        let mut pushed = 0;
        while stream.unsent_bytes() == 0 {
            let piece = &all[pushed..pushed + 100_000];
            stream.push(piece);
            pushed += piece.len();
            stream.flush().unwrap();
        }
        assert_eq!(stream.flush(), Ok(0), "nobody reads");
        let reader = std::thread::spawn(move || {
            let mut found = vec![0; pushed];
            peer.read_exact(&mut found).unwrap();
            found
        });
        while stream.unsent_bytes() > 0 {
            stream.wait(Duration::from_secs(10));
            stream.flush().unwrap();
        }
        assert!(reader.join().unwrap() == all[..pushed]);
    }

    #[test]
    fn the_last_words_of_a_connection_arrive_although_the_peer_went_on_talking() {
        let (mut stream, mut peer) = pair();
        peer.write_all(&[7; 50_000]).unwrap();
        stream.push(b"enough");
        stream.end();
        drop(stream);
        let mut found = Vec::new();
        peer.read_to_end(&mut found).unwrap();
        assert_eq!(found, b"enough");
    }

    #[test]
    fn a_peer_that_does_not_read_any_more_takes_no_memory() {
        let (mut stream, peer) = pair();
        drop(peer);
        stream.push(b"first");
        while stream.flush().is_ok() {
            stream.push(b"x");
        }
        stream.push(b"nobody reads this");
        assert_eq!(stream.unsent_bytes(), 0);
    }
}
