//! What processors of different makers do differently with the same instructions.

use std::arch::x86_64::__cpuid;

/// Whether a processor foresees by itself which memory a product reads next, so that asking for it is in its way. AMD's do:
/// on Zen 4 a model decodes 1.1 to 1.7 times as fast without, and on Zen 3 asking gained nothing. On Sapphire Rapids it gains.
pub(super) fn foresees() -> bool {
    let leaf = __cpuid(0);
    let name = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
    matches!(name.as_flattened(), b"AuthenticAMD" | b"HygonGenuine")
}
