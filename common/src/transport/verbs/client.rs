//! The client's connection: READs and SENDs on one queue pair.
//!
//! A READ ends in registered memory of the connection and is copied from there into the driver's buffer when it completes:
//! that is some nanoseconds per line, and it makes the buffers independent of the device. Registering them would take
//! microseconds each. A READ into memory that the user registered once ends there, without a copy.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::work::{Read, Work};
use crate::region::Words;
use crate::transport::shm::spin::Spin;
use crate::transport::{Broken, Event, ReadBuffer, ReadNow, SendError, Transport, UserMemory};
use crate::verbs::cm::CmConnection;
use crate::verbs::{
    AsyncEvent, CompletionChannel, CompletionQueue, Completions, Context, LocalPort, MemoryRegion,
    QueuePairEvent, RemoteReadable,
};

/// Completions that one poll takes.
pub(super) const COMPLETIONS_PER_POLL: usize = 32;
/// Polls that find nothing before the control connection is looked at, which takes a system call.
const EMPTY_POLLS_PER_LOOK: u64 = 1024;
/// Looks in vain after which each lets others run first: a software device does its work in threads of the kernel, which
/// get no processor while all of them look. An adapter's READ is back before.
const LOOKS_BEFORE_YIELD: u32 = 128;
/// How long a broken queue pair may take to give everything back; then it is destroyed, which ends what it does.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// Longer than a device tries a READ.
const RAW_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the end of the connection is looked for during a sleep, were an event lost.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// A client's connection by RDMA.
pub struct VerbsTransport {
    work: Work,
    queue: Arc<CompletionQueue>,
    channel: Arc<CompletionChannel>,
    room: Completions,
    context: Arc<Context>,
    /// What it is, for people.
    port: LocalPort,
    staging: MemoryRegion<RemoteReadable>,
    control: TcpStream,
    /// Dropped after the queue pair, which is in `work`.
    _cm: Option<CmConnection>,
    broken: Option<Broken>,
    spin: Spin,
    epoch: Instant,
    empty_polls: u64,
}

/// What a connection is made of.
pub(super) struct Parts {
    pub(super) work: Work,
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) channel: Arc<CompletionChannel>,
    pub(super) port: LocalPort,
    pub(super) staging: MemoryRegion<RemoteReadable>,
    pub(super) control: TcpStream,
    /// If rdma_cm made it.
    pub(super) cm: Option<CmConnection>,
}

impl VerbsTransport {
    pub(super) fn new(parts: Parts) -> VerbsTransport {
        let Parts { work, queue, channel, port, staging, control, cm } = parts;
        VerbsTransport {
            work,
            queue,
            channel,
            room: Completions::with_capacity(COMPLETIONS_PER_POLL),
            context: Arc::clone(port.context()),
            port,
            staging,
            control,
            _cm: cm,
            broken: None,
            spin: Spin::new(Spin::MIN_LOOKS, Spin::MAX_LOOKS),
            epoch: Instant::now(),
            empty_polls: 0,
        }
    }

    /// The port that this side uses.
    pub fn port(&self) -> &LocalPort {
        &self.port
    }

    /// Hands over what is batched and takes what has completed. False if nothing has.
    #[inline]
    fn collect(&mut self) -> Result<bool, Broken> {
        self.work.flush()?;
        let completions =
            self.queue.poll(&mut self.room).map_err(|error| Broken::Rdma { what: error.to_string() })?;
        let count = completions.len();
        for completion in completions {
            self.work.on_completion(completion)?;
        }
        if count == 0 {
            return Ok(false);
        }
        self.work.follow_up()?;
        Ok(true)
    }

    /// The same, for callers that have no use for an error now: it comes with the next poll. True also after a break.
    #[inline]
    fn look(&mut self) -> bool {
        if self.broken.is_some() {
            return true;
        }
        self.collect().unwrap_or_else(|broken| {
            self.break_with(broken);
            true
        })
    }

