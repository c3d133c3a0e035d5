//! What the tests share.

pub mod common;
