//! `kv check`: a server, and files with a region, sound and damaged in every way.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kv_common::block;
use kv_common::check::view_of;
use kv_common::layout::{
    Counter, HOME_LINES, Header, LINE_SLOTS, Lengths, LineNumber, NOT_LIVE, PAGE_WORDS, Place,
    SEGMENT_GRANULES, SEGMENT_WORDS, Slot, superblock,
};
use kv_common::probe::TableView;
use kv_common::region::{Words, bytes_of, bytes_of_mut};
use support::{Ran, Store, bytes, kv, run};

/// A window is full with 14; these fill an overflow line, and begin another.
const CROWD: usize = 14 + LINE_SLOTS + 1;

/// The region of a server, as `--save` wrote it.
struct Saved {
    path: PathBuf,
    sound: Vec<u64>,
    words: Words,
    view: TableView,
    crowd: Vec<[u8; 8]>,
}

fn read(path: &Path) -> Vec<u64> {
    let file = std::fs::read(path).unwrap();
    let mut words = vec![0; file.len() / 8];
    bytes_of_mut(&mut words).copy_from_slice(&file);
    words
}

fn in_memory(file: &[u64]) -> Words {
    let words = Words::zeroed(file.len());
    words.copy_in(0, file);
    words
}

fn check(path: &Path) -> Ran {
    run(kv().args(["check", "--json", "--file"]).arg(path), b"")
}

impl Saved {
    /// A table with keys of one home, others, and one in pages.
    fn new(store: &Store) -> Saved {
        let path = store.dir.path().join("region");
        let save = || store.kv(&["check", "--save", path.to_str().unwrap()]).assert(0, "");
        save();
        let view = view_of(&in_memory(&read(&path))).unwrap();
        let home = |key: &[u8; 8]| view.home(view.hash(key));
        let crowd: Vec<[u8; 8]> =
            (0u64..).map(u64::to_le_bytes).filter(|key| home(key) == home(&[0; 8])).take(CROWD).collect();
        let mut client = store.client();
        for key in &crowd {
            client.put(key, b"value").unwrap();
        }
        client.put(b"large", &bytes(1, 400_000)).unwrap();
        client.put(b"other", &bytes(2, 3000)).unwrap();
        save();
        let sound = read(&path);
        Saved { words: in_memory(&sound), path, sound, view, crowd }
    }

    /// The word of a key's slot.
    fn slot_word(&self, key: &[u8]) -> usize {
        let home = self.view.home(self.view.hash(key));
        let mut lines = vec![home.next(), home];
        while let next @ 1.. = self.header(*lines.last().unwrap()).next() {
            lines.push(home.sibling(next));
        }
        let of_line = |line: LineNumber| (1..=LINE_SLOTS).map(move |index| line.word() + index);
        let is_key = |&word: &usize| {
            let slot = Slot(self.words.load(word));
            let mut block = [0; 8];
            let is_there = !slot.is_empty() && slot.fingerprint() == self.view.hash(key).fingerprint();
            if is_there {
                self.words.copy_out(slot.place().word(), &mut block);
            }
            is_there && block::key_of(&block) == Some(key)
        };
        lines.into_iter().flat_map(of_line).find(is_key).expect("the key is there")
    }

    fn slot(&self, key: &[u8]) -> Slot {
        Slot(self.words.load(self.slot_word(key)))
    }

    fn block_word(&self, key: &[u8]) -> usize {
        self.slot(key).place().word()
    }

    fn header(&self, line: LineNumber) -> Header {
        Header(self.words.load(line.word()))
    }

    /// Changes a word of the file, and asserts that the check says just this; then changes it back.
    #[track_caller]
    fn expect(&self, kinds: &[&str], word: usize, value: u64) {
        assert_ne!(self.sound[word], value, "no damage");
        let mut damaged = self.sound.clone();
        damaged[word] = value;
        std::fs::write(&self.path, bytes_of(&damaged)).unwrap();
        let ran = check(&self.path);
        assert_eq!(ran.code, Some(1), "{kinds:?}: {}{}", ran.text(), ran.err);
        let report: serde_json::Value = serde_json::from_str(ran.text()).unwrap();
        assert_eq!((&report["schema"], &report["sound"]), (&1.into(), &false.into()));
        let findings = report["findings"].as_array().unwrap();
        let text = |finding: &serde_json::Value, part: &str| finding[part].as_str().unwrap().to_owned();
        let found: BTreeSet<String> = findings.iter().map(|finding| text(finding, "kind")).collect();
        assert_eq!(found, kinds.iter().map(|kind| kind.to_string()).collect(), "{findings:#?}");
        for finding in findings {
            assert!(["place", "expected", "found"].iter().all(|part| !text(finding, part).is_empty()));
        }
    }
}

