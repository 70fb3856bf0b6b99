//! `kv top`: what the server publishes, again and again. It is read from the region, so it works while the server stands.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use clap::Args;
use console::Term;
use kv_client::{Client, ServerStat};
use kv_common::layout::{HOME_LINES, LINE_SLOTS, SEGMENT_BYTES, SegmentEntry, SegmentKind, Span};

use super::{CliError, End, io};

/// Cells of the memory map in a line.
const MAP_CELLS_PER_LINE: usize = 64;
/// Lines of the memory map, at most; a cell stands for as many segments as that takes.
const MAP_LINES_MAX: usize = 6;
/// A server with clients publishes its clock many times per second. One whose clock stands for so long is stopped.
const CLOCK_STANDS: Duration = Duration::from_secs(2);

/// How `kv top` is shown.
#[derive(Args)]
pub(super) struct TopArguments {
    /// Seconds between two looks.
    #[arg(long, default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// Looks, the first included; without it `kv top` goes on until it is interrupted.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds, from 0.1 to 3600".to_owned()),
    }
}

/// A look at the server.
struct Look {
    at: Instant,
    stat: ServerStat,
    /// When the server's clock was first seen as it is.
    clock_since: Instant,
}

/// Shows the server until it is interrupted or has looked often enough. On a terminal each look takes the place of the one
/// before; elsewhere they follow one another.
pub(super) fn run(client: &mut Client, arguments: &TopArguments) -> Result<End, CliError> {
    let term = Term::stdout();
    let mut before: Option<Look> = None;
    let mut looks = 0;
    loop {
        let look = look(client, before.as_ref())?;
        let text = page(client, &look, before.as_ref());
        let shown = if term.is_term() {
            term.clear_screen().and_then(|()| term.write_str(&text)).and_then(|()| term.flush())
        } else {
            term.write_line(&text)
        };
        shown.map_err(|error| io("writing to standard output", error))?;
        looks += 1;
        if arguments.count.is_some_and(|count| looks >= count) {
            return Ok(End::Done);
        }
        before = Some(look);
        std::thread::sleep(Duration::from_secs_f64(arguments.interval));
    }
}

fn look(client: &mut Client, before: Option<&Look>) -> Result<Look, CliError> {
    let stat = client.server_stat()?;
    let at = Instant::now();
    let clock_since = before
        .filter(|before| before.stat.clock_ns == stat.clock_ns && before.stat.incarnation == stat.incarnation)
        .map_or(at, |before| before.clock_since);
    Ok(Look { at, stat, clock_since })
}

fn page(client: &Client, look: &Look, before: Option<&Look>) -> String {
    let stat = &look.stat;
    let counter = |name: &str| stat.counters.get(name).copied().unwrap_or(0);
    let connection = client.connection();
    let mut text = String::new();
    let mut line = |what: &str, shown: String| writeln!(text, "{what:<11} {shown}").expect("memory takes it");
    line("server", format!("pid {} by {} at {}", stat.server_pid, connection.transport, connection.url));
    line("state", state(look));
    line("clients", counter("sessions").to_string());
    let keys = counter("keys");
    let expiring = counter("expiring_keys");
    line("keys", format!("{keys}, {} of keys and values; {expiring} expire", bytes(counter("data_bytes"))));
    let slots = stat.segments.index * HOME_LINES * LINE_SLOTS as u64;
    line(
        "index",
        format!(
            "{:.1} % of {slots} slots in home lines, {} overflow lines; {} splits, {} under way, {} inserts waited",
            share(keys, slots),
            counter("overflow_lines"),
            counter("splits"),
            counter("splits_under_way"),
            counter("inserts_waited")
        ),
    );
    let block_segments_bytes = (stat.segments.blocks + stat.segments.large) * SEGMENT_BYTES;
    let used_bytes = counter("block_bytes");
    let used = share(used_bytes, block_segments_bytes);
    line("blocks", format!("{} in use, {used:.1} % of {}", bytes(used_bytes), bytes(block_segments_bytes)));
    if stat.evicts {
        line("evicted", evicted(stat));
    }
    line("rates", rates(look, before));
    text.push('\n');
    text.push_str(&map(&stat.map));
    text.push_str(&classes(&stat.map));
    text
}

fn state(look: &Look) -> String {
    let up_s = look.stat.clock_ns.saturating_sub(look.stat.started_ns) / 1_000_000_000;
    let stands = look.at.duration_since(look.clock_since);
    if stands < CLOCK_STANDS {
        return format!("up {up_s} s");
    }
    format!("its clock has stood for {} s, at {up_s} s after the start: stopped, or gone", stands.as_secs())
}

