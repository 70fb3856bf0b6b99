//! `kv shell`: commands from standard input over one connection, one answer line each.

use std::io::{BufRead, IsTerminal, Write};

use kv_client::{Client, TimeToLive};

use super::{CliError, End, check, duration, io};

const HELP: &str = "get KEY | put KEY VALUE (the rest of the line) | del KEY | add KEY NUMBER | append KEY VALUE | exists KEY | \
                    touch KEY [TIME] | ttl KEY | check | ping | help | quit";

pub(super) fn run(client: &mut Client) -> Result<End, CliError> {
    let (stdin, mut stdout) = (std::io::stdin().lock(), std::io::stdout().lock());
    let prompt = if stdin.is_terminal() { "kv> " } else { "" };
    let failed = |error| io("standard input or output", error);
    let mut lines = stdin.split(b'\n');
    loop {
        write!(stdout, "{prompt}").and_then(|()| stdout.flush()).map_err(failed)?;
        let Some(line) = lines.next() else { return Ok(End::Done) };
        let line = line.map_err(failed)?;
        if matches!(line.trim_ascii(), b"quit" | b"exit") {
            return Ok(End::Done);
        }
        let answer = match answer(client, line.trim_ascii()) {
            Ok(answer) => answer,
            // A refusal or a deadline ends one command, not the shell; a lost connection ends both.
            Err(error @ CliError::Client(kv_client::Error::Broken(_))) => return Err(error),
            Err(error) => Some(format!("error: {error}").into_bytes()),
        };
        if let Some(answer) = answer {
            stdout.write_all(&answer).and_then(|()| writeln!(stdout)).map_err(failed)?;
        }
    }
}

/// The answer to a line; none to an empty one. An empty value is an answer.
fn answer(client: &mut Client, line: &[u8]) -> Result<Option<Vec<u8>>, CliError> {
    let (command, rest) = split_word(line);
    let not_found = || b"(not found)".to_vec();
    Ok(Some(match command {
        b"" => return Ok(None),
        b"get" => client.get(rest)?.map_or_else(not_found, |value| value.bytes),
        b"put" => {
            let (key, value) = split_word(rest);
            format!("version {}", client.put(key, value)?).into_bytes()
        }
        b"del" => {
            if client.delete(rest)? {
                b"deleted".to_vec()
            } else {
                not_found()
            }
        }
        b"add" => {
            let (key, delta) = split_word(rest);
            match std::str::from_utf8(delta).ok().and_then(|delta| delta.parse().ok()) {
                Some(delta) => client.add(key, delta)?.value.to_string().into_bytes(),
                None => b"error: add wants a key and a number of 64 bits with sign".to_vec(),
            }
        }
        b"append" => {
            let (key, value) = split_word(rest);
            format!("{} bytes", client.append(key, value)?.value_bytes).into_bytes()
        }
        b"touch" => touch(client, rest)?,
        b"ttl" => match client.ttl(rest)? {
            TimeToLive::Absent => not_found(),
            TimeToLive::Forever => b"forever".to_vec(),
            TimeToLive::Left(left) => duration::format(left).into_bytes(),
        },
        b"exists" => {
            if client.exists(rest)? {
                b"yes".to_vec()
            } else {
                b"no".to_vec()
            }
        }
        b"check" => check::in_shell(client)?.into_bytes(),
        b"ping" => format!("{:.1} us", client.ping()?.as_nanos() as f64 / 1e3).into_bytes(),
        b"help" => HELP.into(),
        other => format!("error: no command {:?}; {HELP}", String::from_utf8_lossy(other)).into_bytes(),
    }))
}

fn touch(client: &mut Client, rest: &[u8]) -> Result<Vec<u8>, CliError> {
    let (key, time) = split_word(rest);
    let ttl = match std::str::from_utf8(time).map(duration::parse) {
        _ if time.is_empty() => None,
        Ok(Ok(ttl)) => Some(ttl),
        _ => return Ok(b"error: touch wants a key and a time, for instance 30s, or none".to_vec()),
    };
    Ok(match client.touch(key, ttl)?.done() {
        Some(version) => format!("version {version}").into_bytes(),
        None => b"(not found)".to_vec(),
    })
}

/// The first word and, after the white space behind it, the rest.
fn split_word(line: &[u8]) -> (&[u8], &[u8]) {
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    (&line[..end], line[end..].trim_ascii_start())
}

#[cfg(test)]
mod tests {
    use super::split_word;

    #[test]
    fn words_are_split_once() {
        assert_eq!(split_word(b"put k  a value "), (&b"put"[..], &b"k  a value "[..]));
        assert_eq!(split_word(b"get"), (&b"get"[..], &b""[..]));
        assert_eq!(split_word(b""), (&b""[..], &b""[..]));
    }
}
