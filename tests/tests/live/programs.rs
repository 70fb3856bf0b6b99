//! The programs under test: `kv-server` and `kv-bench`, as they are shipped.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Names a directory that holds the programs already, for instance those of a release.
const PROGRAMS_DIR: &str = "KV_TESTS_PROGRAMS";

/// The `kv-server` program.
pub(crate) fn kv_server() -> PathBuf {
    programs().join("kv-server")
}

/// The `kv-bench` program.
pub(crate) fn kv_bench() -> PathBuf {
    programs().join("kv-bench")
}

/// Runs `kv-bench` against the server of this URL.
pub(crate) fn run_kv_bench(url: &str, arguments: &[&str]) -> Output {
    Command::new(kv_bench()).args(arguments).env("KV_URL", url).output().expect("kv-bench can be run")
}

/// The JSON that a run prints, after it ended well.
pub(crate) fn bench_report(url: &str, arguments: &[&str]) -> serde_json::Value {
    let output = run_kv_bench(url, &[arguments, &["--json", "-"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object and nothing else")
}

/// Where the programs are. They belong to other packages than the tests, so cargo does not build them for us; and they
/// must be built without the features that tests switch on.
fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| std::env::var_os(PROGRAMS_DIR).map_or_else(build, PathBuf::from))
}

fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is above this package");
    let output = Command::new(cargo)
        .current_dir(root)
        // The profile of the tests: what they have built already is not built again.
        .args(["build", "--quiet", "--offline", "--profile", "test", "--message-format", "json"])
        .args(["--package", "kv-server", "--package", "kv-bench", "--bin", "kv-server", "--bin", "kv-bench"])
        .stdin(Stdio::null())
        .output()
        .expect("cargo can be run");
    let messages = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "cargo build: {}{messages}", String::from_utf8_lossy(&output.stderr));
    let executable = messages
        .lines()
        .find_map(|line| line.split_once("\"executable\":\"")?.1.split_once('"'))
        .expect("cargo says what it built")
        .0;
    Path::new(executable).parent().expect("a program lies in a directory").to_owned()
}
