//! A server that runs, and how it comes to an end.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use kv_common::transport::shm::owner::OwnerKeeper;

use crate::config::Config;
use crate::shared::Shared;
use crate::table::Table;

/// A server in this process. Dropping it stops it, as [`Running::stop`] does.
pub struct Running {
    config: Config,
    listen_address: Option<SocketAddr>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) table: Arc<Table>,
    pub(crate) threads: Vec<JoinHandle<()>>,
    ended: mpsc::Receiver<ThreadEnd>,
    /// Dropped after all threads ended: then clients see that the region has no writer any more.
    owner: Option<OwnerKeeper>,
}

/// Tells a server to stop; from any thread, any number of times.
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

/// A thread of the server panicked; the server has stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread {thread} panicked, which is a defect of this program; the server has stopped")]
pub struct Failed {
    /// Its name.
    pub thread: String,
}

/// The end of a thread.
#[derive(Debug)]
pub(crate) struct ThreadEnd {
    name: String,
    has_panicked: bool,
}

impl ThreadEnd {
    /// A value that reports the end of the thread that drops it.
    pub(crate) fn reporter(name: String, report: mpsc::Sender<ThreadEnd>) -> impl Send {
        struct Reporter(String, mpsc::Sender<ThreadEnd>);
        impl Drop for Reporter {
            fn drop(&mut self) {
                let has_panicked = std::thread::panicking();
                // Nobody listens if the start failed.
                let _ = self.1.send(ThreadEnd { name: std::mem::take(&mut self.0), has_panicked });
            }
        }
        Reporter(name, report)
    }
}

impl Running {
    pub(crate) fn new(
        config: Config,
        listen_address: Option<SocketAddr>,
        shared: Arc<Shared>,
        table: Arc<Table>,
        owner: OwnerKeeper,
        ended: mpsc::Receiver<ThreadEnd>,
    ) -> Running {
        Running { config, listen_address, shared, table, threads: Vec::new(), ended, owner: Some(owner) }
    }

    /// The socket that clients connect to.
    pub fn socket(&self) -> &Path {
        &self.config.socket
    }

    /// Where it listens for TCP connections, with the port that the system chose if it was asked for 0.
    pub fn listen_address(&self) -> Option<SocketAddr> {
        self.listen_address
    }

    /// Bytes of the region.
    pub fn region_bytes(&self) -> u64 {
        self.table.region().len_words() as u64 * 8
    }

    /// The table, for those who look into it.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Clients that are connected now.
    pub fn clients(&self) -> usize {
        self.shared.clients()
    }

    /// A handle that tells this server to stop.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }

    /// Stops the server: nobody is accepted any more, what clients asked until now is answered, what they ask meanwhile
    /// is refused, and after about a second at most the connections are closed.
    ///
    /// # Errors
    /// [`Failed`] if a thread panicked.
    pub fn stop(self) -> Result<(), Failed> {
        self.shared.stop();
        self.wait()
    }

    /// Waits until the server has stopped because somebody told it to.
    ///
    /// # Errors
    /// [`Failed`] if a thread panicked; the others are stopped then.
    pub fn wait(mut self) -> Result<(), Failed> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), Failed> {
        let mut result = Ok(());
        for _ in 0..self.threads.len() {
            let Ok(end) = self.ended.recv() else { break };
            if end.has_panicked {
                result = Err(Failed { thread: end.name });
                self.shared.stop();
            }
        }
        for thread in self.threads.drain(..) {
            // How it ended was reported above.
            let _ = thread.join();
        }
        // Clients that were welcomed in the last moment and found no worker.
        self.shared.mailboxes.iter().for_each(|mailbox| drop(mailbox.take_new()));
        self.owner = None;
        drop(self.shared.retired_listeners.lock().take());
        result
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.stop();
        // A panic was printed when it happened.
        let _ = self.finish();
    }
}

impl Stopper {
    /// Tells the server to stop.
    pub fn stop(&self) {
        self.0.stop();
    }
}
