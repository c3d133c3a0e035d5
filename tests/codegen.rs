//! What the kernels are compiled to, on any machine: the loops that multiply keep their sums in registers, and do little else.
//! Looked at are the programs that the other tests run, so those of an optimized build.
//!
//! A processor with AVX-512 is not needed to see that its kernel moves sums to the stack and back. That happened: such a
//! kernel was 2.3 times slower than the one for AVX2 on the same processor, and all results were right.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use smol_tests::common::{program, repository};

/// An operation compiled for a set, and the most instructions its best loop may have for each multiply-add. The least there
/// can be is one, and loads of what is multiplied; of i16, an addition more.
struct Kernel {
    /// The set and the operation as the function's name has them.
    set: &'static str,
    operation: &'static str,
    name: &'static str,
    most: f64,
    /// How many multiply-adds a step of a whole register tile has, and the most instructions for one of them that any loop of so
    /// many may have: prompts run in such loops.
    tile: Option<(usize, f64)>,
}

const fn kernel(set: &'static str, operation: &'static str, name: &'static str, most: f64) -> Kernel {
    Kernel { set, operation, name, most, tile: None }
}

impl Kernel {
    const fn tile(self, multiply_adds: usize, most: f64) -> Self {
        Kernel { tile: Some((multiply_adds, most)), ..self }
    }

    fn is(&self, function: &str) -> bool {
        function.contains(self.operation) && function.contains(self.set)
    }
}

/// The trait whose only method is an operation compiled for a set.
const COMPILED: &str = " as smolrun::kernels::simd::Compiled<";

const AVX2: &str = "::Avx2<false>>";
const AVX_VNNI: &str = "::Avx2<true>>";
const AVX512: &str = "::Avx512<false, false>>";
const AVX512_VNNI: &str = "::Avx512<true, true>>";
const AVX512_AMX: &str = "::Avx512Amx>";
const NEON: &str = "::Neon<false, false>>";
const NEON_DOTPROD: &str = "::Neon<true, false>>";
const NEON_I8MM: &str = "::Neon<true, true>>";

const F32: &str = "::Matmul<f32>";
const BF16: &str = "::Matmul<smolrun::kernels::half::Bf16Pair>";
const F32_KEYS: &str = "::ScoreKeys<smolrun::sequence::kv_cache::Half<f32>>";
const F16_KEYS: &str = "::ScoreKeys<smolrun::sequence::kv_cache::Half<smolrun::kernels::half::F16>>";
const I8_KEYS: &str = "::ScoreKeys<smolrun::sequence::kv_cache::Half<i8>>";
const F32_VALUES: &str = "::MixValues<smolrun::sequence::kv_cache::Half<f32>>";
const F16_VALUES: &str = "::MixValues<smolrun::sequence::kv_cache::Half<smolrun::kernels::half::F16>>";
const I8_VALUES: &str = "::MixValues<smolrun::sequence::kv_cache::Half<i8>>";
const QUANTIZED: &str = "::MatmulQuantized ";
const TILES: &str = "::MatmulTiles<smolrun::kernels::tiles::ActivationTile>";
const SPLIT_TILES: &str = "::MatmulTiles<smolrun::kernels::tiles::SplitTile>";
const BYTE_TILES: &str = "::MatmulTiles<smolrun::kernels::tiles::ByteTile>";

/// How an instruction set's assembly reads.
struct Processor {
    /// What prints it, of GNU's binutils.
    objdump: &'static str,
    kernels: &'static [Kernel],
    /// Multiply-adds of floats, and of integers: those of a block's inputs, which a float multiply-add ends.
    floats: &'static str,
    integers: &'static [&'static str],
    /// Instructions that take lanes of a vector one by one, which no operation over 16 lanes needs.
    lane_by_lane: &'static [&'static str],
    /// The same for lanes of 32 bits, where an operation may need that which puts 16 of them in as many places.
    scatters: &'static [&'static str],
    /// Whether a line stores a vector register on the stack.
    spills: fn(&str) -> bool,
}

