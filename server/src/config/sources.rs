//! The layers that values come from: flags over environment over file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::args::Flags;

use super::{ConfigError, KEYS};

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// On the command line.
    Flag(&'static str),
    /// In the environment.
    Variable(String),
    /// In a file.
    File(PathBuf),
    /// Nowhere.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(key) => write!(f, "--{key}"),
            Origin::Variable(name) => write!(f, "{name}"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Default => write!(f, "default"),
        }
    }
}

/// The values that were written somewhere, by key, each from the layer that wins.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    values: BTreeMap<&'static str, (Vec<String>, Origin)>,
}

/// Variables with our prefix that others read.
const FOREIGN_VARIABLES: [&str; 1] = ["KV_URL"];
/// How many letters a name may differ by and still be taken for a slip of the pen.
const SLIP_LETTERS: usize = 2;

impl Sources {
    /// Collects the layers: `flags`, the variables `env`, and the file that one of them names.
    ///
    /// # Errors
    /// Unknown keys of the file; variables that look like a misspelt option (others with this prefix are ignored:
    /// service managers set their own); a file that cannot be read.
    pub fn collect(
        flags: &Flags,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Sources, ConfigError> {
        let (variables, config_variable) = variables(env)?;
        let mut sources = Sources::default();
        if let Some(path) = flags.config.clone().or(config_variable) {
            sources.add_file(Path::new(&path))?;
        }
        for (key, value) in variables {
            let values = match key {
                "allow-uid" => value.split(',').map(|uid| uid.trim().to_owned()).collect(),
                _ => vec![value],
            };
            sources.values.insert(key, (values, Origin::Variable(variable_of(key))));
        }
        for (key, values) in flags.values() {
            sources.values.insert(key, (values, Origin::Flag(key)));
        }
        Ok(sources)
    }

    fn add_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Unreadable { path: path.to_owned(), error: error.to_string() })?;
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| ConfigError::Syntax {
            path: path.to_owned(),
            error: error.to_string(),
        })?;
        for (name, value) in table {
            let Some(key) = KEYS.into_iter().find(|key| *key == name) else {
                let nearest = nearest(&name, KEYS.into_iter());
                return Err(ConfigError::UnknownKey { path: path.to_owned(), key: name, nearest });
            };
            let origin = Origin::File(path.to_owned());
            let values = file_values(key, &value, &origin)?;
            self.values.insert(key, (values, origin));
        }
        Ok(())
    }

    /// Where the value of `key` was written.
    pub fn origin(&self, key: &str) -> Origin {
        self.values.get(key).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    pub(super) fn parse<T>(
        &self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        self.parse_list(key, |values| {
            let value = values.last().expect("a key without a value is not collected");
            parse(value).map_err(|expected| (value.clone(), expected))
        })
    }

    /// As `parse`, for all values of a key; the error has the value that is at fault.
    pub(super) fn parse_list<T>(
        &self,
        key: &'static str,
        parse: impl FnOnce(&[String]) -> Result<T, (String, String)>,
    ) -> Result<Option<T>, ConfigError> {
        let Some((values, origin)) = self.values.get(key) else { return Ok(None) };
        parse(values).map(Some).map_err(|(found, expected)| ConfigError::BadValue {
            key,
            origin: origin.clone(),
            found,
            expected,
        })
    }
}

/// The environment variable of an option.
fn variable_of(key: &str) -> String {
    format!("KV_{}", key.replace('-', "_").to_ascii_uppercase())
}

type Variables = Vec<(&'static str, String)>;

/// The options in `env`, and the file that it names.
fn variables(
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<(Variables, Option<String>), ConfigError> {
    let mut found = Vec::new();
    let mut config = None;
    for (name, value) in env.into_iter().filter(|(name, _)| name.starts_with("KV_")) {
        if name == "KV_CONFIG" {
            config = Some(value);
        } else if let Some(key) = KEYS.into_iter().find(|key| variable_of(key) == name) {
            found.push((key, value));
        } else if !FOREIGN_VARIABLES.contains(&name.as_str()) {
            let known: Vec<String> = KEYS.into_iter().chain(["config"]).map(variable_of).collect();
            if let Some(nearest) = nearest(&name, known.iter().map(String::as_str)) {
                return Err(ConfigError::UnknownVariable { name, nearest });
            }
        }
    }
    Ok((found, config))
}

/// The known name that differs from `name` by a slip of the pen at most.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let plain = |name: &str| name.replace('_', "-");
    known
        .map(|known| (strsim::osa_distance(&plain(name), &plain(known)), known))
        .filter(|(distance, _)| *distance <= SLIP_LETTERS)
        .min()
        .map(|(_, known)| known.to_owned())
}

/// A value of the file as the texts that a flag would have had.
fn file_values(key: &'static str, value: &toml::Value, origin: &Origin) -> Result<Vec<String>, ConfigError> {
    let bad = |expected: &str| ConfigError::BadValue {
        key,
        origin: origin.clone(),
        found: value.to_string(),
        expected: expected.to_owned(),
    };
    let scalar = |value: &toml::Value| match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        _ => None,
    };
    match (key, value) {
        ("allow-uid", toml::Value::Array(values)) => values
            .iter()
            .map(|value| scalar(value).ok_or_else(|| bad("expected a list of users' numbers, or \"any\"")))
            .collect(),
        (_, value) => Ok(vec![scalar(value).ok_or_else(|| bad("expected a string or a number"))?]),
    }
}
