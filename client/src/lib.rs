//! placeholder
mod cache;
mod driver;
mod error;
mod get;
mod op;
mod stats;