const X86: Processor = Processor {
    objdump: "objdump",
    kernels: &[
        kernel(AVX2, F32, "avx2 f32", 1.9).tile(12, 2.1),
        // The sums, a pair's two weights and one number take 15 of the 16 registers. With three sums on the stack, it was 2.12.
        kernel(AVX2, BF16, "avx2 bf16", 2.1).tile(24, 2.1),
        kernel(AVX2, F32_KEYS, "avx2 f32 keys", 1.9),
        kernel(AVX2, F32_VALUES, "avx2 f32 values", 1.9),
        kernel(AVX2, F16_KEYS, "avx2 f16 keys", 2.1),
        kernel(AVX2, F16_VALUES, "avx2 f16 values", 2.1),
        kernel(AVX2, I8_KEYS, "avx2 i8 keys", 2.1),
        kernel(AVX2, I8_VALUES, "avx2 i8 values", 2.2),
        kernel(AVX2, QUANTIZED, "avx2 quantized", 3.1),
        // LLVM writes the loop over a block's stored values out, so that the scales count, too.
        kernel(AVX_VNNI, QUANTIZED, "avxvnni quantized", 3.8),
        kernel(AVX512, F32, "avx512 f32", 1.7).tile(24, 1.8),
        kernel(AVX512, BF16, "avx512 bf16", 1.2).tile(48, 2.1),
        kernel(AVX512, F32_KEYS, "avx512 f32 keys", 1.7),
        kernel(AVX512, F32_VALUES, "avx512 f32 values", 1.7),
        kernel(AVX512, F16_KEYS, "avx512 f16 keys", 1.7),
        kernel(AVX512, F16_VALUES, "avx512 f16 values", 1.7),
        kernel(AVX512, I8_KEYS, "avx512 i8 keys", 1.8),
        kernel(AVX512, I8_VALUES, "avx512 i8 values", 1.8),
        kernel(AVX512, QUANTIZED, "avx512 quantized", 3.1),
        kernel(AVX512_VNNI, QUANTIZED, "avx512vnni quantized", 1.4),
        // What is left to the vector unit, and reading codes ahead; tiles are multiplied by assembly.
        kernel(AVX512_AMX, TILES, "avx512amx quantized", 4.4),
        kernel(AVX512_AMX, SPLIT_TILES, "avx512amx quantized, few rows", 11.6),
    ],
    floats: "vfmadd",
    integers: &["vpmaddwd", "vpdpbusd"],
    lane_by_lane: &["vgather", "vpgather", "vscatter", "vpscatter", "vpextrb", "vpextrw"],
    scatters: &["vpextrd"],
    spills: |line| {
        line.starts_with("vmov")
            && line
                .split_once(',')
                .is_some_and(|(from, to)| is_vector(from) && (to.contains("(%rsp") || to.contains("(%rbp")))
    },
};

/// What AVX512-VNNI has for many rows where all operations of 512 bits share two units.
const X86_I16: Processor = Processor {
    kernels: &[kernel(AVX512_VNNI, QUANTIZED, "avx512vnni quantized, i16", 1.7)],
    integers: &["vpdpwssd"],
    ..X86
};

/// What the converter calibrates with.
const X86_CALIBRATION: Processor =
    Processor { kernels: &[kernel(AVX512_AMX, BYTE_TILES, "avx512amx bytes", 4.6)], ..X86 };

const ARM: Processor = Processor {
    objdump: "aarch64-linux-gnu-objdump",
    kernels: &[
        kernel(NEON, F32, "neon f32", 1.5),
        kernel(NEON, BF16, "neon bf16", 1.5),
        kernel(NEON, F32_KEYS, "neon f32 keys", 1.5),
        kernel(NEON, F32_VALUES, "neon f32 values", 1.5),
        kernel(NEON, F16_KEYS, "neon f16 keys", 1.5),
        kernel(NEON, F16_VALUES, "neon f16 values", 1.5),
        kernel(NEON, I8_KEYS, "neon i8 keys", 1.5),
        kernel(NEON, I8_VALUES, "neon i8 values", 1.5),
        kernel(NEON, QUANTIZED, "neon quantized", 1.8),
        kernel(NEON_DOTPROD, QUANTIZED, "neondotprod quantized", 1.8),
    ],
    floats: "fmla",
    integers: &["smlal", "sdot"],
    lane_by_lane: &["umov", "smov"],
    scatters: &[],
    spills: |line| {
        let mut words = line.split_whitespace();
        matches!(words.next(), Some("str" | "stp" | "stur"))
            && words.next().is_some_and(|register| register.starts_with('q'))
            && line.contains("[sp")
    },
};

/// Arm's products of matrices, apart from the dot products that the same function has for one row.
const ARM_I8MM: Processor = Processor {
    kernels: &[kernel(NEON_I8MM, QUANTIZED, "neoni8mm quantized", 1.8)],
    integers: &["smmla"],
    ..ARM
};

