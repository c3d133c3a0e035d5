//! The `smolconv` program.

fn main() {}
