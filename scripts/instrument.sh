#!/usr/bin/env bash
# Cargo's wrapper around rustc for the crates of this workspace (RUSTC_WORKSPACE_WRAPPER): they count what is run. Their
# dependencies stay as they are, and are not built again.
exec "$@" -C instrument-coverage
