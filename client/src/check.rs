//! Checks of a whole table: of a server's, by READs, or of one that was saved to a file.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use kv_common::check::{self, CheckFinding, CheckProgress, CheckReport, Piece, Region, Take, Unjudged, cut};
use kv_common::layout::SEGMENT_BYTES;
use kv_common::limits::{REGION_MAX_BYTES, REGION_MIN_BYTES};
use kv_common::probe::IdentityError;
use kv_common::region::{bytes_of, bytes_of_mut};

use crate::{Client, Error};

/// What a check of a table has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// What there is.
    pub report: CheckReport,
    /// What is wrong, at most 100 findings.
    pub findings: Vec<CheckFinding>,
    /// What could not be judged, because the table was written to meanwhile.
    pub unjudged: Unjudged,
    /// Bytes of the region.
    pub region_bytes: u64,
}

impl Checked {
    /// True if nothing is wrong, as far as it was judged.
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Why a file with a region cannot be checked, or written.
#[derive(Debug, thiserror::Error)]
pub enum RegionFileError {
    /// What the system said.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// Why not.
        error: io::Error,
    },
    /// No region has that size, or not the one that it says.
    #[error(
        "{path}: no whole region: {found_bytes} bytes, expected {expected}; copy it from its start to its end"
    )]
    Size {
        /// The file.
        path: String,
        /// Its size.
        found_bytes: u64,
        /// Which size it should have.
        expected: String,
    },
    /// It does not begin as a region of this release does.
    #[error("{path}: {error}")]
    NotATable {
        /// The file.
        path: String,
        /// How it begins.
        error: IdentityError,
    },
    /// The region cannot be read.
    #[error(transparent)]
    Client(#[from] Error),
}

impl Client {
    /// Verifies every invariant of the server's table that its bytes show, by READs of all index lines and of all blocks in
    /// use; also while the server is stopped. `observe` is told how far it is.
    ///
    /// The table may be written to meanwhile. What looks wrong is read again up to ten times within some seconds, and is
    /// a finding only if it stays; [`Checked::unjudged`] says what that leaves open. It takes 27 bytes of memory per key,
    /// and up to 20 MiB.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::Timeout`] of a READ, [`Error::UsedAfterFork`].
    pub fn check(&mut self, mut observe: impl FnMut(CheckProgress)) -> Result<Checked, Error> {
        self.check_fork()?;
        checked(self.live()?, &mut observe)
    }

    /// Writes the bytes of the server's region to `out`, from its start to its end, by READs. They are those of one moment only
    /// if nobody writes meanwhile: stop the server's writers, or the server.
    ///
    /// # Errors
    /// [`RegionFileError::Io`], and as [`Client::check`].
    pub fn save_region(&mut self, out: &mut dyn Write) -> Result<(), RegionFileError> {
        self.check_fork()?;
        let driver = self.live()?;
        let mut pieces = cut(0, driver.len_words());
        let mut written = Ok(());
        driver.read_region(&mut pieces, &mut |_, words| {
            if written.is_ok() {
                written = out.write_all(bytes_of(words));
            }
        })?;
        written
            .and_then(|()| out.flush())
            .map_err(|error| RegionFileError::Io { what: "writing the region".into(), error })
    }
}

/// As [`Client::check`], of a file that has the bytes of a region: written by [`Client::save_region`], or copied from the
/// memory of a server that was stopped. It must not change meanwhile.
///
/// # Errors
/// [`RegionFileError`] if it is no region as a whole, or cannot be read.
pub fn check_file(path: &Path, mut observe: impl FnMut(CheckProgress)) -> Result<Checked, RegionFileError> {
    let io = |error| RegionFileError::Io { what: format!("reading {}", path.display()), error };
    let name = path.display().to_string();
    let file = File::open(path).map_err(io)?;
    let found_bytes = file.metadata().map_err(io)?.len();
    let size = |expected| RegionFileError::Size { path: name.clone(), found_bytes, expected };
    if !(REGION_MIN_BYTES..=REGION_MAX_BYTES).contains(&found_bytes)
        || !found_bytes.is_multiple_of(SEGMENT_BYTES)
    {
        return Err(size("a multiple of 2 MiB, from 16 MiB to 16 TiB".into()));
    }
    let mut region = FileRegion { file, len_words: (found_bytes / 8) as usize };
    let checked = checked(&mut region, &mut observe).map_err(io)?;
    match &checked.findings[..] {
        [
            CheckFinding::Identity(
                error @ (IdentityError::Magic { .. } | IdentityError::LayoutVersion { .. }),
            ),
        ] => Err(RegionFileError::NotATable { path: name, error: error.clone() }),
        &[CheckFinding::Identity(IdentityError::Field { field: "region size", found: says_bytes })]
            if says_bytes > found_bytes && says_bytes <= REGION_MAX_BYTES =>
        {
            Err(size(format!("{says_bytes} as its superblock says")))
        }
        _ => Ok(checked),
    }
}

fn checked<R: Region>(region: &mut R, observe: &mut dyn FnMut(CheckProgress)) -> Result<Checked, R::Error> {
    let region_bytes = region.len_words() as u64 * 8;
    let walk = check::check(region, observe)?;
    Ok(Checked { report: walk.report, findings: walk.findings, unjudged: walk.unjudged, region_bytes })
}

/// A region in a file.
struct FileRegion {
    file: File,
    len_words: usize,
}

impl Region for FileRegion {
    type Error = io::Error;

    fn len_words(&self) -> usize {
        self.len_words
    }

    fn read(&mut self, pieces: &mut dyn Iterator<Item = Piece>, take: Take) -> io::Result<()> {
        let mut words = Vec::new();
        for piece in pieces {
            words.resize(piece.len_words, 0);
            self.file.read_exact_at(bytes_of_mut(&mut words), piece.at_word as u64 * 8)?;
            take(piece, &words);
        }
        Ok(())
    }
}
