//! `kv load` and `kv verify`: directories as keys and values.

mod support;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use support::{Store, bytes, kv, run, write};

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

/// Files of many sizes, in many places, with names of any bytes.
fn some_files() -> Vec<(&'static OsStr, Vec<u8>)> {
    vec![
        (name("empty"), Vec::new()),
        (name("a/b/c/d/e/f/g/h/nested"), bytes(1, 100)),
        (name("a/empty too"), Vec::new()),
        (name("one"), bytes(2, 1)),
        (name("inline"), bytes(3, 8192)),
        (name("staged"), bytes(4, 8193)),
        (name("largest"), bytes(5, 1 << 20)),
        (name(".hidden/.file"), bytes(6, 50)),
        (name("new\nline"), bytes(7, 10)),
        (OsStr::from_bytes(b"not \xff\xfe UTF-8/\x80"), bytes(8, 10)),
    ]
}

fn args<'a>(command: &'a str, dir: &'a Path, more: &'a [&'a str]) -> Vec<&'a OsStr> {
    let more = more.iter().map(OsStr::new);
    [OsStr::new(command), dir.as_os_str()].into_iter().chain(more).collect()
}

#[test]
fn a_directory_is_stored_file_by_file_and_verified() {
    let store = Store::new();
    let files = some_files();
    let dir = store.files("dir", &files);
    std::os::unix::fs::symlink(dir.join("one"), dir.join("link")).unwrap();
    std::fs::create_dir(dir.join("empty directory")).unwrap();
    let before = store.kv(&args("verify", &dir, &[]));
    before.assert(1, "not in the store");
    let ran = store.kv(&args("load", &dir, &[]));
    ran.assert(0, "");
    assert!(
        ran.text().starts_with("10 files stored") && ran.text().contains("0 failed, 0 too large"),
        "{}",
        ran.text()
    );
    let mut client = store.client();
    for (path, value) in &files {
        assert!(client.get(path.as_bytes()).unwrap().unwrap().bytes == *value, "{path:?}");
    }
    assert_eq!(client.get(b"link"), Ok(None), "links are not followed");
    assert_eq!(client.server_stat().unwrap().counters["keys"], 10);
    let ran = store.kv(&args("verify", &dir, &[]));
    ran.assert(0, "");
    assert!(ran.text().contains("10 files verified") && ran.text().contains("10 GETs"), "{}", ran.text());
    // Again, over what is there; with a slash at the end; and from within.
    store.kv(&[OsStr::new("load"), dir.join("").as_os_str()]).assert(0, "");
    run(kv().env("KV_URL", store.url()).current_dir(&dir).args(["verify", "."]), b"").assert(0, "");
    // A single file: its key is its name.
    store.kv(&args("load", &dir.join("a/b/c/d/e/f/g/h/nested"), &[])).assert(0, "");
    assert_eq!(client.get(b"nested").unwrap().unwrap().bytes, bytes(1, 100));
}

#[test]
fn changed_and_missing_files_end_with_1_and_their_names() {
    let store = Store::new();
    let dir = store.files("dir", &some_files());
    store.kv(&args("load", &dir, &[])).assert(0, "");
    let mut client = store.client();
    // One byte of the same length; longer; shorter; empty; and one that the store never had.
    let mut changed = bytes(5, 1 << 20);
    changed[777_777] ^= 1;
    write(&dir.join("largest"), &changed);
    write(&dir.join("empty"), b"no more");
    write(&dir.join("a/new one"), b"new");
    client.put(b"inline", &bytes(3, 8191)).unwrap();
    client.put(b".hidden/.file", b"").unwrap();
    client.delete(b"one").unwrap();
    let ran = store.kv(&args("verify", &dir, &[]));
    ran.assert(1, "largest: differs from byte 777777");
    for part in
        ["empty: differs", "a/new one: not in the store", "inline: differs from byte 8191: 8191 bytes stored"]
    {
        ran.assert(1, part);
    }
    ran.assert(1, ".file: differs from byte 0: 0 bytes stored, 50 in the file");
    ran.assert(1, "one: not in the store");
    assert_eq!(ran.err.lines().count(), 6, "{}", ran.err);
    assert!(ran.text().contains("5 files verified") && ran.text().contains("6 failed"), "{}", ran.text());
    store.kv(&args("load", &dir, &[])).assert(0, "");
    store.kv(&args("verify", &dir, &[])).assert(0, "");
}

#[test]
fn of_many_failures_the_first_are_named_or_all_on_request() {
    let store = Store::new();
    let files: Vec<(String, Vec<u8>)> = (10..40).map(|i| (format!("file {i}"), bytes(i, 10))).collect();
    let files: Vec<(&OsStr, Vec<u8>)> =
        files.iter().map(|(path, value)| (name(path), value.clone())).collect();
    let dir = store.files("dir", &files);
    let ran = store.kv(&args("verify", &dir, &[]));
    ran.assert(1, "file 19: not in the store");
    assert_eq!(ran.err.lines().count(), 10);
    assert!(ran.text().contains("30 failed"));
    let ran = store.kv(&args("verify", &dir, &["--all"]));
    ran.assert(1, "file 39: not in the store");
    assert_eq!(ran.err.lines().count(), 30);
}

#[test]
fn files_beyond_the_limits_are_refused_or_left_out_on_request() {
    let store = Store::new();
    let dir =
        store.files("dir", &[(name("good"), bytes(1, 10)), (name("too large"), bytes(2, (1 << 20) + 1))]);
    // A path longer than a key may be: five names of 250 bytes.
    let long = vec!["n".repeat(250); 5].join("/");
    let deep = dir.join(&long);
    write(&deep, b"deep");
    for command in ["load", "verify"] {
        let ran = store.kv(&args(command, &dir, &[]));
        ran.assert(
            4,
            "too large: key of 9 bytes (at most 1024), value of 1048577 (at most 1048576); --skip-too-large",
        );
        ran.assert(4, "key of 1254 bytes (at most 1024)");
        assert!(
            ran.text().contains("1 files") && ran.text().contains("0 failed, 2 too large"),
            "{}",
            ran.text()
        );
        let ran = store.kv(&args(command, &dir, &["--skip-too-large"]));
        ran.assert(0, "");
        assert!(ran.err.is_empty() && ran.text().contains("2 too large"), "{} {}", ran.err, ran.text());
    }
    let mut client = store.client();
    assert_eq!(client.get(b"good").unwrap().unwrap().bytes, bytes(1, 10));
    assert_eq!(client.server_stat().unwrap().counters["keys"], 1);
}

#[test]
fn a_directory_that_does_not_fit_ends_with_4_and_keeps_what_was_stored() {
    let store = Store::with_memory(16 << 20);
    let files: Vec<(String, Vec<u8>)> = (10..60).map(|i| (format!("file {i}"), bytes(i, 300_000))).collect();
    let files: Vec<(&OsStr, Vec<u8>)> =
        files.iter().map(|(path, value)| (name(path), value.clone())).collect();
    let dir = store.files("dir", &files);
    let ran = store.kv(&args("load", &dir, &[]));
    ran.assert(4, "region full");
    let mut client = store.client();
    let stored = client.server_stat().unwrap().counters["keys"] as usize;
    assert!(
        stored > 10 && stored < 50 && ran.text().starts_with(&format!("{stored} files stored")),
        "{}",
        ran.text()
    );
    let found = files.iter().filter(|(path, value)| {
        client.get(path.as_bytes()).unwrap().is_some_and(|found| found.bytes == *value)
    });
    assert_eq!(found.count(), stored);
    store.kv(&args("verify", &dir, &[])).assert(1, "not in the store");
}

#[test]
fn an_empty_directory_is_done_at_once() {
    let store = Store::new();
    let dir = store.files("dir", &[]);
    for command in ["load", "verify"] {
        let ran = store.kv(&args(command, &dir, &[]));
        ran.assert(0, "");
        assert!(ran.text().contains("0 files"), "{}", ran.text());
    }
}
