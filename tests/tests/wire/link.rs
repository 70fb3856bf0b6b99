//! This machine's end of the wire: what it sends can be lost. (Both ends together make a link that loses or is cut.)

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::live::device;

/// What the device counts when packets were lost and it, or its peer, had to send again.
const REPEATS: [&str; 4] = ["duplicate_request", "out_of_seq_request", "rcvd_seq_err", "completer_retry_err"];

/// The end of the wire. It is whole again when this is dropped.
pub(crate) struct Link {
    interface: String,
    /// A `tc` that is told line by line: starting one would take longer than a short cut.
    tc: Child,
    said: BufReader<ChildStdout>,
}

/// A cut that is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// Nothing was sent for this long.
    pub(crate) at_least: Duration,
    /// And no longer than this.
    pub(crate) at_most: Duration,
    /// Packets that were not sent.
    pub(crate) dropped: u64,
}

impl Link {
    pub(crate) fn new() -> Link {
        let interface = std::env::var("KV_RIG_NETDEV").expect("the rig names the interface");
        let mut command = Command::new("tc");
        command.args(["-s", "-force", "-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut tc = command.spawn().expect("tc can be run");
        let said = BufReader::new(tc.stdout.take().unwrap());
        let mut link = Link { interface, tc, said };
        link.lose(0);
        link
    }

    /// From now on this share of what is sent is lost. Returns the packets lost so far.
    pub(crate) fn lose(&mut self, percent: u64) -> u64 {
        let device = &self.interface;
        let told =
            format!("qdisc replace dev {device} root netem loss {percent}%\nqdisc show dev {device}\n");
        let stdin = self.tc.stdin.as_mut().unwrap();
        stdin.write_all(told.as_bytes()).unwrap();
        stdin.flush().unwrap();
        self.hear()
    }

    /// Sends nothing for this long, or, on a busy machine, somewhat longer.
    pub(crate) fn cut_for(&mut self, time: Duration) -> Cut {
        let began = Instant::now();
        let before = self.lose(100);
        let is_cut = Instant::now();
        thread::sleep(time);
        let at_least = is_cut.elapsed();
        let dropped = self.lose(0) - before;
        Cut { at_least, at_most: began.elapsed(), dropped }
    }

    /// Reads what `tc` shows of the interface: its first line is what loses, its last one is about what waits.
    fn hear(&mut self) -> u64 {
        let (mut is_netem, mut dropped) = (false, None);
        let mut line = String::new();
        while self.said.read_line(&mut line).unwrap() > 0 {
            is_netem |= line.contains("netem");
            if let Some((_, after)) = line.split_once("dropped ") {
                dropped = after.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().ok();
            }
            if line.contains("backlog") {
                break;
            }
            line.clear();
        }
        assert!(is_netem, "tc did as it was told");
        dropped.expect("tc counts what is dropped")
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The interface's own queue comes back.
        let _ = writeln!(self.tc.stdin.take().unwrap(), "qdisc delete dev {} root", self.interface);
        let _ = self.tc.wait();
    }
}

/// Packets that this machine's device has seen twice, out of their order, or sent again, since it is there.
pub(crate) fn repeats() -> u64 {
    REPEATS.iter().map(|name| device::counter(name).expect("soft-RoCE counts this")).sum()
}
