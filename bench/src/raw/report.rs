//! The result: perftest's columns for people, JSON for programs.

use std::fmt::Write;

use serde::Serialize;

use super::plan::{Connection, Measure, Operation, Test};
use super::statistics::{Bandwidth, Latency};

/// Name and version of the format.
pub const SCHEMA: &str = "kv-bench-raw/1";
/// perftest's MB.
const MB_BYTES: f64 = (1 << 20) as f64;

/// The port that was measured on.
#[derive(Clone, Debug, Serialize)]
pub struct PortJson {
    /// The device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// What the port is plugged into.
    pub link_layer: String,
    /// The port's MTU.
    pub active_mtu_bytes: u32,
    /// Index of the GID.
    pub gid_index: u8,
    /// The GID.
    pub gid: String,
    /// Its kind.
    pub gid_kind: String,
}

/// One measurement.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// read, write or send.
    pub operation: Operation,
    /// rc, uc or ud.
    pub connection: Connection,
    /// latency or bandwidth.
    pub measure: Measure,
    /// Bytes of a message.
    pub bytes: u32,
    /// Messages on each queue pair.
    pub iterations: u32,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Requests in flight on each.
    pub depth: u32,
    /// The smaller of both sides' MTUs.
    pub mtu_bytes: u32,
    /// What the latency is of: true for half of a ping-pong, false for a round trip.
    pub half_round_trip: bool,
    /// With `measure` latency.
    pub latency_ns: Option<Latency>,
    /// With `measure` bandwidth.
    pub bandwidth: Option<Bandwidth>,
    /// Messages that did not arrive; null where nobody counts them.
    pub lost: Option<u64>,
}

impl Row {
    /// Without figures yet.
    pub fn new(test: Test, mtu_bytes: u32) -> Self {
        Self {
            operation: test.operation,
            connection: test.connection,
            measure: test.measure,
            bytes: test.size_bytes,
            iterations: test.iterations,
            queue_pairs: test.queue_pairs,
            depth: test.depth,
            mtu_bytes,
            half_round_trip: test.measure == Measure::Latency && test.halves(),
            latency_ns: None,
            bandwidth: None,
            lost: None,
        }
    }

    /// What rows of one table have in common.
    fn kind(&self) -> (Operation, Connection, Measure) {
        (self.operation, self.connection, self.measure)
    }
}

/// All measurements. Names are stable: they are added to, never changed, within one `schema`.
#[derive(Debug, Serialize)]
pub struct RawJson {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// This side's port.
    #[serde(flatten)]
    pub port: PortJson,
    /// The other side: an address, or `this process`.
    pub peer: String,
    /// Where the times come from.
    pub clock: &'static str,
    /// In the order in which they were measured.
    pub results: Vec<Row>,
}

impl RawJson {
    /// The text of the file, one object and a newline.
    pub fn to_text(&self) -> String {
        let mut text =
            serde_json::to_string_pretty(self).expect("only strings and numbers, no maps with other keys");
        text.push('\n');
        text
    }

    /// The tables.
    pub fn table(&self) -> String {
        let mut out = String::new();
        self.write(&mut out).expect("writing to a string does not fail");
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let port = &self.port;
        writeln!(
            out,
            "{} port {} ({}), MTU {}, GID {}: {} ({}); the other side: {}; times from the {}",
            port.device,
            port.port,
            port.link_layer,
            port.active_mtu_bytes,
            port.gid_index,
            port.gid,
            port.gid_kind,
            self.peer,
            self.clock
        )?;
        let mut before = None;
        for row in &self.results {
            if before.replace(row.kind()) != Some(row.kind()) {
                write_head(out, row)?;
            }
            write_row(out, row)?;
        }
        Ok(())
    }
}

fn write_head(out: &mut String, row: &Row) -> std::fmt::Result {
    let (operation, connection) = (row.operation.name(), row.connection.name());
    match row.measure {
        Measure::Latency => {
            let of = if row.half_round_trip { "half of a ping-pong" } else { "round trip" };
            writeln!(
                out,
                "\n{operation} latency, {connection}, {of}\n #bytes     #iterations    t_min[usec]    t_max[usec]  \
                 t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]"
            )
        }
        Measure::Bandwidth => writeln!(
            out,
            "\n{operation} bandwidth, {connection}, {} queue pair(s), {} request(s) in flight on each; MB are 2^20 bytes\n \
             #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]",
            row.queue_pairs, row.depth
        ),
    }
}