fn is_vector(operands: &str) -> bool {
    operands.rsplit([' ', '\t']).next().is_some_and(|register| {
        register.starts_with("%zmm") || register.starts_with("%ymm") || register.starts_with("%xmm")
    })
}

/// Of such instructions, what the ends of slices may need. A loop over rows that LLVM makes of one over lanes has 64 and more.
const MOST_LANE_BY_LANE: usize = 8;
/// What putting lanes in two times 16 places may need. A sum of a block's numbers that goes from lane to lane has 64 and more.
const MOST_SCATTERED: usize = 32;

/// An innermost loop.
#[derive(Debug)]
struct Loop {
    instructions: usize,
    multiply_adds: usize,
    /// Of floats, where `multiply_adds` are of integers: they end a block.
    ends: usize,
    spills: usize,
}

/// What a float multiply-add that ends a block of 32 inputs has before it in any set: so many of integers, or more. A loop
/// with fewer is one over blocks that looks like an innermost one, since LLVM has put the rest of a block elsewhere.
const FEWEST_OF_A_BLOCK: usize = 8;

impl Loop {
    /// Instructions for each multiply-add.
    fn cost(&self) -> f64 {
        self.instructions as f64 / self.multiply_adds as f64
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "looks at optimized code")]
fn x86_kernels_keep_their_sums_in_registers() {
    let program = program("smolrun");
    check(&X86, &program);
    check(&X86_I16, &program);
    check(&X86_CALIBRATION, &self::program("smolconv"));
}

/// `scripts/test_targets.sh` sets the linker that this needs.
#[test]
#[cfg_attr(debug_assertions, ignore = "looks at optimized code")]
fn arm_kernels_keep_their_sums_in_registers() {
    let program = arm_example();
    check(&ARM, &program);
    check(&ARM_I8MM, &program);
}

fn check(processor: &Processor, program: &Path) {
    let assembly = assembly(processor.objdump, program);
    let functions = functions(&assembly);
    let mut faults = String::new();
    for kernel in processor.kernels {
        let found: Vec<_> = functions.iter().filter(|(function, _)| kernel.is(function)).collect();
        assert!(!found.is_empty(), "{}: not in {}", kernel.name, program.display());
        let loops: Vec<Loop> = found.iter().flat_map(|(_, lines)| loops(processor, kernel, lines)).collect();
        let best = loops
            .iter()
            .filter(|l| l.multiply_adds >= 8)
            .min_by(|a, b| a.cost().total_cmp(&b.cost()))
            .unwrap_or_else(|| panic!("{}: no loop multiplies", kernel.name));
        println!("{:22} {} loops, the best with {:.2} instructions", kernel.name, loops.len(), best.cost());
        if best.cost() > kernel.most || best.spills * 10 > best.multiply_adds {
            writeln!(
                faults,
                "{}: expected at most {} instructions, found {best:?}",
                kernel.name, kernel.most
            )
            .unwrap();
        }
        if let Some((multiply_adds, most)) = kernel.tile {
            let worst = loops
                .iter()
                .filter(|l| l.multiply_adds == multiply_adds)
                .max_by(|a, b| a.cost().total_cmp(&b.cost()))
                .unwrap_or_else(|| panic!("{}: no loop over a register tile", kernel.name));
            println!("{:22} register tiles, the worst with {:.2} instructions", kernel.name, worst.cost());
            if worst.cost() > most {
                writeln!(faults, "{}: expected tiles of at most {most}, found {worst:?}", kernel.name)
                    .unwrap();
            }
        }
        for l in loops.iter().filter(|l| l.multiply_adds >= 8 && l.spills * 3 > l.multiply_adds * 2) {
            writeln!(faults, "{}: sums move to the stack at every step: {l:?}", kernel.name).unwrap();
        }
    }
    for (function, lines) in &functions {
        for (names, most) in
            [(processor.lane_by_lane, MOST_LANE_BY_LANE), (processor.scatters, MOST_SCATTERED)]
        {
            let found = lines.iter().filter(|line| names.iter().any(|name| line.text.starts_with(name)));
            let count = found.count();
            if count > most {
                writeln!(faults, "{function}: takes lanes one by one, {names:?} {count} times").unwrap();
            }
        }
        let calls = lines.iter().filter_map(Instruction::call);
        for callee in calls.filter(|callee| callee.contains("smolrun::kernels::")) {
            writeln!(faults, "{function}: calls what is compiled without the set: {callee}").unwrap();
        }
    }
    assert!(faults.is_empty(), "{}\n{faults}", program.display());
}

