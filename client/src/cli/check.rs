//! `kv check`: verifies a whole table.

use std::fmt::Write;
use std::fs::File;
use std::io::{BufWriter, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use kv_client::{CheckFinding, CheckProgress, Checked, Client, check_file};
use kv_common::check::FINDINGS_MAX;
use kv_common::layout::{HOME_LINES, LINE_SLOTS, PAGE_BYTES, SEGMENT_BYTES};

use super::{CliError, End, io, print};

/// Which table `kv check` verifies, and how it reports.
#[derive(Args)]
pub(super) struct CheckArguments {
    /// Verify the region in this file instead of a server's: one that --save wrote, or a copy of a stopped server's memory.
    #[arg(long, value_name = "PATH", conflicts_with = "save")]
    pub(super) file: Option<PathBuf>,
    /// Write the server's region to this file first. It is of one moment only if nobody writes meanwhile.
    #[arg(long, value_name = "PATH")]
    save: Option<PathBuf>,
    /// As one JSON object.
    #[arg(long)]
    json: bool,
}

/// Checks the table in a file.
pub(super) fn run_file(arguments: &CheckArguments) -> Result<End, CliError> {
    let path = arguments.file.as_ref().expect("the caller has looked");
    let (started, bar) = (Instant::now(), bar());
    let checked = check_file(path, |progress| show(&bar, progress));
    bar.finish_and_clear();
    report(&path.display().to_string(), &checked?, started.elapsed(), arguments.json)
}

/// Checks the table of a server.
pub(super) fn run(client: &mut Client, arguments: &CheckArguments) -> Result<End, CliError> {
    if let Some(path) = &arguments.save {
        let failed = |error| io(&format!("writing {}", path.display()), error);
        client.save_region(&mut BufWriter::new(File::create(path).map_err(failed)?))?;
    }
    let (started, bar) = (Instant::now(), bar());
    let checked = client.check(|progress| show(&bar, progress));
    bar.finish_and_clear();
    let source = format!("{} by {}", client.connection().url, client.transport());
    report(&source, &checked?, started.elapsed(), arguments.json)
}

/// What the shell answers: the report.
pub(super) fn in_shell(client: &mut Client) -> Result<String, CliError> {
    let started = Instant::now();
    let checked = client.check(|_| {})?;
    Ok(text(&client.connection().url, &checked, started.elapsed()).trim_end().to_owned())
}

fn bar() -> indicatif::ProgressBar {
    if !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let style = indicatif::ProgressStyle::with_template("{bar:40} {pos}/{len} {msg} {per_sec}")
        .expect("the template is valid");
    indicatif::ProgressBar::new(0).with_style(style)
}

fn show(bar: &indicatif::ProgressBar, progress: CheckProgress) {
    let (done, total, what) = match progress {
        CheckProgress::Index { done, total } => (done, total, "index segments"),
        CheckProgress::Blocks { done, total } => (done, total, "keys"),
    };
    if bar.message() != what {
        bar.reset();
        bar.set_message(what);
    }
    bar.set_length(total);
    bar.set_position(done);
}

fn report(source: &str, checked: &Checked, took: Duration, is_json: bool) -> Result<End, CliError> {
    if is_json {
        print(format_args!("{:#}", json(source, checked, took)))?;
    } else {
        print(format_args!("{}", text(source, checked, took).trim_end()))?;
    }
    Ok(if checked.is_sound() { End::Done } else { End::NotFoundOrDiffers })
}

fn text(source: &str, checked: &Checked, took: Duration) -> String {
    let report = &checked.report;
    let segments = |count: u64| format!("{count} segments, {}", indicatif::HumanBytes(count * SEGMENT_BYTES));
    let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    let slots = report.index_segments * HOME_LINES * LINE_SLOTS as u64;
    let mut text = String::new();
    let mut row = |what: &str, shown: String| writeln!(text, "{what:<14} {shown}").expect("memory takes it");
    row("table", format!("{source}, {}", indicatif::HumanBytes(checked.region_bytes)));
    row("system", segments(report.fixed_segments));
    row(
        "index",
        format!(
            "{}; {} overflow lines with {} keys; {:.1} % of {slots} slots in home lines",
            segments(report.index_segments),
            report.overflow_lines,
            report.overflow_keys,
            share(report.keys, slots)
        ),
    );
    let small_bytes = report.block_bytes.saturating_sub(report.used_pages * PAGE_BYTES);
    row(
        "blocks",
        format!(
            "{}; {} blocks, {}, fill {:.1} %",
            segments(report.block_segments),
            report.keys - report.large_keys,
            indicatif::HumanBytes(small_bytes),
            share(small_bytes, report.block_segments * SEGMENT_BYTES)
        ),
    );
    row(
        "large",
        format!(
            "{}; {} blocks, {} pages, fill {:.1} %",
            segments(report.large_segments),
            report.large_keys,
            report.used_pages,
            share(report.used_pages * PAGE_BYTES, report.large_segments * SEGMENT_BYTES)
        ),
    );
    row("free", segments(report.free_segments));
    row(
        "checked",
        format!(
            "{} keys, {} of keys and values, {} of them expire, {} copied by a split; {:.3} s, {:.0} keys/s",
            report.keys,
            indicatif::HumanBytes(report.data_bytes),
            report.expiring_keys,
            report.copied_keys,
            took.as_secs_f64(),
            report.keys as f64 / took.as_secs_f64()
        ),
    );
    unjudged(checked, &mut row);
    for finding in &checked.findings {
        row("FINDING", finding.to_string());
    }
    let verdict = match checked.findings.len() {
        0 => "sound".to_owned(),
        found => format!("{found} findings{}", if found >= FINDINGS_MAX { ", and perhaps more" } else { "" }),
    };
    row("result", verdict);
    text
}

fn unjudged(checked: &Checked, row: &mut impl FnMut(&str, String)) {
    let unjudged = &checked.unjudged;
    if unjudged.sums {
        row("not judged", "counters against what is there: writes went on".into());
    }
    if unjudged.slots > 0 {
        row("not judged", format!("{} slots: written each time they were looked at", unjudged.slots));
    }
    for finding in &unjudged.half_done {
        row("not judged", format!("the server stands, perhaps in the middle of a write: {finding}"));
    }
}

fn json(source: &str, checked: &Checked, took: Duration) -> serde_json::Value {
    let (report, unjudged) = (&checked.report, &checked.unjudged);
    let findings = |list: &[CheckFinding]| -> Vec<serde_json::Value> {
        let of = |finding: &CheckFinding| {
            let said = finding.describe();
            serde_json::json!({
                "kind": said.kind, "place": said.place, "expected": said.expected, "found": said.found,
            })
        };
        list.iter().map(of).collect()
    };
    serde_json::json!({
        "schema": 1,
        "source": source,
        "sound": checked.is_sound(),
        "seconds": took.as_secs_f64(),
        "region_bytes": checked.region_bytes,
        "segments": {
            "system": report.fixed_segments,
            "index": report.index_segments,
            "blocks": report.block_segments,
            "large": report.large_segments,
            "free": report.free_segments,
        },
        "keys": report.keys,
        "data_bytes": report.data_bytes,
        "block_bytes": report.block_bytes,
        "expiring_keys": report.expiring_keys,
        "copied_keys": report.copied_keys,
        "overflow_lines": report.overflow_lines,
        "overflow_keys": report.overflow_keys,
        "large_keys": report.large_keys,
        "used_pages": report.used_pages,
        "findings": findings(&checked.findings),
        "not_judged": {
            "sums": unjudged.sums,
            "slots": unjudged.slots,
            "half_done": findings(&unjudged.half_done),
        },
    })
}
