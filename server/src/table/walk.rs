//! Verifies a table by nothing but the words of its region.

use kv_common::layout::superblock;
use kv_common::probe::{IdentityError, TableView};
use kv_common::region::ReadWords;

/// Identity and directory of the table in `region`.
pub fn view_of(region: &ReadWords) -> Result<TableView, IdentityError> {
    let mut identity = [0; superblock::IDENTITY_WORDS];
    region.copy_out(0, &mut identity);
    let mut view = TableView::from_identity(&identity, region.len_words())?;
    let depth = TableView::check_depth(identity[superblock::DIRECTORY_DEPTH])?;
    let mut entries = vec![0; 1 << depth];
    region.copy_out(view.directory_word, &mut entries);
    view.set_directory(&entries)?;
    Ok(view)
}
