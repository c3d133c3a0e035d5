//! The `smolrun` program.

fn main() {}
