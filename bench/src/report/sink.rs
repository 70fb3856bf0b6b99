//! Where output goes: standard output, standard error and the JSON file.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Seek, Write};
use std::path::{Path, PathBuf};

use crate::error::CommandError;

/// Where the JSON goes. Opened before the run, so that a run of an hour does not end with a path that is not there.
#[derive(Debug, Default)]
pub struct JsonSink {
    file: Option<JsonFile>,
    to_stdout: bool,
}

/// A file that is to hold the JSON. Dropped without a result, it leaves no empty file behind.
#[derive(Debug)]
struct JsonFile {
    path: PathBuf,
    file: File,
    /// Whether the file was not there before and holds no result yet.
    is_new: bool,
}

impl JsonFile {
    /// Opens `path`. An old result stays until there is a new one.
    fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true);
        let (file, is_new) = match options.clone().create_new(true).open(path) {
            // Not `create_new` only: the path may be a link to a file that is not there.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (options.create(true).truncate(false).open(path)?, false)
            }
            opened => (opened?, true),
        };
        Ok(Self { path: path.into(), file, is_new })
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())?;
        self.is_new = false;
        Ok(())
    }
}

impl Drop for JsonFile {
    fn drop(&mut self) {
        if self.is_new {
            // An empty file that cannot be removed does no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl JsonSink {
    /// Of the argument of `--json`: a path, `-` for standard output, or nothing.
    ///
    /// # Errors
    /// [`CommandError::Json`] if the file cannot be opened for writing.
    pub fn open(path: Option<&Path>) -> Result<Self, CommandError> {
        match path {
            None => Ok(Self::default()),
            Some(path) if path == Path::new("-") => Ok(Self { file: None, to_stdout: true }),
            Some(path) => {
                let file =
                    JsonFile::open(path).map_err(|error| CommandError::Json { path: path.into(), error })?;
                Ok(Self { file: Some(file), to_stdout: false })
            }
        }
    }

    /// Writes the JSON, and prints `text` for people unless standard output is for the JSON. One is done even if the
    /// other fails, so that the result is not lost.
    ///
    /// # Errors
    /// [`CommandError::Json`], or else [`CommandError::Stdout`].
    pub fn deliver(self, text: &str, json: &str) -> Result<(), CommandError> {
        if self.to_stdout {
            return print(json);
        }
        let saved = self.file.map_or(Ok(()), |mut file| {
            file.write(json).map_err(|error| CommandError::Json { path: file.path.clone(), error })
        });
        let printed = print(text);
        saved.and(printed)
    }
}

fn print(text: &str) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CommandError::Stdout)
}

/// A line on standard error. If nobody can be told, the exit code still says how it ended.
pub fn tell(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