#[test]
fn every_kind_of_damage_is_said_and_nothing_else() {
    let store = Store::new();
    let saved = Saved::new(&store);
    let ran = check(&saved.path);
    ran.assert(0, "");
    let report: serde_json::Value = serde_json::from_str(ran.text()).unwrap();
    assert_eq!((&report["sound"], &report["keys"]), (&true.into(), &(CROWD + 2).into()));
    assert_eq!((&report["large_keys"], &report["used_pages"]), (&1.into(), &7.into()));

    let (first, last) = (&saved.crowd[0], &saved.crowd[CROWD - 1]);
    let (word, slot, block) = (saved.slot_word(first), saved.slot(first), saved.block_word(first));
    let load = |word: usize| saved.words.load(word);
    // A home line that is far from theirs.
    let home = saved.view.home(saved.view.hash(first));
    let elsewhere = home.sibling((home.in_segment() + HOME_LINES / 2) as u16 % HOME_LINES as u16);
    assert_eq!(load(elsewhere.word() + 1), 0, "no key of this table is there");
    // Slots.
    let nowhere = Place((saved.sound.len() / SEGMENT_WORDS - 1) as u64 * SEGMENT_GRANULES);
    let free = Slot::new(
        slot.fingerprint(),
        slot.span(),
        Place(nowhere.0 / 2 / SEGMENT_GRANULES * SEGMENT_GRANULES),
    );
    saved.expect(&["no_block"], word, free.0);
    saved.expect(&["no_block"], word, slot.0 | ((1 << 40) - 1));
    saved.expect(&["fingerprint"], word, Slot::new(slot.fingerprint() ^ 2, slot.span(), slot.place()).0);
    let behind_last = saved.slot_word(last) + 1;
    saved.expect(&["block_twice"], behind_last, slot.0);
    saved.expect(&["home"], elsewhere.word() + 1, slot.0);
    saved.expect(&["sum"], word, 0);
    // Blocks.
    saved.expect(&["damaged"], block + 1, load(block + 1) ^ 1);
    saved.expect(&["damaged"], block + 3, load(block + 3) ^ 1 << 63);
    saved.expect(&["not_live"], block, load(block) | NOT_LIVE);
    saved.expect(&["damaged"], block + 2, load(block + 2) | 0xffff_ffff);
    let large = saved.block_word(b"large");
    let lengths = Lengths { value_bytes: u32::MAX, ..Lengths::decode(load(large + 2)) };
    saved.expect(&["span"], large + 2, lengths.encode());
    saved.expect(&["damaged"], large + 3 * PAGE_WORDS - 1, !load(large + 3 * PAGE_WORDS - 1));
    saved.expect(&["marker"], large + PAGE_WORDS, 1);
    saved.expect(&["ceiling"], superblock::VERSION_CEILING, (load(large) & !NOT_LIVE).max(load(block)));
    // Lines.
    let tail = LineNumber((saved.slot_word(last) / 8) as u64);
    let full = saved.header(saved.view.home(saved.view.hash(first))).next();
    assert!(tail.in_segment() >= HOME_LINES && full as u64 != tail.in_segment(), "two overflow lines");
    saved.expect(&["link"], tail.word(), saved.header(tail).with_next(full).0);
    saved.expect(&["header"], tail.word(), saved.header(tail).overflow_of(3).0);
    saved.expect(&["header"], elsewhere.word(), Header::home(1, 1).0);
    saved.expect(&["empty_tail"], saved.slot_word(last), 0);
    // Segments, directory, superblock.
    let blocks = slot.place().segment() as usize;
    saved.expect(&["no_block"], superblock::SEGMENT_TABLE + blocks, 0);
    saved.expect(&["no_block", "segment_entry"], superblock::SEGMENT_TABLE + blocks, 0x77);
    saved.expect(&["kind", "unreachable"], saved.view.directory_word, blocks as u64);
    saved.expect(&["identity"], saved.view.directory_word, 1 << 40);
    saved.expect(&["identity"], superblock::GRACE_NS, 0);
    saved.expect(&["identity"], superblock::REGION_BYTES, 16 << 20);
    saved.expect(&["identity"], superblock::WORKERS, 65);
    saved.expect(&["reserved"], 700, 1);
    saved.expect(&["sum"], superblock::COUNTERS + Counter::DataBytes as usize, 5);
}

#[test]
fn a_server_is_checked_and_people_are_told() {
    let store = Store::new();
    let _saved = Saved::new(&store);
    let ran = store.kv(&["check"]);
    ran.assert(0, "");
    for part in [" keys of keys", "1 blocks, 7 pages", "result         sound"] {
        let part = part.replace(" keys of keys", &format!("{} keys, ", CROWD + 2));
        assert!(ran.text().contains(&part), "{part:?} is not in {}", ran.text());
    }
    let json: serde_json::Value = serde_json::from_str(store.kv(&["check", "--json"]).text()).unwrap();
    assert_eq!((&json["sound"], &json["not_judged"]["sums"]), (&true.into(), &false.into()));
    store.kv(&["check", "--save", "/nowhere/region"]).assert(2, "/nowhere/region");
    run(kv().args(["--url", "/nowhere/kv.sock", "check"]), b"").assert(3, "no server");
}

#[test]
fn files_that_are_no_region_are_refused() {
    let store = Store::new();
    let saved = Saved::new(&store);
    let path = store.dir.path().join("bad");
    let whole = bytes_of(&saved.sound);
    let of_other_layout = [&whole[..8], &9u64.to_le_bytes(), &whole[16..]].concat();
    for (file, says) in [
        (&[][..], "no whole region: 0 bytes"),
        (&whole[..4096], "no whole region: 4096 bytes"),
        (&whole[..whole.len() - 8], "no whole region"),
        (&whole[..whole.len() / 2], "expected 33554432 as its superblock says"),
        (&vec![0; 16 << 20], "not a table"),
        (&bytes(5, 16 << 20), "not a table"),
        (&of_other_layout, "layout version 9"),
    ] {
        std::fs::write(&path, file).unwrap();
        check(&path).assert(2, says);
    }
    check(&store.dir.path().join("missing")).assert(2, "No such file");
    check(store.dir.path()).assert(2, "no whole region");
}
