//! Log lines, to standard error. A log that nobody reads, or that cannot be written, costs lines and nothing else: no
//! thread waits for its reader, and no error of it ends the server.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::config::{Config, LogFormat, LogLevel};

/// Bytes of the longest line, its end included; of longer ones the beginning is written. A pipe that is ready takes as
/// much without waiting (`PIPE_BUF` of pipe(7)).
const LINE_MAX_BYTES: usize = 4096;

/// How long a line waits for those that other threads are writing.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// Sends this process's log lines to standard error, as the configuration says. Does nothing if they go somewhere
/// already.
pub fn init(config: &Config) {
    let level = match config.log_level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        // What it would write about errors goes to standard error too, and panics if that fails.
        .log_internal_errors(false)
        .with_writer(LossyLog::new(io::stderr(), config.log_format));
    // An error says that there is a subscriber already.
    let _ = match config.log_format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
}

/// Writes each line at once or not at all, and says later how many were not written.
///
/// The descriptor is shared with whoever started this process, so it is not made non-blocking: that would hold for them
/// too. Instead it is asked whether it is ready before each write.
struct LossyLog<F> {
    target: F,
    format: LogFormat,
    /// Between the look whether there is room and the write nobody else of this process may take the room.
    writing: Mutex<()>,
    /// Lines that were not written since this was last said.
    dropped: AtomicU64,
}

impl<F: AsFd> LossyLog<F> {
    fn new(target: F, format: LogFormat) -> LossyLog<F> {
        LossyLog { target, format, writing: Mutex::new(()), dropped: AtomicU64::new(0) }
    }

    fn write_line(&self, line: &[u8]) {
        let is_written = self
            .writing
            .try_lock_for(LOCK_TIMEOUT)
            .is_some_and(|_lock| self.confess() && self.write_now(cut(line, &mut [0; LINE_MAX_BYTES])));
        if !is_written {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Says how many lines were dropped, if any were. False if there is no room for it.
    fn confess(&self) -> bool {
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped == 0 {
            return true;
        }
        let is_written = self.write_now(notice(dropped, self.format).as_bytes());
        if is_written {
            self.dropped.fetch_sub(dropped, Ordering::Relaxed);
        }
        is_written
    }

    /// Writes `line` if that needs no waiting. True if all of it is written.
    fn write_now(&self, mut line: &[u8]) -> bool {
        while !line.is_empty() {
            if !self.is_ready() {
                return false;
            }
            match rustix::io::write(&self.target, line) {
                Ok(0) => return false,
                // A pipe takes all of so short a line; a file on a disk that gets full may not.
                Ok(count) => line = &line[count..],
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    fn is_ready(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut targets = [PollFd::new(&self.target, PollFlags::OUT)];
        poll(&mut targets, Some(&at_once)).is_ok() && targets[0].revents().contains(PollFlags::OUT)
    }
}

/// `line`, or its first bytes and an end of line if it is too long.
fn cut<'a>(line: &'a [u8], space: &'a mut [u8; LINE_MAX_BYTES]) -> &'a [u8] {
    if line.len() <= LINE_MAX_BYTES {
        return line;
    }
    const END: &[u8] = b"...\n";
    let mut kept = LINE_MAX_BYTES - END.len();
    // Not within a character: the bytes of a character that are not its first are 10xxxxxx.
    while kept > 0 && line[kept] & 0xc0 == 0x80 {
        kept -= 1;
    }
    space[..kept].copy_from_slice(&line[..kept]);
    space[kept..kept + END.len()].copy_from_slice(END);
    &space[..kept + END.len()]
}

/// The line that says that lines are missing before it.
fn notice(dropped: u64, format: LogFormat) -> String {
    const MESSAGE: &str = "log lines were dropped: standard error did not take them";
    let mut time = String::new();
    // An error leaves the line without its time.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    match format {
        LogFormat::Text => format!("{time}  WARN {MESSAGE} dropped={dropped}\n"),
        LogFormat::Json => format!(
            "{{\"timestamp\":\"{time}\",\"level\":\"WARN\",\"message\":\"{MESSAGE}\",\"dropped\":{dropped}}}\n"
        ),
    }
}

impl<F: AsFd> Write for &LossyLog<F> {
    /// Takes a whole line. Never fails: whoever logs can do nothing about it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.write_line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a, F: AsFd + 'a> MakeWriter<'a> for LossyLog<F> {
    type Writer = &'a LossyLog<F>;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{PipeReader, PipeWriter, Read, pipe};

    use rustix::fs::{OFlags, fcntl_getfl};

    use super::*;

    fn into_pipe(format: LogFormat) -> (PipeReader, LossyLog<PipeWriter>) {
        let (reader, writer) = pipe().unwrap();
        (reader, LossyLog::new(writer, format))
    }

    fn rest_of(mut reader: PipeReader, log: LossyLog<PipeWriter>) -> String {
        let mut text = String::new();
        drop(log);
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn lines_without_room_are_dropped_and_counted_and_the_count_is_said() {
        for (format, count) in [(LogFormat::Text, " dropped=3\n"), (LogFormat::Json, ",\"dropped\":3}\n")] {
            let (mut reader, log) = into_pipe(format);
            let (mut taken, line) = (Vec::new(), [b'x'; LINE_MAX_BYTES]);
            while log.dropped.load(Ordering::Relaxed) == 0 {
                (&log).write_all(&line).unwrap();
                taken.extend_from_slice(&line);
            }
            taken.truncate(taken.len() - line.len());
            assert!(!taken.is_empty());
            for _ in 0..2 {
                (&log).write_all(b"lost\n").unwrap();
            }
            reader.read_exact(&mut taken).unwrap();
            (&log).write_all(b"first\n").unwrap();
            (&log).write_all(b"second\n").unwrap();
            assert!(!fcntl_getfl(&log.target).unwrap().contains(OFlags::NONBLOCK));
            let text = rest_of(reader, log);
            let (notice, lines) = text.split_at(text.find('\n').unwrap() + 1);
            assert!(notice.contains("log lines were dropped") && notice.ends_with(count), "{notice}");
            assert_eq!(lines, "first\nsecond\n");
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_between_characters() {
        for (line, kept) in [("x".repeat(5000), 4092), (format!("x{}", "é".repeat(4000)), 4091)] {
            let (reader, log) = into_pipe(LogFormat::Text);
            (&log).write_all(format!("{line}\n").as_bytes()).unwrap();
            assert_eq!(rest_of(reader, log), format!("{}...\n", &line[..kept]));
        }
    }

    #[test]
    fn errors_of_the_target_are_lines_dropped() {
        let full = LossyLog::new(File::options().write(true).open("/dev/full").unwrap(), LogFormat::Text);
        (&full).write_all(b"lost\n").unwrap();
        (&full).write_all(b"lost\n").unwrap();
        assert_eq!(full.dropped.into_inner(), 2);
        let (reader, unread) = into_pipe(LogFormat::Text);
        drop(reader);
        (&unread).write_all(b"lost\n").unwrap();
        assert_eq!(unread.dropped.into_inner(), 1);
    }
}
