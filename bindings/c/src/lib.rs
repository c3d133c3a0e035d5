//! smolrun as a C library: what `include/smolrun.h` declares.
//!
//! It is thin: each function makes safe values of what C gives, calls the library, and gives C a status and the result.
//! `exports` are these functions, in the header's order; `raw` is what they know of pointers. Only these two files and
//! `structs`, which reads what options point to, have `unsafe` in them. None lets a panic out.

mod exports;
mod failure;
mod handles;
mod raw;
mod shown;
mod status;
mod structs;

#[cfg(test)]
mod abi;
