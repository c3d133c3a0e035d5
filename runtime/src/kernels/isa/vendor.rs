//! What processors of different makers do differently with the same instructions.

use std::arch::x86_64::__cpuid;

/// Whether AMD made this processor, or Hygon to AMD's design. What we measured differs from Intel's in this:
///
/// - It foresees by itself which memory a product reads next, and asking for it is in its way: on Zen 4 a model decodes 1.1 to
///   1.7 times as fast without. On Zen 3 and Zen 5 one row gains nothing by asking, except where codes take long to take apart.
///   Sapphire and Emerald Rapids gain.
/// - It takes codes apart in other units than those that multiply. Intel's do all of 512 bits in the same two.
/// - AVX512-BF16 multiplies twice as much as f32 does. On Emerald Rapids it is half as much: 43 instead of 87 billion
///   multiply-adds per second.
pub(super) fn is_amd() -> bool {
    let leaf = __cpuid(0);
    let name = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
    matches!(name.as_flattened(), b"AuthenticAMD" | b"HygonGenuine")
}

/// Whether a processor with AVX-512 is AMD's Zen 5 or a later one: Zen 4 has no AVX-VNNI beside it. (A server's was measured,
/// which multiplies 512 bits at once. Zen 4 takes two steps.)
pub(super) fn is_zen5() -> bool {
    is_amd() && is_x86_feature_detected!("avxvnni")
}
