//! What the kernel and the device know about RDMA, beside what the programs say.

use std::fs;
use std::path::Path;
use std::process::Command;

const DEVICES: &str = "/sys/class/infiniband";

/// The device that these tests use: the only one, or the first by name.
fn device() -> String {
    let mut names: Vec<String> = fs::read_dir(DEVICES)
        .expect("these tests need an RDMA device")
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names.into_iter().next().expect("these tests need an RDMA device")
}

/// What the device has counted by this name since it is there, if it does.
pub(crate) fn counter(name: &str) -> Option<u64> {
    let counters = Path::new(DEVICES).join(device()).join("ports/1/hw_counters");
    fs::read_to_string(counters.join(name)).ok()?.trim().parse().ok()
}

/// Packets that the device has sent since it is there, if it counts them.
pub(crate) fn sent_packets() -> Option<u64> {
    counter("sent_pkts")
}

/// Objects of all processes on the device: queue pairs, completion queues, memory regions and the like, by name.
pub(crate) fn objects() -> Option<Vec<(String, u64)>> {
    let output = Command::new("rdma").args(["resource", "show", &device()]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let words: Vec<&str> = text.split_whitespace().skip(2).collect();
    let objects = words.chunks_exact(2).map(|pair| Some((pair[0].to_owned(), pair[1].parse().ok()?)));
    objects.collect::<Option<Vec<_>>>().filter(|objects| !objects.is_empty())
}
