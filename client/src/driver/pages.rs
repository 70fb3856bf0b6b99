//! READs of the pages of large blocks.

use kv_common::large::Piece;
use kv_common::limits::{PAGES_PER_READ, VALUE_MAX_BYTES};
use kv_common::transport::{Broken, ReadBuffer, ReadNow, Transport};

use super::Driver;
use crate::get::Get;
use crate::op::{GetState, Kind};

// Which READ it is has 16 bits of a token.
const _: () =
    assert!(VALUE_MAX_BYTES as u64 / (PAGES_PER_READ * kv_common::layout::PAGE_BYTES / 2) < 1 << 16);

impl<T: Transport> Driver<T> {
    /// Makes READs of the pages that a GET wants, as many as may be in flight. True if they were loads: then all are there. The
    /// GET is gone if the connection broke.
    pub(super) fn fetch_pages(&mut self, key: usize) -> bool {
        self.set_get_state(key, GetState::Fetching { is_queued: false });
        while let Some(piece) = get_of(&mut self.ops[key].kind).fetch().next_read() {
            let mut words = self.spare_pages.pop().unwrap_or_default();
            words.resize(piece.len_words, 0);
            match self.transport.read_now(piece.at_word, &mut words) {
                Ok(ReadNow::Done) => {
                    self.count_piece(piece);
                    get_of(&mut self.ops[key].kind).fetch().feed(&words);
                    self.spare_pages.push(words);
                }
                Ok(ReadNow::Post) if self.reads_in_flight < self.transport.reads_in_flight_max() => {
                    self.post_pages(key, piece, words);
                }
                Ok(ReadNow::Post) => {
                    self.spare_pages.push(words);
                    get_of(&mut self.ops[key].kind).fetch().put_back(piece);
                    self.set_get_state(key, GetState::Fetching { is_queued: true });
                    self.reads_queued.push_back(key);
                    break;
                }
                Err(broken) => {
                    self.fail_all(broken);
                    return false;
                }
            }
        }
        get_of(&mut self.ops[key].kind).fetch().is_complete()
    }

    fn post_pages(&mut self, key: usize, piece: Piece, words: Vec<u64>) {
        self.count_piece(piece);
        self.reads_in_flight += 1;
        let number = piece_number(piece.first_page);
        self.transport.post_read(self.token(key) | number << 16, piece.at_word, ReadBuffer::Private(words));
    }

    /// A READ of pages is back; of no use any more if its operation has ended.
    pub(super) fn on_pages(
        &mut self,
        key: Option<usize>,
        number: u64,
        words: Vec<u64>,
        result: Result<(), Broken>,
    ) {
        if let Err(broken) = result {
            return self.fail_all(broken);
        }
        let Some(key) = key else { return self.spare_pages.push(words) };
        let Kind::Get { get, state, .. } = &mut self.ops[key].kind else { unreachable!("only GETs read") };
        let is_queued = matches!(state, GetState::Fetching { is_queued: true });
        let fetch = get.fetch();
        fetch.landed(first_page(number), words, &mut self.spare_pages);
        let (pages_done, is_complete) = (fetch.pages_done(), fetch.is_complete());
        self.note_progress(key, pages_done);
        if is_complete {
            return self.start_get(key);
        }
        // A lease that runs out meanwhile is renewed in time.
        if self.place_epoch().is_ok() && self.ops.contains(key) && !is_queued {
            self.fetch_pages(key);
        }
    }

    /// Counts a READ of pages.
    pub(super) fn count_piece(&mut self, piece: Piece) {
        self.stats.reads += 1;
        self.stats.read_bytes += piece.len_words as u64 * 8;
    }
}

/// READs of pages are numbered from 1; the first page is read by itself.
fn piece_number(first_page: u64) -> u64 {
    (first_page - 1) / PAGES_PER_READ + 1
}

fn first_page(number: u64) -> u64 {
    (number - 1) * PAGES_PER_READ + 1
}

fn get_of(kind: &mut Kind) -> &mut Get {
    let Kind::Get { get, .. } = kind else { unreachable!("only GETs read") };
    get
}
