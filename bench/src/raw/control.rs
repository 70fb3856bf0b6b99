//! The control connection: messages, each within its time.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::{BetweenError, RawError};
use super::wire::{Ends, HEAD_BYTES, Message, decode_head};

/// How long a side takes at most to make and connect its queue pairs, or to take a message.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// How long a side that does not listen yet is tried again, and how often.
const REFUSED_LIMIT: Duration = Duration::from_secs(5);
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// To the other side: of another process, or of this one.
pub(super) enum Control {
    Tcp(TcpStream),
    Local(UnixStream),
}

impl Control {
    /// Connects to `address`. The two sides are started by hand or by two scripts: one that refuses yet may be about to listen.
    pub(super) fn connect(address: &str) -> Result<Self, RawError> {
        let until = Instant::now() + REFUSED_LIMIT;
        loop {
            match Self::connect_once(address) {
                Err(RawError::Between(BetweenError::Connect { source, .. }))
                    if source.kind() == ErrorKind::ConnectionRefused && Instant::now() < until =>
                {
                    std::thread::sleep(REFUSED_PAUSE);
                }
                done => return done,
            }
        }
    }

    fn connect_once(address: &str) -> Result<Self, RawError> {
        let error = |source| BetweenError::Connect { address: address.into(), source };
        let addresses = address.to_socket_addrs().map_err(error)?;
        let mut last = std::io::Error::new(ErrorKind::NotFound, "the name has no address");
        for one in addresses {
            match TcpStream::connect_timeout(&one, ANSWER_LIMIT) {
                Ok(stream) => return Self::over(stream).map_err(|source| error(source).into()),
                Err(error) => last = error,
            }
        }
        Err(error(last).into())
    }

    /// Both ends of a connection within this process.
    pub(super) fn pair() -> Result<(Self, Self), RawError> {
        let (one, other) = UnixStream::pair().map_err(BetweenError::Control)?;
        for end in [&one, &other] {
            end.set_write_timeout(Some(ANSWER_LIMIT)).map_err(BetweenError::Control)?;
        }
        Ok((Self::Local(one), Self::Local(other)))
    }

    pub(super) fn over(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(ANSWER_LIMIT))?;
        Ok(Self::Tcp(stream))
    }

    /// The address of this side that reaches the other.
    pub(super) fn local_ip(&self) -> Option<std::net::IpAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr().ok().map(|address| address.ip()),
            Self::Local(_) => None,
        }
    }

    /// Sends `message`.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), RawError> {
        let frame = message.to_frame();
        let sent = match self {
            Self::Tcp(stream) => stream.write_all(&frame),
            Self::Local(stream) => stream.write_all(&frame),
        };
        sent.map_err(|error| lost(error).into())
    }

    /// The next message, which must come, whole, within `limit`. A refusal is an error.
    pub(super) fn receive(&mut self, awaited: &'static str, limit: Duration) -> Result<Message, RawError> {
        let until = Instant::now() + limit;
        let silent = || BetweenError::Silent { awaited, waited_s: limit.as_secs() };
        let mut head = [0; HEAD_BYTES];
        self.fill(&mut head, until, silent)?;
        let (kind, len_bytes) = decode_head(&head)?;
        let mut body = vec![0; len_bytes];
        self.fill(&mut body, until, silent)?;
        match Message::decode(kind, &body)? {
            // A peer's text goes to a terminal: nothing but characters that are shown.
            Message::Refused(text) => Err(RawError::Refused(text.replace(char::is_control, " "))),
            message => Ok(message),
        }
    }

    /// The other side's ends.
    pub(super) fn receive_ready(&mut self) -> Result<Ends, RawError> {
        match self.receive("ready", ANSWER_LIMIT)? {
            Message::Ready(ends) => Ok(ends),
            other => Err(unexpected("ready", &other)),
        }
    }

    /// That the other side is connected.
    pub(super) fn receive_connected(&mut self) -> Result<(), RawError> {
        match self.receive("connected", ANSWER_LIMIT)? {
            Message::Connected => Ok(()),
            other => Err(unexpected("connected", &other)),
        }
    }

    /// Messages that the other side sent, or got.
    pub(super) fn receive_done(&mut self, limit: Duration) -> Result<u64, RawError> {
        match self.receive("done", limit)? {
            Message::Done(messages) => Ok(messages),
            other => Err(unexpected("done", &other)),
        }
    }

    /// True if something has come, be it the end.
    pub(super) fn has_message(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Local(stream) => stream.as_fd(),
        }
    }

    fn fill(
        &mut self,
        mut room: &mut [u8],
        until: Instant,
        silent: impl Fn() -> BetweenError,
    ) -> Result<(), BetweenError> {
        while !room.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(silent());
            }
            let read = match self {
                Self::Tcp(stream) => stream.set_read_timeout(Some(left)).and_then(|()| stream.read(room)),
                Self::Local(stream) => stream.set_read_timeout(Some(left)).and_then(|()| stream.read(room)),
            };
            match read {
                Ok(0) => return Err(BetweenError::Closed),
                Ok(len) => room = &mut room[len..],
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                // The loop sees whether the time is over.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => (),
                Err(error) => return Err(lost(error)),
            }
        }
        Ok(())
    }
}

/// Whoever ended with unread bytes resets the connection: that is an end too.
fn lost(error: std::io::Error) -> BetweenError {
    match error.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted => {
            BetweenError::Closed
        }
        _ => BetweenError::Control(error),
    }
}

pub(super) fn unexpected(awaited: &'static str, found: &Message) -> RawError {
    BetweenError::Unexpected { awaited, found: found.name() }.into()
}

/// Listens on `address`.
pub(super) fn listen(address: &str) -> Result<TcpListener, RawError> {
    TcpListener::bind(address)
        .map_err(|source| BetweenError::Listen { address: address.into(), source }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_cross_and_the_end_is_told() {
        let (mut one, mut other) = Control::pair().unwrap();
        assert!(!other.has_message());
        one.send(&Message::Done(7)).unwrap();
        one.send(&Message::Refused("no\u{1b}[2Jmemory".into())).unwrap();
        assert!(other.has_message());
        assert_eq!(other.receive_done(ANSWER_LIMIT).unwrap(), 7);
        let refused = other.receive_ready().unwrap_err();
        assert!(matches!(&refused, RawError::Refused(text) if text == "no [2Jmemory"), "{refused}");
        one.send(&Message::Bye).unwrap();
        let error = other.receive_connected().unwrap_err().to_string();
        assert_eq!(error, "the other side sent bye where connected should come");
        drop(one);
        let error = other.receive_connected().unwrap_err();
        assert!(matches!(error, RawError::Between(BetweenError::Closed)), "{error}");
    }

    #[test]
    fn whoever_sends_half_a_message_is_waited_for_a_bounded_time() {
        let (one, mut other) = Control::pair().unwrap();
        let Control::Local(mut stream) = one else { unreachable!("a pair is local") };
        stream.write_all(&Message::Done(7).to_frame()[..15]).unwrap();
        let error = other.receive("done", Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, RawError::Between(BetweenError::Silent { awaited: "done", .. })), "{error}");
    }

    #[test]
    fn another_program_is_told_apart() {
        let (one, mut other) = Control::pair().unwrap();
        let Control::Local(mut stream) = one else { unreachable!("a pair is local") };
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let error = other.receive("setup", ANSWER_LIMIT).unwrap_err().to_string();
        assert!(error.contains("no `kv-bench raw` of this version"), "{error}");
    }
}
