//! A client by TCP made by hand, which can do what the library never does.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use kv_common::endpoint::Address;
use kv_common::hello::{Answer, Hello, Wanted, Welcome};
use kv_common::transport::handshake::{receive_hello, send_hello};
use kv_common::transport::tcp::socket::connect;
use kv_common::wire::{Op, Request, Value};

use super::{PATIENCE, deadline};

/// Kinds of frames, as docs/layout.md numbers them.
pub(crate) const READ: u32 = 1;
pub(crate) const STAGE: u32 = 2;
pub(crate) const REQUEST: u32 = 3;
pub(crate) const READ_REPLY: u32 = 4;
pub(crate) const REPLY: u32 = 5;

/// A client that was welcomed.
pub(crate) struct TcpPeer {
    pub(crate) welcome: Welcome,
    pub(crate) stream: TcpStream,
    seq: u64,
}

/// A frame's bytes.
pub(crate) fn frame(kind: u32, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], &kind.to_le_bytes(), body].concat()
}

/// Numbers as a body has them.
pub(crate) fn words(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

impl TcpPeer {
    pub(crate) fn connect(address: &Address) -> TcpPeer {
        let stream = connect(address, deadline()).unwrap();
        send_hello(&stream, &Hello::ours(Wanted::Tcp).encode(), &[], deadline()).unwrap();
        let answer = receive_hello(&stream, 0, deadline()).unwrap();
        let Answer::Welcome(welcome) = Answer::decode(&answer.bytes).unwrap() else {
            panic!("not welcome: {:?}", answer.bytes)
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        TcpPeer { welcome, stream, seq: 0 }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        // A server that has closed the connection shows when its last words are received.
        let _ = self.stream.write_all(bytes);
    }

    /// A request's frame, with the next sequence number.
    pub(crate) fn request(&mut self, op: Op, key: &[u8], value: Value<'_>) -> Vec<u8> {
        self.seq += 1;
        let request = Request::new(self.seq, self.welcome.session, op, key, value);
        frame(REQUEST, &request.parts(&request.header()).concat())
    }

    /// The next frame's kind and body; `None` if the server has closed the connection.
    pub(crate) fn receive(&mut self) -> Option<(u32, Vec<u8>)> {
        let mut head = [0; 8];
        match self.stream.read_exact(&mut head) {
            Ok(()) => {}
            Err(error)
                if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) =>
            {
                return None;
            }
            Err(error) => panic!("{error}"),
        }
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let mut body = vec![0; number(0) as usize];
        self.stream.read_exact(&mut body).unwrap();
        Some((number(4), body))
    }
}
