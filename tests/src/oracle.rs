//! The history of all operations, judged while it grows and at its end.

use std::collections::BTreeMap;

pub use crate::linearizability::When;
use crate::linearizability::{self, IfResult, Kind, Op, Verdict};
use crate::value;

/// How the error of a check begins that found neither an order nor that there is none.
pub const UNDECIDED: &str = "undecided";

/// Names an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpId(usize);

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The value.
    Get,
    /// To store a value of so many bytes.
    Put {
        /// Bytes of the value.
        len_bytes: usize,
        /// How long it shall live, in ns.
        ttl_ns: Option<u64>,
    },
    /// To delete.
    Delete,
    /// To store a value of so many bytes if a condition holds.
    PutIf {
        /// The condition.
        when: When,
        /// Bytes of the value.
        len_bytes: usize,
        /// How long it shall live, in ns.
        ttl_ns: Option<u64>,
    },
    /// To delete if a condition holds.
    DeleteIf {
        /// The condition.
        when: When,
    },
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Return {
    /// GET: a value.
    Found {
        /// Its version.
        version: u64,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// GET, or a write with a condition: the key is absent.
    Absent,
    /// The value was stored under this version.
    Stored(u64),
    /// A write with a condition, which did not hold: the version was this one.
    Mismatch(u64),
    /// Delete: whether the key was there.
    Deleted(bool),
    /// An error that says that nothing was changed or found out.
    NoEffect,
    /// A write whose outcome is unknown.
    Unknown,
}

#[derive(Clone, Debug)]
struct Record {
    life: u32,
    key: usize,
    client: u32,
    call: Call,
    start: u64,
    end: u64,
    /// The server's clock then.
    clock_ns: (u64, u64),
    back: Option<Return>,
    /// The newest write of the key's only writer that was acknowledged when this operation began.
    acknowledged: usize,
}

/// What is known of a key with a single writer, in one life of the table.
#[derive(Clone, Copy, Debug, Default)]
struct SingleWriter {
    /// The newest write that was acknowledged, as its number plus 1; 0 for none.
    acknowledged: usize,
    /// A write whose outcome is unknown may happen at any time.
    has_unknown: bool,
}

/// A key as the oracle knows it.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// One client is the only one to write it, and never deletes it.
    pub is_single_writer: bool,
}

/// The history.
pub struct Oracle {
    keys: Vec<Key>,
    /// Keys may become absent at any moment.
    may_vanish: bool,
    ops: Vec<Record>,
    clock: u64,
    server_ns: u64,
    single: BTreeMap<(u32, usize), SingleWriter>,
    /// The write that a version belongs to, by life and version.
    versions: BTreeMap<(u32, u64), usize>,
    version_of: BTreeMap<usize, u64>,
}

/// What a check went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Histories of one key in one life.
    pub histories: u64,
    /// Operations with a known outcome.
    pub operations: u64,
    /// Writes of unknown outcome.
    pub unknown: u64,
}

impl Oracle {
    /// No operation yet.
    pub fn new(keys: Vec<Key>) -> Oracle {
        Oracle {
            keys,
            may_vanish: false,
            ops: Vec::new(),
            clock: 0,
            server_ns: 0,
            single: BTreeMap::new(),
            versions: BTreeMap::new(),
            version_of: BTreeMap::new(),
        }
    }

    /// The same of a server that evicts: any key may become absent at any moment.
    pub fn of_cache(keys: Vec<Key>) -> Oracle {
        Oracle { may_vanish: true, ..Oracle::new(keys) }
    }

    /// It is this time by the server's clock, for operations that begin and end from now on. Only those who let values
    /// expire have to say.
    pub fn set_server_clock(&mut self, server_ns: u64) {
        self.server_ns = server_ns;
    }

    /// The keys.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// An operation of `client` on key number `key` begins, in life `life` of the table.
    pub fn begin(&mut self, life: u32, client: u32, key: usize, call: Call) -> OpId {
        self.clock += 1;
        let acknowledged = self.single.get(&(life, key)).map_or(0, |single| single.acknowledged);
        let (start, end, clock_ns) = (self.clock, 0, (self.server_ns, u64::MAX));
        self.ops.push(Record { life, key, client, call, start, end, clock_ns, back: None, acknowledged });
        OpId(self.ops.len() - 1)
    }

