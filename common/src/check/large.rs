//! Verifies blocks that lie in pages. Nothing of their values is kept.

use super::blocks::Verified;
use super::findings::SlotFault;
use super::region::{Piece, Region, read_into};
use super::tables::Tables;
use crate::block;
use crate::hash::PayloadHasher;
use crate::large::{payload_of, piece_of, run_of};
use crate::layout::{Lengths, MARKER, NOT_LIVE, PAGE_HEAD_WORDS, PAGE_WORDS, SegmentKind, Slot};
use crate::limits::KEY_MAX_BYTES;

/// Verifies the block that a slot names; `evidence` becomes its word 0 and check.
pub(super) fn verify<R: Region>(
    region: &mut R,
    tables: &Tables,
    slot: Slot,
    evidence: &mut [u64; 2],
) -> Result<Result<Verified, SlotFault>, R::Error> {
    let view = &tables.view;
    let Some(first) = view.first_page(slot) else { return Ok(Err(SlotFault::NoBlock)) };
    if tables.kind(first.place().segment()) != SegmentKind::Large {
        return Ok(Err(SlotFault::NoBlock));
    }
    let mut head = vec![0; PAGE_WORDS];
    read_into(region, first.page_word(0), &mut head)?;
    *evidence = [head[0], head[1]];
    if head[0] & NOT_LIVE != 0 {
        return Ok(Err(SlotFault::NotLive));
    }
    let lengths = Lengths::decode(head[2]);
    if !(1..=KEY_MAX_BYTES).contains(&(lengths.key_bytes as usize)) {
        return Ok(Err(SlotFault::Damaged));
    }
    let Some(run) = run_of(lengths, slot, view) else {
        return Ok(Err(SlotFault::Span { block_bytes: lengths.block_bytes() }));
    };
    if !run.segments().all(|segment| tables.kind(segment) == SegmentKind::Large) {
        return Ok(Err(SlotFault::NoBlock));
    }
    let mut hasher = PayloadHasher::new();
    hasher.update(payload_of(&head, 0, lengths));
    let (mut next_page, mut marker_missing) = (1, None);
    let mut asked_page = 1;
    let mut pieces = std::iter::from_fn(|| {
        let piece = piece_of(run, lengths, asked_page)?;
        asked_page += piece.len_words.div_ceil(PAGE_WORDS) as u64;
        Some(Piece { at_word: piece.at_word, len_words: piece.len_words })
    });
    region.read(&mut pieces, &mut |_, words| {
        for page in words.chunks(PAGE_WORDS) {
            if page[..PAGE_HEAD_WORDS] != [MARKER; PAGE_HEAD_WORDS] {
                marker_missing = marker_missing.or(Some(next_page));
            }
            hasher.update(payload_of(page, next_page, lengths));
            next_page += 1;
        }
    })?;
    if let Some(page) = marker_missing {
        return Ok(Err(SlotFault::Marker { page }));
    }
    let check = block::check_of(hasher.finish(), head[0], slot.place(), view.table_id);
    if check != head[1] {
        return Ok(Err(SlotFault::Damaged));
    }
    let key = block::key_of(&head).expect("the key is in the first page");
    Ok(Ok(Verified { hash: view.hash(key), version: head[0], lengths, run: Some(run) }))
}
