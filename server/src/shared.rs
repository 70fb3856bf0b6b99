//! What the threads of a server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::accept::Listeners;
use crate::poller::Waker;
use crate::session::Session;
use crate::table::{Signal, Table};

/// State of a whole server.
pub(crate) struct Shared {
    is_stopping: AtomicBool,
    clients: AtomicUsize,
    clients_max: usize,
    /// Rung when the server is to stop.
    pub(crate) accept_waker: Arc<Waker>,
    pub(crate) mailboxes: Vec<Mailbox>,
    /// Wake the threads that split index segments and that make segments free.
    table_signals: [Arc<Signal>; 2],
    /// The sockets once nobody is accepted any more. Path and port stay taken until the region has no writer: a successor
    /// must not acknowledge anything while clients of this server still read what it wrote.
    pub(crate) retired_listeners: Mutex<Option<Listeners>>,
}

/// Where a worker finds its new sessions.
pub(crate) struct Mailbox {
    pub(crate) waker: Waker,
    new: Mutex<Vec<Session>>,
    /// Sessions that the worker has or will have.
    sessions: AtomicUsize,
}

impl Shared {
    pub(crate) fn new(workers: usize, clients_max: usize, table: &Table) -> std::io::Result<Shared> {
        let mailbox =
            || Ok(Mailbox { waker: Waker::new()?, new: Mutex::default(), sessions: AtomicUsize::new(0) });
        Ok(Shared {
            is_stopping: AtomicBool::new(false),
            clients: AtomicUsize::new(0),
            clients_max,
            accept_waker: Arc::new(Waker::new()?),
            mailboxes: (0..workers).map(|_| mailbox()).collect::<std::io::Result<_>>()?,
            table_signals: [table.growth_signal(), table.space_signal()].map(Arc::clone),
            retired_listeners: Mutex::default(),
        })
    }

    /// Tells all threads to come to an end.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.accept_waker.wake();
        self.table_signals.iter().for_each(|signal| signal.set());
        self.mailboxes.iter().for_each(|mailbox| mailbox.waker.wake());
    }

    /// True once the server is to stop. Whoever sleeps is woken when that changes.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    pub(crate) fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    pub(crate) fn clients_max(&self) -> usize {
        self.clients_max
    }

    /// The right to be a client, if one is left; it ends when it is dropped.
    pub(crate) fn reserve_client(self: &Arc<Shared>) -> Option<ClientSlot> {
        let reserve = |clients| (clients < self.clients_max).then_some(clients + 1);
        self.clients.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve).ok()?;
        Some(ClientSlot(Arc::clone(self)))
    }

    /// The worker that has the fewest sessions.
    pub(crate) fn idlest_worker(&self) -> usize {
        let sessions = |index: &usize| self.mailboxes[*index].sessions.load(Ordering::Relaxed);
        (0..self.mailboxes.len()).min_by_key(sessions).expect("a server has a worker")
    }

    /// Gives a session to a worker.
    pub(crate) fn hand_over(&self, session: Session, worker: usize) {
        let mailbox = &self.mailboxes[worker];
        mailbox.sessions.fetch_add(1, Ordering::Relaxed);
        mailbox.new.lock().push(session);
        mailbox.waker.wake();
    }
}

impl Mailbox {
    pub(crate) fn take_new(&self) -> Vec<Session> {
        std::mem::take(&mut self.new.lock())
    }

    pub(crate) fn note_ended(&self) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One of the clients that may be connected.
pub(crate) struct ClientSlot(Arc<Shared>);

impl Drop for ClientSlot {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}
