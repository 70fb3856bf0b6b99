//! Which tests arguments mean, and what is refused.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    raw: RawArgs,
}

fn planned(line: &str) -> Result<Vec<Test>, PlanError> {
    let words = std::iter::once("raw").chain(line.split_whitespace());
    tests(&Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")).raw)
}

#[test]
fn by_default_latencies_of_all_and_bandwidth_of_read() {
    let all = planned("--size 64,1KiB -q 3 -t 7 -n 50").unwrap();
    let short: Vec<_> = all.iter().map(|test| (test.operation, test.measure, test.size_bytes)).collect();
    use {Measure::*, Operation::*};
    let expected = [(Read, Latency), (Write, Latency), (Send, Latency), (Read, Bandwidth)]
        .map(|(operation, measure)| [64, 1024].map(|size| (operation, measure, size)));
    assert_eq!(short, expected.concat());
    assert!(all.iter().all(|test| test.connection == Connection::Rc && test.iterations == 50));
    assert_eq!((all[0].depth, all[0].queue_pairs), (1, 1), "latency is of one message at a time");
    assert_eq!((all[7].depth, all[7].queue_pairs), (7, 3));
}

#[test]
fn what_verbs_do_not_have_is_refused_with_the_reason() {
    for (line, reason) in [
        ("-o read -c uc", "UC has no READ"),
        ("-o READ -c ud", "UD has no READ"),
        ("-o write -c ud", "UD has no WRITE"),
        ("-o read -n 4", "--iterations is 4; it must be 5 to"),
        ("-o read -t 0", "--depth is 0"),
        ("-o read -q 257", "--queue-pairs is 257"),
        ("-o read -s 0", "--size is 0"),
        ("-o read -s 64,1GiB", "--size is 1073741824"),
        ("-o read -m bandwidth -s 8MiB -q 100", "registered memory"),
        ("-o read -m bandwidth -n 1M -q 11", "smaller --iterations"),
        ("-o read -n 99999999999", "--iterations is 99999999999"),
    ] {
        let error = planned(line).unwrap_err().to_string();
        assert!(error.contains(reason), "{line}: {error}");
    }
    for line in ["-o send -c ud", "-o send -c uc", "-o write -c UC", "-o read -m latency -q 256"] {
        planned(line).unwrap();
    }
}

#[test]
fn a_datagram_is_one_packet() {
    let test = planned("-o send -c ud -s 1025").unwrap()[0];
    assert_eq!(test.check_mtu(1024), Err(PlanError::AboveMtu { size_bytes: 1025, mtu_bytes: 1024 }));
    assert_eq!(test.check_mtu(2048), Ok(()));
    assert_eq!(Test { connection: Connection::Uc, ..test }.check_mtu(1024), Ok(()));
}

#[test]
fn buffers_do_not_overlap_and_end_within_the_memory() {
    let test = planned("-o send -m bandwidth -s 100 -q 3").unwrap()[0];
    // 100 + 40 bytes are three lines.
    assert_eq!(test.memory_bytes(), 6 * 192);
    let starts: Vec<_> = (0..3).flat_map(|lane| [test.source_at(lane), test.target_at(lane)]).collect();
    assert_eq!(starts, [0, 192, 384, 576, 768, 960]);
}
