//! Other processes of a test: the test program itself, started again to run one ignored test.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// What the helper is told, an environment variable.
const WORD: &str = "KV_TESTS_HELPER";

/// What a helper was told, if this process is one.
pub(crate) fn told() -> Option<String> {
    std::env::var(WORD).ok()
}

/// A helper that runs; killed when dropped.
pub(crate) struct Helper {
    pub(crate) child: Child,
    lines: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts the ignored test `name` of this program and tells it `word`.
    pub(crate) fn start(name: &str, word: &str) -> Helper {
        Helper::spawn(Command::new(std::env::current_exe().unwrap()), name, word)
    }

    /// As `start`, from a copy of this program, and as another user.
    pub(crate) fn start_as(uid: u32, program: &Path, name: &str, word: &str) -> Helper {
        std::fs::copy(std::env::current_exe().unwrap(), program).unwrap();
        let mut command = Command::new(program);
        std::os::unix::process::CommandExt::uid(&mut command, uid);
        std::os::unix::process::CommandExt::gid(&mut command, uid);
        Helper::spawn(command, name, word)
    }

    fn spawn(mut command: Command, name: &str, word: &str) -> Helper {
        command.args(["--ignored", "--exact", name, "--nocapture", "--test-threads=1"]).env(WORD, word);
        let mut child = command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Helper { child, lines }
    }

    /// The rest of the next line that starts with `@`: what a helper says, among what the test program says. `None` when
    /// the helper has ended. A line that it did not end is not one.
    pub(crate) fn next_line(&mut self) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.lines.read_line(&mut line).unwrap() == 0 || !line.ends_with('\n') {
                return None;
            }
            // The test program does not end its line about the test that runs.
            if let Some((_, said)) = line.trim_end_matches('\n').split_once('@') {
                return Some(said.to_owned());
            }
        }
    }

    /// Waits until the helper has ended well; returns what it said.
    pub(crate) fn finish(mut self) -> Vec<String> {
        let said: Vec<String> = std::iter::from_fn(|| self.next_line()).collect();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the helper failed: {status}; it said {said:?}");
        said
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
