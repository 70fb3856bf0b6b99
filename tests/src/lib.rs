//! What tests of the whole store have in common, whatever they drive: self-describing values, the history of all
//! operations, and the judge of it. Knows nothing of the product.

pub mod linearizability;
pub mod oracle;
pub mod value;
