#!/usr/bin/env bash
# AVX-VNNI, AVX-512, AVX512-VNNI, AVX512-BF16 and AMX under Bochs, which emulates a processor that has them: the kernels'
# unit tests, and the SHA-256 of the logits of 40 positions of bf16 and of q4, which must be that of this processor's other
# sets; that of fast sessions must be the oracle's on VNNI, and their logits near the exact ones on AMX.
# usage: scripts/test_avx512.sh
#
# Installs what it lacks by apt (a compiler, a kernel's headers, what makes a disk that boots), and builds Bochs from
# Debian's source, which takes minutes and stays in a cache (SMOL_CACHE, by default ~/.cache/smolconv).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The last number is that of the patch below.
readonly cache=${SMOL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/smolconv}/bochs-3.0-4
readonly work=$PWD/target/avx512
readonly target=x86_64-unknown-linux-gnu

step() { printf '\n== %s\n' "$*" >&2; }

fail() {
    echo "scripts/test_avx512.sh: $*" >&2
    exit 1
}

install() { # PACKAGE...
    dpkg -s "$@" >/dev/null 2>&1 && return
    step "$*, by apt"
    apt-get update -q && apt-get install -q -y --no-install-recommends "$@"
}

# The virtual machines' kernel of this Debian, the smallest, and the headers to build a module for it.
install_kernel() {
    install linux-headers-cloud-amd64
    local headers image
    headers=$(apt-cache --installed depends linux-headers-cloud-amd64 | sed -n 's/.*Depends: \(linux-headers-.*\)/\1/p' | head -1)
    image=${headers/headers/image}
    (cd "$work" && apt-get download -q "$image" && rm -rf kernel && dpkg -x "$image"_*.deb kernel && rm "$image"_*.deb)
    cp "$work"/kernel/boot/vmlinuz-* "$work/iso/linux"
    write_module
    make -s -C "/usr/src/$headers" M="$work/module" modules
    cp "$work/module/tiles.ko" "$work/root/"
}

# Bochs has no XFD, without which Linux leaves the tile registers alone. The one program that runs there may use them all
# the same once the processor is told that they are enabled.
write_module() {
    mkdir -p "$work/module"
    echo 'obj-m := tiles.o' >"$work/module/Makefile"
    cat >"$work/module/tiles.c" <<'EOC'
#include <linux/module.h>

static int __init enable_tiles(void)
{
	u32 low, high;

	asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	asm volatile("xsetbv" : : "a"(low | 3u << 17), "d"(high), "c"(0));
	return 0;
}

module_init(enable_tiles);
MODULE_LICENSE("GPL");
EOC
}