    /// The value that a write stores.
    pub fn value(&self, op: OpId) -> Vec<u8> {
        let record = &self.ops[op.0];
        let (Call::Put { len_bytes, .. } | Call::PutIf { len_bytes, .. }) = record.call else {
            panic!("{:?} stores nothing", record.call)
        };
        value::make(op.0 as u32, &self.keys[record.key].bytes, len_bytes)
    }

    /// An operation ends. An error says why what it returned is wrong, whatever happens later.
    pub fn end(&mut self, op: OpId, back: Return) -> Result<(), String> {
        self.clock += 1;
        let clock = self.clock;
        let record = &mut self.ops[op.0];
        if let Some(before) = &record.back {
            return Err(format!("operation {op:?} ended twice: {before:?}, then {back:?}"));
        }
        (record.end, record.back) = (clock, Some(back.clone()));
        record.clock_ns.1 = self.server_ns;
        let record = record.clone();
        match &back {
            Return::Found { version, bytes } => self.found(op, &record, *version, bytes),
            Return::Absent
                if record.call == Call::Get
                    && !self.may_vanish
                    && record.acknowledged > 0
                    && self.keys[record.key].is_single_writer =>
            {
                Err(format!(
                    "{}: absent, though it is never deleted and was stored before",
                    self.describe(op)
                ))
            }
            Return::Stored(version) => {
                let single = self.single.entry((record.life, record.key)).or_default();
                single.acknowledged = single.acknowledged.max(op.0 + 1);
                self.learn_version(record.life, *version, op.0)
            }
            Return::Unknown => {
                self.single.entry((record.life, record.key)).or_default().has_unknown = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn found(&mut self, op: OpId, record: &Record, version: u64, bytes: &[u8]) -> Result<(), String> {
        let Some(write) = value::write_of(bytes) else { return self.found_short(op, record, version, bytes) };
        let is_true = self.ops.get(write as usize).is_some_and(|written| {
            let len_bytes = match written.call {
                Call::Put { len_bytes, .. } | Call::PutIf { len_bytes, .. } => len_bytes,
                Call::Get | Call::Delete | Call::DeleteIf { .. } => return false,
            };
            written.life == record.life
                && written.key == record.key
                && value::make(write, &self.keys[record.key].bytes, len_bytes) == bytes
        });
        if !is_true {
            return Err(format!("{}: no write stored these {} bytes", self.describe(op), bytes.len()));
        }
        let single = self.single.get(&(record.life, record.key)).copied().unwrap_or_default();
        let key = &self.keys[record.key];
        if key.is_single_writer && !single.has_unknown && (write as usize + 1) < record.acknowledged {
            return Err(format!(
                "{}: the value of write {write}, though write {} was acknowledged before",
                self.describe(op),
                record.acknowledged - 1
            ));
        }
        self.learn_version(record.life, version, write as usize)
    }

    fn found_short(&self, op: OpId, record: &Record, version: u64, bytes: &[u8]) -> Result<(), String> {
        let Some(&write) = self.versions.get(&(record.life, version)) else { return Ok(()) };
        if self.ops[write].key != record.key || self.value(OpId(write)) != bytes {
            return Err(format!(
                "{}: version {version} is of write {write}, which stored other bytes",
                self.describe(op)
            ));
        }
        Ok(())
    }

    fn learn_version(&mut self, life: u32, version: u64, write: usize) -> Result<(), String> {
        let other = *self.versions.entry((life, version)).or_insert(write);
        let before = *self.version_of.entry(write).or_insert(version);
        if other != write || before != version {
            return Err(format!(
                "version {version} of write {write}: also of write {other}, which also has {before}"
            ));
        }
        Ok(())
    }

    /// Operations that have begun.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// True if nothing has begun.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The operation in words.
    pub fn describe(&self, op: OpId) -> String {
        let record = &self.ops[op.0];
        format!(
            "operation {} of client {} on key {}: {:?} in life {}, {}..{}, {:?} ns",
            op.0,
            record.client,
            record.key,
            record.call,
            record.life,
            record.start,
            record.end,
            record.clock_ns
        )
    }

    /// Judges the whole history, key by key and life by life.
    pub fn check(&self) -> Result<Checked, String> {
        let mut histories: BTreeMap<(u32, usize), Vec<usize>> = BTreeMap::new();
        for (i, record) in self.ops.iter().enumerate() {
            histories.entry((record.life, record.key)).or_default().push(i);
        }
        let mut checked = Checked::default();
        for ((life, key), members) in histories {
            let (ops, names) = self.history(&members)?;
            checked.histories += 1;
            checked.operations += ops.iter().filter(|op| op.end.is_some()).count() as u64;
            checked.unknown += ops.iter().filter(|op| op.end.is_none()).count() as u64;
            match linearizability::check(&ops, self.may_vanish) {
                Verdict::Explained => {}
                Verdict::GivenUp(furthest) => {
                    return Err(format!("{UNDECIDED}: key {key} in life {life}: {furthest}"));
                }
                Verdict::Impossible(furthest) => {
                    let bytes = String::from_utf8_lossy(&self.keys[key].bytes);
                    return Err(format!(
                        "no order explains the operations on key {key} ({bytes:?}) in life {life}: {furthest}\n  \
                         the last of these are operations {:?}",
                        &names[names.len().saturating_sub(4)..]
                    ));
                }
            }
        }
        Ok(checked)
    }

    /// The operations on one key in one life, for the judge; those without effect are left out.
    fn history(&self, members: &[usize]) -> Result<(Vec<Op>, Vec<usize>), String> {
        let has_effect = |&&i: &&usize| {
            let record = &self.ops[i];
            !matches!(record.back, Some(Return::NoEffect))
                && (record.call != Call::Get || record.back.is_some())
        };
        let names: Vec<usize> = members.iter().filter(has_effect).copied().collect();
        let index: BTreeMap<usize, usize> = names.iter().enumerate().map(|(at, &i)| (i, at)).collect();
        let ops = names.iter().map(|&i| self.op(i, &index)).collect::<Result<_, _>>()?;
        Ok((ops, names))
    }

    fn op(&self, i: usize, index: &BTreeMap<usize, usize>) -> Result<Op, String> {
        let record = &self.ops[i];
        let version = self.version_of.get(&i).copied();
        let short = |len_bytes| (len_bytes < value::NAMED_BYTES_MIN).then(|| self.value(OpId(i)));
        let is_known = !matches!(record.back, None | Some(Return::Unknown));
        let kind = match (record.call, &record.back) {
            (Call::Get, Some(Return::Found { bytes, version })) => match value::write_of(bytes) {
                Some(write) => {
                    let Some(&write) = index.get(&(write as usize)) else {
                        let found = self.describe(OpId(i));
                        return Err(format!(
                            "{found}: the value of write {write}, which reported to have had no effect"
                        ));
                    };
                    Kind::GetWrite { write }
                }
                None => Kind::GetShort { value: bytes.clone(), version: *version },
            },
            (Call::Get, _) => Kind::GetAbsent,
            (Call::Put { len_bytes, .. }, _) => Kind::Put { version, short: short(len_bytes) },
            (Call::Delete, back) => Kind::Delete {
                found: if let Some(Return::Deleted(found)) = back { Some(*found) } else { None },
            },
            (Call::PutIf { when, len_bytes, .. }, back) => {
                Kind::PutIf { when, result: if_result(back.as_ref()), version, short: short(len_bytes) }
            }
            (Call::DeleteIf { when }, back) => Kind::DeleteIf { when, result: if_result(back.as_ref()) },
        };
        let ttl_ns = match record.call {
            Call::Put { ttl_ns, .. } | Call::PutIf { ttl_ns, .. } => ttl_ns,
            _ => None,
        };
        // What is not known to have ended may happen at any time.
        let clock_ns = (record.clock_ns.0, if is_known { record.clock_ns.1 } else { u64::MAX });
        let until = |ttl_ns: u64| (clock_ns.0.saturating_add(ttl_ns), clock_ns.1.saturating_add(ttl_ns));
        let (client, start, end) = (record.client, record.start, is_known.then_some(record.end));
        Ok(Op { client, start, end, clock_ns, expires_ns: ttl_ns.map(until), kind })
    }
}

fn if_result(back: Option<&Return>) -> Option<IfResult> {
    match back? {
        Return::Stored(_) | Return::Deleted(true) => Some(IfResult::Done),
        Return::Mismatch(version) => Some(IfResult::Mismatch(*version)),
        Return::Absent => Some(IfResult::NotFound),
        _ => None,
    }
}
