//! Logs that cannot be written, or are not read: the server goes on without them.

mod support;

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use kv_common::hello::{Answer, HelloRefusal};
use kv_common::wire::Op;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::process::Signal;
use support::{Peer, Server, Site, knock, wait_for};

fn start(site: &Site, stderr: impl Into<Stdio>) -> Server {
    let flags = site.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Server::start_logging_to(stderr, site.command(&flags), &site.path("log"))
}

/// Somebody whom the server turns away, and writes a line about.
fn provoke_a_line(site: &Site) -> UnixStream {
    let (stream, answer, _) = knock(&site.socket(), b"garbage");
    assert_eq!(answer, Answer::Refused(HelloRefusal::Garbage));
    stream
}

fn serves_and_ends_in_order(site: &Site, mut server: Server) {
    let mut peer = Peer::connect(&site.socket());
    peer.call(Op::Put, b"key", b"value");
    provoke_a_line(site);
    peer.call(Op::Get, b"key", b"");
    drop(peer);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    assert!(!site.socket().exists());
}

fn is_ready(pipe: impl std::os::fd::AsFd, flags: PollFlags) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&pipe, flags)], Some(&at_once)).unwrap() > 0
}

/// A pipe that has no room, and the bytes in it.
fn full_pipe() -> (PipeReader, PipeWriter, usize) {
    let (reader, mut writer) = pipe().unwrap();
    let mut filled_bytes = 0;
    while is_ready(&writer, PollFlags::OUT) {
        // A pipe that is ready takes PIPE_BUF bytes.
        writer.write_all(&[b'x'; 4096]).unwrap();
        filled_bytes += 4096;
    }
    (reader, writer, filled_bytes)
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let site = Site::new();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let server = start(&site, full);
    serves_and_ends_in_order(&site, server);
}

#[test]
fn a_log_whose_reader_ended_ends_nothing() {
    let site = Site::new();
    let (reader, writer) = pipe().unwrap();
    let server = start(&site, writer);
    drop(reader);
    serves_and_ends_in_order(&site, server);
}

#[test]
fn a_log_whose_reader_stands_still_delays_nothing() {
    let site = Site::new();
    let (reader, writer, _) = full_pipe();
    let server = start(&site, writer);
    serves_and_ends_in_order(&site, server);
    drop(reader);
}

#[test]
fn a_reader_that_goes_on_is_told_how_many_lines_it_missed() {
    // How many lines a server writes until it is ready: one that is read tells.
    let site = Site::new();
    let lines = site.serve(&[]).log().lines().count();
    let site = Site::new();
    let (mut reader, writer, filled_bytes) = full_pipe();
    let server = start(&site, writer.try_clone().unwrap());
    assert!(!fcntl_getfl(&writer).unwrap().contains(OFlags::NONBLOCK), "others share this pipe");
    reader.read_exact(&mut vec![0; filled_bytes]).unwrap();
    provoke_a_line(&site);
    let mut log = Vec::new();
    let log = wait_for("the line after those dropped", || {
        if is_ready(&reader, PollFlags::IN) {
            let mut some = [0; 4096];
            let count = reader.read(&mut some).unwrap();
            log.extend_from_slice(&some[..count]);
        }
        let text = String::from_utf8(log.clone()).unwrap();
        text.contains("turned a peer away").then_some(text)
    });
    let first = log.lines().next().unwrap();
    assert!(first.contains("log lines were dropped"), "{log}");
    assert!(first.ends_with(&format!(" dropped={lines}")), "{lines} lines: {log}");
    drop(server);
}

#[test]
fn a_configuration_that_cannot_be_printed_is_an_error_with_code_3() {
    let site = Site::new();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let output = site.command(&["--print-config"]).stdout(full()).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("cannot print the configuration") && error.contains("No space left"), "{error}");
    // Where no error can be said, the codes are the same.
    let silent = |args: &[&str]| site.command(args).stdout(full()).stderr(full()).status().unwrap().code();
    assert_eq!(silent(&["--print-config"]), Some(3));
    assert_eq!(silent(&["--memory", "lots"]), Some(2));
}