fn write_row(out: &mut String, row: &Row) -> std::fmt::Result {
    write!(out, " {:<10} {:<11}", row.bytes, row.iterations)?;
    if let Some(ns) = row.latency_ns {
        let us = [ns.min, ns.max, ns.typical, ns.avg, ns.stdev, ns.p99, ns.p99_9].map(|ns| ns / 1e3);
        for (us, width) in us.into_iter().zip([14, 14, 16, 14, 16, 22, 24]) {
            write!(out, " {us:>width$.2}")?;
        }
    }
    if let Some(rates) = row.bandwidth {
        let (peak, average) = (rates.peak_bytes_per_s / MB_BYTES, rates.average_bytes_per_s / MB_BYTES);
        write!(out, " {peak:>18.2} {average:>21.2} {:>15.6}", rates.messages_per_s / 1e6)?;
    }
    match row.lost {
        Some(lost @ 1..) => writeln!(
            out,
            "   {lost} of {} did not arrive",
            u64::from(row.iterations) * u64::from(row.queue_pairs)
        ),
        _ => writeln!(out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(operation: Operation, measure: Measure) -> Test {
        Test {
            operation,
            connection: Connection::Uc,
            measure,
            size_bytes: 64,
            depth: 8,
            queue_pairs: 2,
            iterations: 1000,
        }
    }

    fn result() -> RawJson {
        let mut latency = Row::new(test(Operation::Send, Measure::Latency), 1024);
        latency.latency_ns = Some(Latency {
            min: 1_000.0,
            max: 9_000.0,
            typical: 2_340.0,
            avg: 2_500.0,
            stdev: 120.0,
            p99: 5_000.0,
            p99_9: 8_000.0,
        });
        let mut bandwidth = Row::new(test(Operation::Send, Measure::Bandwidth), 1024);
        bandwidth.bandwidth = Some(Bandwidth {
            peak_bytes_per_s: 3.0 * MB_BYTES,
            average_bytes_per_s: 2.5 * MB_BYTES,
            messages_per_s: 40_960.0,
        });
        bandwidth.lost = Some(3);
        RawJson {
            schema: SCHEMA,
            port: PortJson {
                device: "mlx5_0".into(),
                port: 1,
                link_layer: "Ethernet".into(),
                active_mtu_bytes: 1024,
                gid_index: 3,
                gid: "::ffff:192.0.2.1".into(),
                gid_kind: "RoCE v2".into(),
            },
            peer: "192.0.2.2:7412".into(),
            clock: "time-stamp counter",
            results: vec![latency, bandwidth],
        }
    }

    #[test]
    fn has_the_columns_of_perftest() {
        let text = result().table();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let latency = ["64", "1000", "1.00", "9.00", "2.34", "2.50", "0.12", "5.00", "8.00"];
        assert!(rows.contains(&latency.to_vec()), "{text}");
        assert!(
            rows.iter().any(|row| row.starts_with(&["64", "1000", "3.00", "2.50", "0.040960"])),
            "{text}"
        );
        for part in [
            "SEND latency, UC, half of a ping-pong",
            "#bytes     #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]",
            "BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]",
            "3 of 2000 did not arrive",
            "mlx5_0 port 1 (Ethernet), MTU 1024, GID 3: ::ffff:192.0.2.1 (RoCE v2)",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    #[test]
    fn json_has_the_stable_names() {
        let json: serde_json::Value = serde_json::from_str(&result().to_text()).unwrap();
        assert_eq!(json["schema"], "kv-bench-raw/1");
        assert_eq!(
            (&json["device"], &json["port"], &json["gid_index"]),
            (&"mlx5_0".into(), &1.into(), &3.into())
        );
        let (latency, bandwidth) = (&json["results"][0], &json["results"][1]);
        assert_eq!(latency["operation"], "send");
        assert_eq!(latency["connection"], "uc");
        assert_eq!(latency["measure"], "latency");
        assert_eq!(latency["half_round_trip"], true);
        assert_eq!(latency["latency_ns"]["typical"], 2340.0);
        for name in ["min", "max", "typical", "avg", "stdev", "p99", "p99_9"] {
            assert!(latency["latency_ns"][name].is_number(), "{name}");
        }
        assert!(latency["bandwidth"].is_null() && latency["lost"].is_null());
        assert_eq!(bandwidth["bandwidth"]["messages_per_s"], 40_960.0);
        for name in ["peak_bytes_per_s", "average_bytes_per_s"] {
            assert!(bandwidth["bandwidth"][name].is_number(), "{name}");
        }
        assert_eq!(
            (&bandwidth["bytes"], &bandwidth["queue_pairs"], &bandwidth["depth"]),
            (&64.into(), &2.into(), &8.into())
        );
        assert_eq!((&bandwidth["lost"], &bandwidth["mtu_bytes"]), (&3.into(), &1024.into()));
    }
}
