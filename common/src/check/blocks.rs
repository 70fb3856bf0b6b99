//! Verifies the blocks that slots name.

use super::findings::{CheckReport, SlotFault};
use super::index::Entry;
use super::region::{PIECE_MAX_WORDS, Piece, Region};
use super::tables::Tables;
use super::{Observe, large};
use crate::block::{self, Verdict};
use crate::hash::KeyHash;
use crate::layout::{Lengths, Run, SEGMENT_GRANULES, SegmentEntry, SegmentKind, Slot, Span, stored_bytes};
use crate::limits::KEY_MAX_BYTES;

/// Words between two blocks that are read with them rather than apart.
const GAP_MAX_WORDS: usize = 512;

/// What a block turned out to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verified {
    pub(super) hash: KeyHash,
    pub(super) version: u64,
    pub(super) lengths: Lengths,
    /// Its pages, if it lies in such.
    pub(super) run: Option<Run>,
}

/// A slot with a fault, as it was seen.
#[derive(Clone, Debug)]
pub(super) struct Suspect {
    /// Which of the entries that were looked at.
    pub(super) number: usize,
    pub(super) fault: SlotFault,
    /// Word 0 and check of its block: if they change, somebody writes there.
    pub(super) evidence: [u64; 2],
}

/// What verified blocks add up to.
pub(super) struct Sums<'a> {
    pub(super) report: &'a mut CheckReport,
    pub(super) runs: &'a mut Vec<Run>,
}

/// Verifies the blocks of entries, which are sorted by place; sets the hashes of those without a fault, and adds them to the
/// sums. Returns the others, by their number.
pub(super) fn verify<R: Region>(
    region: &mut R,
    tables: &Tables,
    entries: &[Entry],
    sums: &mut Sums,
    observe: &mut Observe,
) -> Result<Vec<Suspect>, R::Error> {
    let mut suspects = Vec::new();
    let mut settle = |number: usize, evidence: [u64; 2], verified: Result<Verified, SlotFault>| {
        let entry: &Entry = &entries[number];
        match verified.and_then(|verified| judge(tables, entry, verified).map(|()| verified)) {
            Ok(verified) => {
                entry.hash.set(verified.hash.0);
                add(sums, verified.lengths);
                sums.runs.extend(verified.run);
            }
            Err(fault) => suspects.push(Suspect { number, fault, evidence }),
        }
    };
    let mut in_pages = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        if entry.slot.span().is_large() {
            in_pages.push(number);
        } else if !is_block_start(tables, entry.slot) {
            settle(number, [0; 2], Err(SlotFault::NoBlock));
        }
    }
    let is_read = |entry: &Entry| !entry.slot.span().is_large() && is_block_start(tables, entry.slot);
    let mut next = 0;
    let mut pieces = std::iter::from_fn(|| {
        let (piece, end) = next_piece(tables, entries, next, &is_read)?;
        next = end;
        Some(piece)
    });
    let mut done = 0;
    region.read(&mut pieces, &mut |piece, words| {
        let (_, end) = next_piece(tables, entries, done, &is_read).expect("it was read");
        for number in (done..end).filter(|&number| is_read(&entries[number])) {
            let entry = &entries[number];
            let words = &words[entry.place().word() - piece.at_word..][..block_words(tables, entry.slot)];
            settle(number, [words[0], words[1]], small(tables, entry.slot, words));
        }
        done = end;
        observe.blocks(end as u64, entries.len() as u64);
    })?;
    for number in in_pages {
        let mut evidence = [0; 2];
        let verified = large::verify(region, tables, entries[number].slot, &mut evidence)?;
        settle(number, evidence, verified);
    }
    suspects.sort_unstable_by_key(|suspect| suspect.number);
    Ok(suspects)
}

