//! What processors of different makers do differently with the same instructions.

use std::arch::x86_64::__cpuid;

/// Whether a processor foresees by itself which memory a product reads next, so that asking for it is in its way. AMD's do:
/// on Zen 4 one row is multiplied 1.1 to 1.6 times as fast without. Intel's do not: on Sapphire Rapids it gains as much.
pub(super) fn foresees() -> bool {
    let leaf = __cpuid(0);
    let name = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
    matches!(name.as_flattened(), b"AuthenticAMD" | b"HygonGenuine")
}
