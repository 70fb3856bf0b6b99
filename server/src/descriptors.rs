//! Room for the descriptors of as many clients as may connect.

use kv_common::limits::{HANDSHAKES_MAX, WORKERS_MAX};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Descriptors that are not a client's: handshakes, three per worker, the region, sockets, standard streams, and what the
/// process was started with.
const OTHERS: u64 = (HANDSHAKES_MAX + 3 * WORKERS_MAX + 64) as u64;

/// The process may have too few descriptors for even one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process may have {found} descriptors, and a server with one client needs {needed}; raise `ulimit -Hn`"
)]
pub struct TooFewDescriptors {
    /// The hard limit.
    pub found: u64,
    /// What is needed at least.
    pub needed: u64,
}

/// Raises the limit of this process's descriptors to what `clients` clients need. Returns for how many it is enough.
pub(crate) fn make_room(clients: usize) -> Result<usize, TooFewDescriptors> {
    let limits = getrlimit(Resource::Nofile);
    // No limit is none of ours either.
    let (soft, hard) = (limits.current.unwrap_or(u64::MAX), limits.maximum.unwrap_or(u64::MAX));
    let needed = clients as u64 + OTHERS;
    let mut granted = soft;
    if soft < needed {
        let wanted = needed.min(hard);
        let raised = Rlimit { current: Some(wanted), maximum: limits.maximum };
        granted = if setrlimit(Resource::Nofile, raised).is_ok() { wanted } else { soft };
    }
    let enough_for =
        clients_of(granted, clients).ok_or(TooFewDescriptors { found: granted, needed: OTHERS + 1 })?;
    if enough_for < clients {
        warn!(
            max_clients = clients,
            enough_for,
            descriptors = granted,
            needed,
            "fewer clients may connect than asked for; raise `ulimit -Hn`"
        );
    }
    Ok(enough_for)
}

/// How many clients `descriptors` are enough for, at most `clients`.
fn clients_of(descriptors: u64, clients: usize) -> Option<usize> {
    let left = descriptors.checked_sub(OTHERS).filter(|&left| left > 0)?;
    Some(usize::try_from(left).unwrap_or(usize::MAX).min(clients))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_takes_one_of_the_descriptors_left() {
        assert_eq!(clients_of(OTHERS, 5), None);
        assert_eq!(clients_of(OTHERS + 1, 5), Some(1));
        assert_eq!(clients_of(u64::MAX, 5), Some(5));
    }
}