/// An example that has all kernels, compiled for Arm as `scripts/test_targets.sh` does.
fn arm_example() -> PathBuf {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    let profile = program("smolrun").parent().expect("a program lies in a profile's directory").to_owned();
    let [target_dir, profile] = [profile.parent(), profile.file_name().map(Path::new)].map(Option::unwrap);
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--package", "smolrun", "--no-default-features"]);
    cargo.args(["--example", "hash_logits", "--target", TARGET, "--profile"]).arg(profile);
    let done =
        cargo.arg("--target-dir").arg(target_dir).current_dir(repository()).status().expect("cargo runs");
    assert!(done.success(), "{TARGET} is missing? rustup target add {TARGET}");
    target_dir.join(TARGET).join(profile).join("examples/hash_logits")
}

/// A program's machine code as text.
fn assembly(objdump: &str, program: &Path) -> String {
    let output = Command::new(objdump)
        .args(["--disassemble", "--no-show-raw-insn", "--demangle=rust"])
        .arg(program)
        .output()
        .unwrap_or_else(|error| panic!("{objdump}, of GNU's binutils: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// One instruction and where it lies.
#[derive(Clone, Copy)]
struct Instruction<'a> {
    address: u64,
    text: &'a str,
}

impl Instruction<'_> {
    /// Where it may go on, if that is elsewhere.
    fn jump(&self) -> Option<u64> {
        let is_jump = ["j", "b.", "b\t", "cb", "tb"].iter().any(|name| self.text.starts_with(name));
        let (operands, _function) = self.text.split_once(" <")?;
        let address = operands.rsplit([' ', '\t', ',']).next()?;
        is_jump.then(|| u64::from_str_radix(address, 16).ok()).flatten()
    }

    /// The function that it calls, if it calls one.
    fn call(&self) -> Option<&str> {
        let is_call = ["call", "bl\t"].iter().any(|name| self.text.starts_with(name));
        let (_, function) = self.text.split_once(" <")?;
        is_call.then_some(function.trim_end_matches('>'))
    }
}

/// The instructions of each operation compiled for a set.
fn functions(assembly: &str) -> BTreeMap<&str, Vec<Instruction<'_>>> {
    let mut functions = BTreeMap::<_, Vec<_>>::new();
    let mut name = "";
    for line in assembly.lines() {
        if let Some((_, symbol)) = line.strip_suffix(">:").and_then(|line| line.split_once(" <")) {
            name = symbol;
        } else if let Some((address, text)) = line.split_once(":\t")
            && let Ok(address) = u64::from_str_radix(address.trim(), 16)
            && name.contains(COMPILED)
        {
            let text = text.trim();
            let text = text.strip_prefix("{vex} ").unwrap_or(text); // so objdump names the older one of two encodings
            functions.entry(name).or_default().push(Instruction { address, text });
        }
    }
    functions
}

/// The loops with no other loop inside that multiply and add.
fn loops(processor: &Processor, kernel: &Kernel, function: &[Instruction]) -> Vec<Loop> {
    let is_float = |line: &str| line.starts_with(processor.floats);
    let is_integer = |line: &str| processor.integers.iter().any(|name| line.starts_with(name));
    let is_quantized = kernel.operation == QUANTIZED;
    let place = |address| function.binary_search_by_key(&address, |instruction| instruction.address).ok();
    let back: Vec<(usize, usize)> = (0..function.len())
        .filter_map(|end| Some((place(function[end].jump()?)?, end)))
        .filter(|(start, end)| start < end)
        .collect();
    let is_innermost = |(start, end): &(usize, usize)| {
        !back.iter().any(|other| (other.0, other.1) != (*start, *end) && *start <= other.0 && other.1 <= *end)
    };
    back.iter()
        .filter(|range| is_innermost(range))
        .map(|(start, end)| {
            let body = &function[*start..=*end];
            let count = |is: &dyn Fn(&str) -> bool| body.iter().filter(|line| is(line.text)).count();
            Loop {
                instructions: body.len(),
                multiply_adds: if is_quantized { count(&is_integer) } else { count(&is_float) },
                ends: if is_quantized { count(&is_float) } else { 0 },
                spills: count(&|line| (processor.spills)(line)),
            }
        })
        .filter(|l| l.multiply_adds > 0 && l.multiply_adds >= l.ends * FEWEST_OF_A_BLOCK)
        .collect()
}
