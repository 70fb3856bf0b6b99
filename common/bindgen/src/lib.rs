//! bindgen 0.59 as the build script of rdma-sys 0.3 knows it, served by bindgen 0.72.
//!
//! bindgen 0.59 cannot name what libclang 16 and newer report, and its output does not compile. The root `Cargo.toml`
//! patches this package in its place. Only the calls of that build script exist here; each does what it is named after,
//! unless its comment says otherwise.

use std::io;
use std::path::Path;

/// What is to be generated, and from what.
#[derive(Default)]
pub struct Builder(current::Builder);

/// Generated declarations.
pub struct Bindings(current::Bindings);

/// Why nothing was generated.
pub type Error = current::BindgenError;

/// Calls that take one pattern and change the builder.
macro_rules! patterns {
    ($($name:ident)*) => {$(
        /// Forwards the pattern.
        #[must_use]
        pub fn $name(self, pattern: impl AsRef<str>) -> Builder {
            Builder(self.0.$name(pattern))
        }
    )*};
}

/// Calls that take one switch and change the builder.
macro_rules! switches {
    ($($name:ident)*) => {$(
        /// Forwards the switch.
        #[must_use]
        pub fn $name(self, on: bool) -> Builder {
            Builder(self.0.$name(on))
        }
    )*};
}

impl Builder {
    patterns! {
        allowlist_function allowlist_type blocklist_type opaque_type
        bitfield_enum constified_enum_module rustified_enum
    }

    switches! {
        derive_copy derive_debug derive_default generate_comments prepend_enum_name size_t_is_usize
    }

    /// A header to read.
    #[must_use]
    pub fn header(self, path: impl Into<String>) -> Builder {
        Builder(self.0.header(path))
    }

    /// Arguments for libclang.
    #[must_use]
    pub fn clang_args<I>(self, arguments: I) -> Builder
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        Builder(self.0.clang_args(arguments))
    }

    /// Unions become wrappers, not Rust unions.
    #[must_use]
    pub fn disable_untagged_union(self) -> Builder {
        Builder(self.0.disable_untagged_union())
    }

    /// Changes nothing: nobody reads the output, and rustfmt may be missing.
    #[must_use]
    pub fn rustfmt_bindings(self, _on: bool) -> Builder {
        Builder(self.0.formatter(current::Formatter::None))
    }

    /// Reads the headers.
    ///
    /// # Errors
    /// If libclang cannot read them.
    pub fn generate(self) -> Result<Bindings, Error> {
        self.0.generate().map(Bindings)
    }
}

impl Bindings {
    /// Writes the declarations to a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_to_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.0.write_to_file(path)
    }
}
