//! A lost connection is made anew, by the calls of its user: the library has no threads.
//!
//! The call during which a connection breaks fails. The next one tries to connect; while that fails, calls fail at once
//! until a pause is over that doubles with each try, and one of them tries again. The new connection starts from nothing: no
//! place, no key and no version is taken over from the old one, whose server may have been replaced.

use std::time::{Duration, Instant};

use kv_common::transport::Broken;

use crate::connect::connect;
use crate::driver::Driver;
use crate::error::Error;
use crate::transport::AnyTransport;
use crate::{Client, Options};

/// The pause after the first try that failed.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How to connect again, and when.
#[derive(Debug)]
pub(crate) struct Reconnect {
    url: String,
    options: Options,
    pause: Duration,
    not_before: Option<Instant>,
}

impl Reconnect {
    pub(crate) fn new(url: &str, options: &Options) -> Reconnect {
        Reconnect { url: url.to_owned(), options: options.clone(), pause: PAUSE_MIN, not_before: None }
    }

    /// A try failed: doubles the pause, and spreads its end, so that many clients of one server do not come back at once.
    fn put_off(&mut self, now: Instant) {
        let mut random = [0; 1];
        // Without random numbers all come back at once: a pity, no fault.
        let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        let spread = self.pause.mul_f64(f64::from(random[0]) / 512.0);
        self.not_before = Some(now + self.pause / 2 + spread);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

impl Client {
    /// The driver of a connection that is up, as far as is known; a new one if the old one is lost.
    ///
    /// # Errors
    /// [`Error::Broken`] with what broke the old one, while a new one cannot be had, or may not yet be tried, or
    /// completions of the old one have not been taken; [`Error::NotAdmitted`] or [`Error::Identity`] if the server says so.
    #[inline]
    pub(crate) fn live(&mut self) -> Result<&mut Driver<AnyTransport>, Error> {
        if let Some(lost) = self.driver.broken() {
            let lost = lost.clone();
            self.reconnect(lost)?;
        }
        Ok(&mut self.driver)
    }

    #[cold]
    fn reconnect(&mut self, lost: Broken) -> Result<(), Error> {
        let now = Instant::now();
        let is_early = |reconnect: &&mut Reconnect| reconnect.not_before.is_none_or(|until| until <= now);
        let Some(reconnect) = self.reconnect.as_mut().filter(is_early) else {
            return Err(Error::Broken(lost));
        };
        if self.driver.pending() > 0 {
            return Err(Error::Broken(lost));
        }
        // The server may have no place for two sessions of this client.
        self.driver.let_go();
        match connect(&reconnect.url, &reconnect.options) {
            Ok(new) => {
                tracing::info!(url = reconnect.url, was = %lost, transport = new.connection.transport, "connected again");
                self.adopt(new);
                Ok(())
            }
            Err(error) => {
                reconnect.put_off(Instant::now());
                tracing::debug!(url = reconnect.url, %error, "cannot connect again yet");
                Err(match error {
                    Error::NotAdmitted { .. } | Error::Identity(_) => error,
                    _ => Error::Broken(lost),
                })
            }
        }
    }

    /// Takes the place of the old connection; counters and tickets go on.
    fn adopt(&mut self, new: Client) {
        let Client { driver, fork, connection, reconnect } = new;
        let old = std::mem::replace(&mut self.driver, driver);
        self.driver.continue_from(&old);
        (self.fork, self.connection, self.reconnect) = (fork, connection, reconnect);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second_and_are_spread_over_their_second_half() {
        let mut reconnect = Reconnect::new("kv+shm:///none", &Options::default());
        let now = Instant::now();
        let mut expected = PAUSE_MIN;
        for _ in 0..12 {
            reconnect.put_off(now);
            let wait = reconnect.not_before.unwrap() - now;
            assert!(wait >= expected / 2 && wait <= expected, "{wait:?} of {expected:?}");
            expected = (expected * 2).min(Duration::from_secs(1));
        }
        assert_eq!(reconnect.pause, Duration::from_secs(1));
    }
}