    /// The connection is no more. If the server has closed the control connection, that is the reason to name.
    #[cold]
    fn break_with(&mut self, broken: Broken) {
        let broken = match self.look_at_control() {
            Err(gone) if matches!(broken, Broken::Rdma { .. }) => gone,
            _ => broken,
        };
        tracing::debug!(%broken, "RDMA connection lost");
        let until = Instant::now() + DRAIN_TIMEOUT;
        let (queue, room) = (&self.queue, &mut self.room);
        self.work.fail(&broken, |settled| {
            let Ok(completions) = queue.poll(room) else { return false };
            completions.for_each(|completion| settled(completion.id()));
            Instant::now() < until
        });
        self.broken = Some(broken);
    }

    /// Looks whether the server has closed the control connection, over which nothing is said any more.
    fn look_at_control(&self) -> Result<(), Broken> {
        match recv(&self.control, &mut [0; 64], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(Broken::Closed),
            Ok(_) => Err(Broken::Protocol { what: "it speaks on the control connection, unasked".into() }),
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(Errno::CONNRESET) => Err(Broken::ServerGone),
            Err(errno) => Err(Broken::System {
                what: "the control connection is lost",
                error: io::Error::from(errno).to_string(),
            }),
        }
    }

    /// Takes what the device has to say.
    fn look_at_device(&mut self) -> Result<(), Broken> {
        let rdma = |what: String| Broken::Rdma { what };
        while let Some(event) = self.context.next_event().map_err(|error| rdma(error.to_string()))? {
            tracing::info!(device = self.context.device().name, %event, "RDMA device");
            match event {
                AsyncEvent::DeviceFatal | AsyncEvent::CompletionQueueError { .. } => {
                    return Err(rdma(event.to_string()));
                }
                AsyncEvent::QueuePair { number, event: QueuePairEvent::Fatal }
                    if Some(number) == self.work.pair_number() =>
                {
                    return Err(rdma(event.to_string()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sleeps until a completion, the end of the connection or an event of the device, at most for `left`.
    fn sleep(&mut self, left: Duration) -> Result<(), Broken> {
        let system =
            |what| move |errno: Errno| Broken::System { what, error: io::Error::from(errno).to_string() };
        let timeout = Timespec::try_from(left.min(SLEEP_MAX)).ok();
        let mut fds = [
            PollFd::from_borrowed_fd(self.channel.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.control.as_fd(), PollFlags::IN | PollFlags::RDHUP),
            PollFd::from_borrowed_fd(self.context.async_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(system("poll")(errno)),
        }
        let [_, control, device] = fds.map(|fd| !fd.revents().is_empty());
        while self.channel.next_event().map_err(|error| Broken::Rdma { what: error.to_string() })?.is_some() {
        }
        if device {
            self.look_at_device()?;
        }
        // What completed before the server went is taken first.
        if control && !self.collect()? {
            self.look_at_control()?;
        }
        Ok(())
    }

    /// Posts one READ and polls until it is done. A device that gives it up completes it too, with an error.
    fn raw_read_now(&mut self, at_word: usize, len_words: usize) -> Result<bool, Broken> {
        let Some(seq) = self.work.raw_read(at_word, len_words)? else { return Ok(false) };
        let mut polls: u64 = 0;
        let mut until = None;
        while !self.work.is_settled(seq) {
            if self.collect()? {
                continue;
            }
            polls += 1;
            if polls.is_multiple_of(EMPTY_POLLS_PER_LOOK) {
                // The server may be stopped on this processor, or the device be software that needs it.
                std::thread::yield_now();
                let now = Instant::now();
                if now > *until.get_or_insert(now + RAW_READ_TIMEOUT) {
                    return Err(Broken::Rdma { what: "a READ did not complete".into() });
                }
            }
        }
        Ok(true)
    }

    fn wait_for_completion(&mut self, until_ns: u64) -> Result<(), Broken> {
        self.queue.arm(false).map_err(|error| Broken::Rdma { what: error.to_string() })?;
        if self.collect()? {
            return Ok(());
        }
        let left = Duration::from_nanos(until_ns.saturating_sub(self.now_ns()));
        if left.is_zero() { Ok(()) } else { self.sleep(left) }
    }
}

impl Transport for VerbsTransport {
    #[inline]
    fn read_now(&mut self, _at_word: usize, _out: &mut [u64]) -> Result<ReadNow, Broken> {
        match &self.broken {
            None => Ok(ReadNow::Post),
            Some(broken) => Err(broken.clone()),
        }
    }

    #[inline]
    fn guard_now(&mut self) -> Result<Option<u64>, Broken> {
        match &self.broken {
            None => Ok(None),
            Some(broken) => Err(broken.clone()),
        }
    }

    fn post_read(&mut self, token: u64, at_word: usize, buffer: ReadBuffer) {
        if let Some(broken) = self.broken.clone() {
            return self.work.events.push_back(Event::Read { token, buffer, result: Err(broken) });
        }
        if let Err(broken) = self.work.read(Read { token, at_word, buffer }) {
            self.break_with(broken);
        }
    }

    #[inline]
    fn register(&mut self, memory: &mut UserMemory) -> Result<(), String> {
        memory.register(self.staging.domain()).map_err(|error| error.to_string())
    }

    fn take_back(&mut self, token: u64) -> Option<Box<UserMemory>> {
        if let Some(memory) = self.work.take_user(token) {
            return Some(memory);
        }
        if self.broken.is_none() {
            // A READ cannot be called back alone. This ends with the device having nothing of this connection any more.
            self.break_with(Broken::Rdma { what: "a READ was not done by the deadline of its GET".into() });
        }
        self.work.take_user(token)
    }

    #[inline]
    fn reads_are_loads(&self) -> bool {
        false
    }

    #[inline]
    fn reads_in_flight_max(&self) -> usize {
        self.work.reads_max()
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<(), SendError> {
        if let Some(broken) = &self.broken {
            return Err(SendError::Broken(broken.clone()));
        }
        self.work.send(parts)
    }

    fn poll(&mut self) -> Result<Option<Event>, Broken> {
        loop {
            if let Some(event) = self.work.events.pop_front() {
                return Ok(Some(event));
            }
            if let Some(broken) = &self.broken {
                return Err(broken.clone());
            }
            if self.look() {
                continue;
            }
            self.empty_polls += 1;
            if self.empty_polls.is_multiple_of(EMPTY_POLLS_PER_LOOK)
                && let Err(broken) = self.look_at_control()
            {
                self.break_with(broken);
                continue;
            }
            return Ok(None);
        }
    }

    fn wait(&mut self, until_ns: u64) {
        if !self.work.events.is_empty() {
            return;
        }
        let (mut spin, mut looks) = (self.spin.clone(), 0_u32);
        let has_come = spin.wait(|| {
            looks += 1;
            if looks > LOOKS_BEFORE_YIELD {
                std::thread::yield_now();
            }
            self.look()
        });
        self.spin = spin;
        if has_come {
            return;
        }
        if let Err(broken) = self.wait_for_completion(until_ns) {
            self.break_with(broken);
        }
    }

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn staging(&self) -> &Words {
        self.staging.words()
    }

    fn flush(&mut self) {
        if self.broken.is_none()
            && let Err(broken) = self.work.flush()
        {
            self.break_with(broken);
        }
    }

    fn raw_read(&mut self, at_word: usize, len_words: usize) -> Result<bool, Broken> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let done = self.raw_read_now(at_word, len_words);
        if let Err(broken) = &done {
            self.break_with(broken.clone());
        }
        done
    }

    fn name(&self) -> &'static str {
        "verbs"
    }
}