fn evicted(stat: &ServerStat) -> String {
    let counter = |name: &str| stat.counters.get(name).copied().unwrap_or(0);
    let (evictions, hits) = (counter("evictions"), counter("hits_reported"));
    if evictions == 0 {
        return format!("nothing, {hits} hits reported");
    }
    format!("{evictions}, {hits} hits reported; last used {}", stat.evicted_ages_text())
}

/// Writes per second since the look before. What clients read one-sidedly is counted by nobody.
fn rates(look: &Look, before: Option<&Look>) -> String {
    let Some(before) = before.filter(|before| before.stat.incarnation == look.stat.incarnation) else {
        return "with the next look".to_owned();
    };
    let seconds = look.at.duration_since(before.at).as_secs_f64();
    let rate = |name: &str| {
        let of = |stat: &ServerStat| stat.counters.get(name).copied().unwrap_or(0);
        of(&look.stat).saturating_sub(of(&before.stat)) as f64 / seconds
    };
    format!(
        "{:.0} requests/s: {:.0} puts, {:.0} deletes, {:.0} GETs asked of the server; {:.0} keys expired/s, {:.0} evicted; \
         one-sided GETs are not seen",
        rate("requests"),
        rate("puts"),
        rate("deletes"),
        rate("gets_by_server"),
        rate("expired"),
        rate("evictions")
    )
}

/// The region from its start, each cell the kind that most of its segments have.
fn map(entries: &[SegmentEntry]) -> String {
    let per_cell = entries.len().div_ceil(MAP_CELLS_PER_LINE * MAP_LINES_MAX).max(1);
    let cells: Vec<char> = entries.chunks(per_cell).map(cell).collect();
    let mut text = format!(
        "map         a cell is {}: S system, I index, B blocks, L large values, . free\n",
        bytes(per_cell as u64 * SEGMENT_BYTES)
    );
    for line in cells.chunks(MAP_CELLS_PER_LINE) {
        text.push_str("            ");
        text.extend(line);
        text.push('\n');
    }
    text
}

fn cell(entries: &[SegmentEntry]) -> char {
    let signs = entries.iter().map(|entry| match entry.kind {
        SegmentKind::Superblock | SegmentKind::Directory => 'S',
        SegmentKind::Index => 'I',
        SegmentKind::Blocks => 'B',
        SegmentKind::Large => 'L',
        SegmentKind::Free => '.',
    });
    let mut counts = BTreeMap::new();
    signs.for_each(|sign| *counts.entry(sign).or_insert(0_usize) += 1);
    counts.into_iter().max_by_key(|&(_, count)| count).map_or(' ', |(sign, _)| sign)
}

/// The size classes that have the most segments.
fn classes(entries: &[SegmentEntry]) -> String {
    let mut segments: BTreeMap<u64, u64> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.kind == SegmentKind::Blocks) {
        *segments.entry(Span(entry.class).bytes()).or_default() += 1;
    }
    let mut most: Vec<(u64, u64)> = segments.into_iter().collect();
    most.sort_by_key(|&(block_bytes, count)| (u64::MAX - count, block_bytes));
    let shown: Vec<String> =
        most.iter().take(8).map(|&(block_bytes, count)| format!("{block_bytes} B x {count}")).collect();
    let others = most.len().saturating_sub(shown.len());
    let others = if others == 0 { String::new() } else { format!(", {others} more") };
    if shown.is_empty() { String::new() } else { format!("classes     {}{others}\n", shown.join(", ")) }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

fn bytes(count: u64) -> String {
    indicatif::HumanBytes(count).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: SegmentKind, class: u8) -> SegmentEntry {
        SegmentEntry { kind, class }
    }

    #[test]
    fn the_map_has_a_sign_per_segment_and_the_classes_their_numbers() {
        let blocks = |bytes| of(SegmentKind::Blocks, Span::of_bytes(bytes).0);
        let entries = [
            of(SegmentKind::Superblock, 0),
            of(SegmentKind::Directory, 0),
            of(SegmentKind::Index, 0),
            blocks(80),
            blocks(4096),
            blocks(80),
            of(SegmentKind::Free, 0),
        ];
        assert_eq!(map(&entries).lines().nth(1), Some("            SSIBBB."));
        assert_eq!(classes(&entries), "classes     80 B x 2, 4096 B x 1\n");
    }

    #[test]
    fn a_large_region_is_shown_by_what_most_of_a_cell_is() {
        let mut entries = vec![of(SegmentKind::Free, 0); 4 * MAP_CELLS_PER_LINE * MAP_LINES_MAX];
        entries[..3].fill(of(SegmentKind::Index, 0));
        entries[4] = of(SegmentKind::Index, 0);
        let map = map(&entries);
        assert!(map.starts_with("map         a cell is 8.00 MiB"), "{map}");
        assert_eq!(map.lines().count(), 1 + MAP_LINES_MAX);
        assert!(map.lines().nth(1).unwrap().starts_with("            I.."), "{map}");
    }
}
