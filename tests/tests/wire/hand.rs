//! The clients' machine has a hand in the server's: it asks for something there and hears what came of it. By files of
//! the shared directory, so that it works whatever has befallen the wire.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::link::{self, Link};
use crate::live::server::{Needs, Server, Site};
use crate::live::{PATIENCE, device, procfs};

/// Longer than the other machine is busy with anything.
const SILENCE_MAX: Duration = Duration::from_secs(4 * PATIENCE.as_secs());
const LOOK_EVERY: Duration = Duration::from_millis(5);
const FAILED: &str = "failed";
const END: &str = "end";

/// Runs a test of two machines: `script` on the clients', and on the server's what it asks for.
pub(crate) fn on_two_machines(test: &'static str, script: impl FnOnce(&mut Hand)) {
    match std::env::var("KV_RIG_ROLE").as_deref() {
        Ok("server") => obey_all(test),
        Ok("client") => {
            let mut hand = Hand { post: Post { test, own: "client", other: "server" }, asked: 0 };
            script(&mut hand);
            hand.ask(END);
        }
        role => panic!("run by scripts/guest/tests.sh, in two guests: KV_RIG_ROLE is {role:?}"),
    }
}

/// Files by which the two speak about one test.
struct Post {
    test: &'static str,
    own: &'static str,
    other: &'static str,
}

impl Post {
    fn path(&self, name: &str) -> PathBuf {
        let directory = std::env::var("KV_RIG_OUT").expect("the rig names the shared directory");
        PathBuf::from(directory).join(format!("wire.{}.{name}", self.test))
    }

    /// Says it, in a file that appears with all that is in it.
    fn say(&self, name: &str, what: &str) {
        let unfinished = self.path(&format!("{name}.{}", self.own));
        std::fs::write(&unfinished, what).unwrap();
        std::fs::rename(unfinished, self.path(name)).unwrap();
    }

    fn hear(&self, name: &str) -> String {
        let until = Instant::now() + SILENCE_MAX;
        while Instant::now() < until {
            if let Ok(said) = std::fs::read_to_string(self.path(name)) {
                return said;
            }
            assert!(
                !self.path(&format!("{FAILED}.{}", self.other)).exists(),
                "the {}'s side failed",
                self.other
            );
            thread::sleep(LOOK_EVERY);
        }
        panic!("the {} is silent: no {name}", self.other);
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        if thread::panicking() {
            // The other side waits in vain else, and then fails, too.
            let _ = std::fs::write(self.path(&format!("{FAILED}.{}", self.own)), "");
        }
    }
}

/// What the clients' machine has of the server's.
pub(crate) struct Hand {
    post: Post,
    asked: usize,
}

/// Something that was asked for.
pub(crate) struct Asked(usize);

/// What a server holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) descriptors: u64,
    /// Of the whole machine.
    pub(crate) queue_pairs: u64,
    pub(crate) completion_queues: u64,
    pub(crate) resident_bytes: u64,
}

impl Hand {
    /// Asks for something, and does not wait.
    fn ask(&mut self, what: &str) -> Asked {
        self.asked += 1;
        self.post.say(&format!("ask.{}", self.asked), what);
        Asked(self.asked)
    }

    /// Waits until it is done.
    fn answer(&mut self, asked: Asked) -> Vec<u64> {
        let said = self.post.hear(&format!("done.{}", asked.0));
        said.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    fn ask_and_wait(&mut self, what: &str) -> Vec<u64> {
        let asked = self.ask(what);
        self.answer(asked)
    }

    /// Starts a server there, the first or after one was killed; returns its address and port.
    pub(crate) fn serve(&mut self) -> String {
        let port = self.ask_and_wait("serve")[0];
        format!("{}:{port}", std::env::var("KV_RIG_PEER").expect("the rig names the other machine"))
    }

    /// Ends it as the kernel does when memory runs out.
    pub(crate) fn kill(&mut self) {
        self.ask_and_wait("kill");
    }

    /// As [`Link::lose`], there.
    pub(crate) fn lose(&mut self, percent: u64) -> u64 {
        self.ask_and_wait(&format!("lose {percent}"))[0]
    }

    /// Begins to cut its end of the wire.
    pub(crate) fn cut_for(&mut self, time: Duration) -> Asked {
        self.ask(&format!("cut {}", time.as_millis()))
    }

    /// Waits until the cut is over.
    pub(crate) fn healed(&mut self, asked: Asked) -> link::Cut {
        let said = self.answer(asked);
        let [at_least, at_most, dropped] = said[..] else { panic!("{said:?}") };
        link::Cut {
            at_least: Duration::from_millis(at_least),
            at_most: Duration::from_millis(at_most),
            dropped,
        }
    }

    /// As [`link::repeats`], there.
    pub(crate) fn repeats(&mut self) -> u64 {
        self.ask_and_wait("repeats")[0]
    }

    pub(crate) fn held(&mut self) -> Held {
        let said = self.ask_and_wait("held");
        let [descriptors, queue_pairs, completion_queues, resident_bytes] = said[..] else {
            panic!("{said:?}")
        };
        Held { descriptors, queue_pairs, completion_queues, resident_bytes }
    }
}

/// The server's machine, as far as a test uses it.
struct Machine {
    site: Site,
    server: Option<Server>,
    link: Link,
}

fn obey_all(test: &'static str) {
    let post = Post { test, own: "server", other: "client" };
    let address = std::env::var("KV_RIG_ADDRESS").expect("the rig names this machine's address");
    let mut machine = Machine { site: Site::of_all_hosts(&address), server: None, link: Link::new() };
    for asked in 1.. {
        let what = post.hear(&format!("ask.{asked}"));
        if what == END {
            break;
        }
        let answer: Vec<String> = machine.obey(&what).iter().map(u64::to_string).collect();
        post.say(&format!("done.{asked}"), &answer.join(" "));
    }
}

impl Machine {
    fn server(&self) -> &Server {
        self.server.as_ref().expect("one was started")
    }

    fn obey(&mut self, what: &str) -> Vec<u64> {
        let mut words = what.split(' ');
        let command = words.next().unwrap();
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        match command {
            "serve" => {
                let needs = Needs { memory: "96MiB", workers: 2, ..Needs::default() };
                self.server = Some(self.site.serve_with(needs, &[]));
                return vec![u64::from(self.site.listen.port)];
            }
            "kill" => self.server.as_mut().expect("one was started").kill(),
            "lose" => return vec![self.link.lose(number())],
            "cut" => {
                let cut = self.link.cut_for(Duration::from_millis(number()));
                return vec![cut.at_least.as_millis() as u64, cut.at_most.as_millis() as u64, cut.dropped];
            }
            "repeats" => return vec![link::repeats()],
            "held" => {
                let pid = self.server().pid();
                let objects = device::objects().expect("`rdma resource` counts objects");
                let of = |kind: &str| objects.iter().find(|(name, _)| name == kind).unwrap().1;
                return vec![
                    procfs::descriptors(pid) as u64,
                    of("qp"),
                    of("cq"),
                    procfs::resident_bytes(pid),
                ];
            }
            _ => panic!("asked for {what:?}"),
        }
        Vec::new()
    }
}