/// The next words to read, and the entry behind those whose blocks are in them.
fn next_piece(
    tables: &Tables,
    entries: &[Entry],
    from: usize,
    is_read: &impl Fn(&Entry) -> bool,
) -> Option<(Piece, usize)> {
    let mut piece: Option<Piece> = None;
    for (number, entry) in entries.iter().enumerate().skip(from).filter(|(_, entry)| is_read(entry)) {
        let start = entry.place().word();
        let end = start + block_words(tables, entry.slot);
        match &mut piece {
            None => piece = Some(Piece { at_word: start, len_words: end - start }),
            Some(piece)
                if start <= piece.end_word() + GAP_MAX_WORDS && end - piece.at_word <= PIECE_MAX_WORDS =>
            {
                piece.len_words = piece.len_words.max(end - piece.at_word);
            }
            Some(piece) => return Some((*piece, number)),
        }
    }
    piece.map(|piece| (piece, entries.len()))
}

/// True if a block in one piece can be where the slot says.
fn is_block_start(tables: &Tables, slot: Slot) -> bool {
    let (span, place) = (slot.span(), slot.place());
    if tables.view.block_words(slot).is_none() {
        return false;
    }
    let start_granules = place.0 % SEGMENT_GRANULES;
    let class = SegmentEntry { kind: SegmentKind::Blocks, class: span.0 };
    tables.segments[place.segment() as usize] == class
        && start_granules.is_multiple_of(span.granules())
        && start_granules + span.granules() <= SEGMENT_GRANULES
}

fn block_words(tables: &Tables, slot: Slot) -> usize {
    tables.view.block_words(slot).expect("a block can be there")
}

fn small(tables: &Tables, slot: Slot, words: &[u64]) -> Result<Verified, SlotFault> {
    let is_key = |key: &&[u8]| (1..=KEY_MAX_BYTES).contains(&key.len());
    let key = block::key_of(words).filter(is_key);
    // A block without such a key is not live, or it is damaged.
    match block::judge(words, key.unwrap_or_default(), slot.place(), tables.view.table_id) {
        Verdict::Found { version, .. } | Verdict::Expiring { version, .. } => {
            let key = key.ok_or(SlotFault::Damaged)?;
            let lengths = Lengths::decode(words[2]);
            let block_bytes = lengths.block_bytes();
            if Span::of_bytes(block_bytes) != slot.span() {
                return Err(SlotFault::Span { block_bytes });
            }
            Ok(Verified { hash: tables.view.hash(key), version, lengths, run: None })
        }
        Verdict::NotLive => Err(SlotFault::NotLive),
        Verdict::OtherKey | Verdict::Torn => Err(SlotFault::Damaged),
    }
}

/// Whether a verified block belongs to its slot.
fn judge(tables: &Tables, entry: &Entry, verified: Verified) -> Result<(), SlotFault> {
    let Verified { hash, version, .. } = verified;
    if hash.fingerprint() != entry.slot.fingerprint() {
        return Err(SlotFault::Fingerprint { found: hash.fingerprint() });
    }
    if !entry.is_of_home(hash.home()) {
        return Err(SlotFault::Home { home: tables.view.home(hash) });
    }
    if version >= tables.ceiling() {
        return Err(SlotFault::Ceiling { version });
    }
    Ok(())
}

fn add(sums: &mut Sums, lengths: Lengths) {
    sums.report.keys += 1;
    sums.report.data_bytes += lengths.data_bytes() as u64;
    sums.report.block_bytes += stored_bytes(lengths.block_bytes());
    sums.report.expiring_keys += u64::from(lengths.expires());
}

/// Takes the block of a copied slot out of the sums again. In a live region it may be another block by now; then the sums are
/// not judged.
pub(super) fn subtract_copy(report: &mut CheckReport, lengths: Lengths) {
    report.copied_keys += 1;
    let subtract = |sum: &mut u64, bytes: u64| *sum = sum.saturating_sub(bytes);
    subtract(&mut report.keys, 1);
    subtract(&mut report.data_bytes, lengths.data_bytes() as u64);
    subtract(&mut report.block_bytes, stored_bytes(lengths.block_bytes()));
    subtract(&mut report.expiring_keys, u64::from(lengths.expires()));
}
