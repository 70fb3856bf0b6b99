//! Why a command fails, and with which exit code.

use std::path::PathBuf;

use thiserror::Error;

use crate::plan::UsageError;
use crate::raw::error::RawError;
use crate::report::Exit;
use crate::store::StoreError;
use crate::units::show_size_bytes;

/// Why a command could not be carried out.
#[derive(Debug, Error)]
pub enum CommandError {
    /// Arguments that make no sense.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// The JSON cannot be written.
    #[error("cannot write {0}: {1}", .path.display(), .error)]
    Json {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// The result cannot be printed.
    #[error("cannot write to standard output: {0}")]
    Stdout(std::io::Error),
    /// The store cannot be reached, or refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The bare verbs cannot be measured.
    #[error(transparent)]
    Raw(#[from] RawError),
    /// Not enough memory for the floor.
    #[error("cannot make the floor: {0}")]
    Floor(std::io::Error),
    /// Not enough memory for what lives in this process.
    #[error(
        "{what} would take about {} here and {} are available; use a smaller --recordcount or --value-size",
        show_size_bytes(*.needed_bytes), show_size_bytes(*.available_bytes)
    )]
    Memory {
        /// Which stores.
        what: &'static str,
        /// Bytes that they take.
        needed_bytes: u64,
        /// Bytes that there are.
        available_bytes: u64,
    },
}

impl CommandError {
    pub(crate) const fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) | Self::Json { .. } | Self::Stdout(_) => Exit::Usage,
            Self::Store(error) => Exit::of_error(error),
            Self::Raw(error) => error.exit(),
            Self::Floor(_) | Self::Memory { .. } => Exit::Refused,
        }
    }
}
