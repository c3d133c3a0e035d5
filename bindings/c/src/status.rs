//! Status codes: one for each of the library's error codes, and a few of what only C can do wrong.

use std::ffi::CStr;

/// `smolrun_status`.
pub(crate) type Status = i32;

pub(crate) const OK: Status = 0;
/// A code of a library that is newer than this table, which a test rules out.
const UNKNOWN: Status = 99;

/// Each status with its name: the library's [`Error::code`](smolrun_runtime::Error::code), or from 100 up one of this
/// crate. A number never changes its meaning.
pub(crate) const STATUSES: [(Status, &CStr); 32] = [
    (OK, c"ok"),
    (1, c"argument"),
    (2, c"argument.token_id"),
    (3, c"blob.alignment"),
    (4, c"blob.checksum"),
    (5, c"blob.config"),
    (6, c"blob.directory"),
    (7, c"blob.entry"),
    (8, c"blob.header"),
    (9, c"blob.magic"),
    (10, c"blob.missing"),
    (11, c"blob.padding"),
    (12, c"blob.reserved"),
    (13, c"blob.table"),
    (14, c"blob.too_short"),
    (15, c"blob.version"),
    (16, c"chat_template"),
    (17, c"context_full"),
    (18, c"io"),
    (19, c"kv_budget"),
    (20, c"not_finite"),
    (21, c"out_of_memory"),
    (22, c"panic"),
    (23, c"saved_session"),
    (24, c"text_too_long"),
    (25, c"threads"),
    (26, c"cancelled"),
    (UNKNOWN, c"unknown"),
    (100, c"null"),
    (101, c"utf8"),
    (102, c"busy"),
    (103, c"too_small"),
];

/// The status of an error code.
pub(crate) fn of_code(code: &str) -> Status {
    STATUSES
        .iter()
        .find(|(_, name)| name.to_bytes() == code.as_bytes())
        .map_or(UNKNOWN, |(status, _)| *status)
}

/// The name of a status; that of `SMOLRUN_UNKNOWN` if there is none with the number.
pub(crate) fn name(status: Status) -> &'static CStr {
    STATUSES.iter().find(|(number, _)| *number == status).map_or(c"unknown", |(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::{STATUSES, UNKNOWN, of_code};

    #[test]
    fn every_code_of_the_library_has_a_status() {
        let documented = include_str!("../../../runtime/src/error.rs");
        let codes: Vec<&str> = documented
            .lines()
            .filter_map(|line| Some(line.trim().strip_prefix("/// | `")?.split_once("` |")?.0))
            .collect();
        assert!(codes.len() >= 25, "{codes:?}");
        for code in codes {
            assert_ne!(of_code(code), UNKNOWN, "{code}");
        }
    }

    #[test]
    fn the_header_has_the_same_numbers() {
        let header = include_str!("../include/smolrun.h");
        for (status, name) in STATUSES {
            let line = format!(
                "    SMOLRUN_{} = {status},",
                name.to_str().unwrap().to_uppercase().replace('.', "_")
            );
            assert!(header.contains(&line), "{line}");
        }
    }
}