# Bochs 3.0, from Debian's pool. It refuses gathers with an upper register as their index, takes the signed bytes of
# TDPBSSD for unsigned ones, reads past the register whose numbers VCVTNE2PS2BF16 puts into the upper half, and its only
# processor with AVX-512 that Linux boots on does not tell of features added to it: the patch is for these.
build_bochs() {
    [[ -x $cache/bochs ]] && return
    step "Bochs, from source"
    local mirror
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 '/debian/$')
    rm -rf "$cache" && mkdir -p "$cache"
    /usr/lib/apt/apt-helper download-file "${mirror}pool/main/b/bochs/bochs_3.0+dfsg.orig.tar.xz" "$cache/source.tar.xz" \
        SHA256:78f6c73d4a6472d5130a87ab9dc306d02c7c71ed8e25b3a8ef642e2a7acd282b
    tar -C "$cache" -xf "$cache/source.tar.xz"
    (
        cd "$cache/bochs-3.0"
        patch -p1 <<'EOP'
--- a/cpu/decoder/fetchdecode32.cc
+++ b/cpu/decoder/fetchdecode32.cc
@@ -1338,6 +1338,7 @@
         return BX_VSIB_ILLEGAL_SIB_INDEX;
 #if BX_SUPPORT_EVEX
       i->setSibIndex(i->sibIndex() | (vvv & 0x10));
+      vvv &= 0xf;
       // zero masking is not allowed for gather/scatter
       if (i->isZeroMasking()) return BX_EVEX_ILLEGAL_ZERO_MASKING_VSIB;
       mem_src = true;
--- a/cpu/avx/amx.cc
+++ b/cpu/avx/amx.cc
@@ -280,6 +280,6 @@
 BX_CPP_INLINE Bit32u DPBDSS(Bit32u x, Bit32u y)
 {
-  const Bit8u xbyte[4] = { Bit8u(x & 0xff), Bit8u((x >> 8) & 0xff), Bit8u((x >> 16) & 0xff), Bit8u(x >> 24) };
-  const Bit8u ybyte[4] = { Bit8u(y & 0xff), Bit8u((y >> 8) & 0xff), Bit8u((y >> 16) & 0xff), Bit8u(y >> 24) };
+  const Bit8s xbyte[4] = { Bit8s(x & 0xff), Bit8s((x >> 8) & 0xff), Bit8s((x >> 16) & 0xff), Bit8s(x >> 24) };
+  const Bit8s ybyte[4] = { Bit8s(y & 0xff), Bit8s((y >> 8) & 0xff), Bit8s((y >> 16) & 0xff), Bit8s(y >> 24) };
 
   Bit32s p0dword = Bit32s(xbyte[0]) * Bit32s(ybyte[0]);
--- a/cpu/avx/avx512_bf16.cc
+++ b/cpu/avx/avx512_bf16.cc
@@ -68,5 +68,5 @@
   // other half of the elements
   for (;n < WORD_ELEMENTS(len); n++)
-    dst.vmm16u(n) = convert_ne_fp32_to_bfloat16(op1.vmm32u(n));
+    dst.vmm16u(n) = convert_ne_fp32_to_bfloat16(op1.vmm32u(n - DWORD_ELEMENTS(len)));
 
   if (i->opmask()) {
--- a/cpu/cpudb/intel/corei7_skylake-x.cc
+++ b/cpu/cpudb/intel/corei7_skylake-x.cc
@@ -446,7 +446,7 @@
 {
   switch(subfunction) {
   case 0:
-    leaf->eax = 0; /* report max sub-leaf that supported in leaf 7 */
+    leaf->eax = 1; /* report max sub-leaf that supported in leaf 7 */
 
     // * [0:0]   FS/GS BASE access instructions
     // * [1:1]   Support for IA32_TSC_ADJUST MSR
@@ -482,10 +482,10 @@
     // * [31:31] AVX512VL variable vector length support
     leaf->ebx = get_std_cpuid_leaf_7_ebx(BX_CPUID_STD7_SUBLEAF0_EBX_ENCHANCED_REP_STRINGS);
-    leaf->ecx = 0;
-    leaf->edx = 0;
+    leaf->ecx = get_std_cpuid_leaf_7_ecx();
+    leaf->edx = get_std_cpuid_leaf_7_edx();
     break;
   default:
-    leaf->eax = 0;
+    leaf->eax = get_std_cpuid_leaf_7_subleaf_1_eax();
     leaf->ebx = 0;
     leaf->ecx = 0;
     leaf->edx = 0;
EOP
        ./configure --with-nogui --enable-cpu-level=6 --enable-x86-64 --enable-avx --enable-evex --enable-amx \
            --enable-memtype --enable-protection-keys --enable-cet --enable-uintr --enable-vmx=2 \
            --enable-all-optimizations --disable-docbook CXXFLAGS='-O3 -fomit-frame-pointer' >configure.out
        make -j"$(nproc)" bochs >make.out 2>&1
    )
    mv "$cache/bochs-3.0/bochs" "$cache/bochs"
    rm -rf "$cache/bochs-3.0" "$cache/source.tar.xz"
}

# Both programs, linked statically: where they run there are no libraries.
build_programs() {
    local -x RUSTFLAGS='-C target-feature=+crt-static' CARGO_TARGET_DIR=$work
    local -x CARGO_PROFILE_RELEASE_LTO=false CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
    local cargo=(--locked --release --quiet --target "$target" -p smolrun --no-default-features) tests
    cargo build "${cargo[@]}" --example hash_logits
    cp "$work/$target/release/examples/hash_logits" "$work/root/"
    tests=$(cargo test "${cargo[@]}" --lib --no-run --message-format=json | grep -o '"executable":"[^"]*"' | cut -d '"' -f 4)
    cp "$tests" "$work/root/kernels"
}

# What the emulated machine does; the second it sleeps lets the serial port finish.
make_disk() {
    cp /bin/busybox "$work/root/bin/"
    cat >"$work/root/init" <<'EOI'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
exec >/dev/ttyS0 2>&1
./hash_logits bf16.bin 1 40 40 fast
./hash_logits q4.bin 1 40 40 fast
/bin/busybox insmod tiles.ko
./hash_logits bf16.bin 1 40 40 fast
./hash_logits q4.bin 1 40 40 fast
./kernels kernels --test-threads=1
/bin/busybox sleep 1
/bin/busybox poweroff -f
EOI
    chmod +x "$work/root/init"
    (cd "$work/root" && find . | busybox cpio -o -H newc) >"$work/iso/initrd"
    cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$work/iso/"
    # 600 is AMX-TILE: Linux would enable half of what it needs.
    cat >"$work/iso/isolinux.cfg" <<'EOI'
DEFAULT linux
LABEL linux
  KERNEL linux
  INITRD initrd
  APPEND console=ttyS0 quiet panic=-1 mitigations=off nokaslr lpj=4000000 random.trust_cpu=on clearcpuid=600
EOI
    xorriso -as mkisofs -quiet -o "$work/boot.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 \
        -boot-info-table "$work/iso"
}

# Bochs ends with an error where the machine is switched off: what the programs printed tells whether they passed.
emulate() {
    cat >"$work/bochsrc" <<EOI
cpu: model=corei7_skylake_x, add_features="avx_vnni avx512vnni avx512bf16 amx amx_bf16 amx_int8", ips=100000000, reset_on_triple_fault=0
memory: guest=512, host=512
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/vgabios/vgabios.bin
ata0-master: type=cdrom, path=$work/boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/serial.txt
clock: sync=none
display_library: nogui
log: $work/bochs.log
panic: action=fatal
error: action=ignore
EOI
    rm -f "$work/serial.txt"
    timeout 1800 "$cache/bochs" -q -f "$work/bochsrc" </dev/null >"$work/bochs.out" 2>&1 || true
    [[ -s $work/serial.txt ]] || fail "expected Bochs to boot, found: $(grep PANIC "$work/bochs.log")"
    tr -d '\r' <"$work/serial.txt"
}

# That a line of what was found matches.
expect() { # REGEX
    grep -Eqx "$1" <<<"$found" || fail "expected a line like: $1"
}

mkdir -p "$work"/root/{bin,dev,proc} "$work/iso"
install busybox-static isolinux syslinux-common xorriso bochsbios vgabios g++ make patch xz-utils
install_kernel
build_bochs

step "the programs, and what they give on this processor"
for dtype in bf16 q4; do
    cargo run --locked --release --quiet -p smolconv -- models/tales-4m --dtype "$dtype" -o "$work/root/$dtype.bin" --force
done
build_programs
native=$(for dtype in bf16 q4; do "$work/root/hash_logits" "$work/root/$dtype.bin" 1 40 40 fast; done)
echo "$native"

step "the same under Bochs"
make_disk
found=$(emulate)
echo "$found"
exact=($(sed -n 's/ scalar$//p' <<<"$native"))                # of bf16, of q4
rounded=($(sed -n 's/ fast on scalar.*//p; s/ fast on int8.*//p' <<<"$native" | uniq))
for isa in scalar avx2 avxvnni avx512 avx512vnni avx512amx; do
    expect "${exact[0]} $isa"
    expect "${exact[1]} $isa"
done
# Bochs says that it is an Intel, where `fast` does not use AVX512-BF16 alone. The kernels' tests check that unit's bits.
expect "${rounded[1]} fast on int8, .*"
# On AMX, of bf16 and of q4.
for near in $(grep -o 'fast on amx, up to [^ ]*' <<<"$found" | cut -d ' ' -f 6); do
    [[ $near == 0.[01]* ]] || fail "expected logits on AMX within 0.2 of the exact ones, found them $near off"
done
expect '[0-9a-f]{64} fast on amx, .*'
expect 'test result: ok\. [1-9][0-9]+ passed; 0 failed.*'
