//! The names of the functions that every template finds.

/// A function by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Function {
    Dict,
    Namespace,
    RaiseException,
    Range,
    StrftimeNow,
}

impl Function {
    pub(super) fn named(name: &str) -> Option<Function> {
        Some(match name {
            "dict" => Function::Dict,
            "namespace" => Function::Namespace,
            "raise_exception" => Function::RaiseException,
            "range" => Function::Range,
            "strftime_now" => Function::StrftimeNow,
            _ => return None,
        })
    }
}
