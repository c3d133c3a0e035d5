//! What the kernels are compiled to, on any machine: the loops that multiply keep their sums in registers, and do little else.
//!
//! A processor with AVX-512 is not needed to see that its kernel moves sums to the stack and back. That happened: such a
//! kernel was 2.3 times slower than the one for AVX2 on the same processor, and all results were right.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

use smol_tests::common::repository;

/// An operation compiled for a set, and the most instructions its best loop may have for each multiply-add. The least there
/// can be is one, and loads of what is multiplied; of i16, an addition more.
struct Kernel {
    /// What the symbol (v0 mangling) of the set's entry has in it, and that of the operation.
    symbol: [&'static str; 2],
    name: &'static str,
    most: f64,
}

const fn kernel(set: &'static str, operation: &'static str, name: &'static str, most: f64) -> Kernel {
    Kernel { symbol: [set, operation], name, most }
}

const AVX2: &str = "4Avx23run8compiled";
const AVX512: &str = "6Avx512Kb0_E3run8compiled";
const AVX512_VNNI: &str = "6Avx512Kb1_E3run8compiled";
const AVX512_AMX: &str = "9Avx512Amx3run8compiled";
const NEON: &str = "4Neon3run8compiled";

const F32: &str = "6MatmulfE";
const BF16: &str = "6MatmulNtNtBc_4half8Bf16PairE";
const F16: &str = "6MatmulNtNtBc_4half3F16E";
const I8: &str = "6MatmulaE";
const QUANTIZED: &str = "15MatmulQuantizedE";
const TILES: &str = "11MatmulTilesE";

/// How an instruction set's assembly reads.
struct Processor {
    target: &'static str,
    kernels: &'static [Kernel],
    /// Multiply-adds of floats, and of integers: those of a block's inputs, which a float multiply-add ends.
    floats: &'static str,
    integers: &'static [&'static str],
    /// Instructions that take lanes of a vector one by one, which no operation over 16 lanes needs.
    lane_by_lane: &'static [&'static str],
    /// Whether a line stores a vector register on the stack.
    spills: fn(&str) -> bool,
}

const X86: Processor = Processor {
    target: "x86_64-unknown-linux-gnu",
    kernels: &[
        kernel(AVX2, F32, "avx2 f32", 1.9),
        kernel(AVX2, BF16, "avx2 bf16", 2.1),
        kernel(AVX2, F16, "avx2 f16", 2.1),
        kernel(AVX2, I8, "avx2 i8", 2.1),
        kernel(AVX2, QUANTIZED, "avx2 quantized", 3.3),
        kernel(AVX512, F32, "avx512 f32", 1.7),
        kernel(AVX512, BF16, "avx512 bf16", 1.8),
        kernel(AVX512, F16, "avx512 f16", 1.7),
        kernel(AVX512, I8, "avx512 i8", 1.8),
        kernel(AVX512, QUANTIZED, "avx512 quantized", 3.3),
        kernel(AVX512_VNNI, QUANTIZED, "avx512vnni quantized", 1.4),
        // What is left to the vector unit; tiles are multiplied by assembly.
        kernel(AVX512_AMX, TILES, "avx512amx quantized", 5.5),
    ],
    floats: "vfmadd",
    integers: &["vpmaddwd", "vpdpbusd"],
    lane_by_lane: &["vgather", "vpgather", "vscatter", "vpscatter", "vpextrb", "vpextrw"],
    spills: |line| {
        line.starts_with("vmov")
            && line
                .split_once(", ")
                .is_some_and(|(from, to)| is_vector(from) && (to.contains("(%rsp") || to.contains("(%rbp")))
    },
};

const ARM: Processor = Processor {
    target: "aarch64-unknown-linux-gnu",
    kernels: &[
        kernel(NEON, F32, "neon f32", 1.5),
        kernel(NEON, BF16, "neon bf16", 1.5),
        kernel(NEON, F16, "neon f16", 1.5),
        kernel(NEON, I8, "neon i8", 1.5),
        kernel(NEON, QUANTIZED, "neon quantized", 2.2),
    ],
    floats: "fmla",
    integers: &["smlal"],
    lane_by_lane: &["umov", "smov"],
    spills: |line| {
        let mut words = line.split_whitespace();
        matches!(words.next(), Some("str" | "stp" | "stur"))
            && words.next().is_some_and(|register| register.starts_with('q'))
            && line.contains("[sp")
    },
};

fn is_vector(operands: &str) -> bool {
    operands.rsplit([' ', '\t']).next().is_some_and(|register| {
        register.starts_with("%zmm") || register.starts_with("%ymm") || register.starts_with("%xmm")
    })
}

/// Of such instructions, what the ends of slices may need. A loop over rows that LLVM makes of one over lanes has 64 and more.
const MOST_LANE_BY_LANE: usize = 8;

/// An innermost loop.
#[derive(Debug)]
struct Loop {
    instructions: usize,
    multiply_adds: usize,
    spills: usize,
}

impl Loop {
    /// Instructions for each multiply-add.
    fn cost(&self) -> f64 {
        self.instructions as f64 / self.multiply_adds as f64
    }
}

#[test]
fn x86_kernels_keep_their_sums_in_registers() {
    check(&X86);
}

#[test]
fn arm_kernels_keep_their_sums_in_registers() {
    check(&ARM);
}

fn check(processor: &Processor) {
    let assembly = assembly(processor.target);
    let functions = functions(&assembly);
    let mut faults = String::new();
    for kernel in processor.kernels {
        let found: Vec<_> = functions
            .iter()
            .filter(|(symbol, _)| kernel.symbol.iter().all(|part| symbol.contains(part)))
            .collect();
        assert!(
            !found.is_empty(),
            "{}: no function {:?} in {}",
            kernel.name,
            kernel.symbol,
            processor.target
        );
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
        for l in loops.iter().filter(|l| l.multiply_adds >= 8 && l.spills * 3 > l.multiply_adds * 2) {
            writeln!(faults, "{}: sums move to the stack at every step: {l:?}", kernel.name).unwrap();
        }
    }
    for (symbol, lines) in functions.iter().filter(|(symbol, _)| symbol.contains("3run8compiled")) {
        let found =
            lines.iter().filter(|line| processor.lane_by_lane.iter().any(|name| line.starts_with(name)));
        let count = found.count();
        if count > MOST_LANE_BY_LANE {
            writeln!(faults, "{symbol}: takes lanes one by one, {count} times").unwrap();
        }
    }
    assert!(faults.is_empty(), "{}\n{faults}", processor.target);
}

/// The library compiled for a processor, as text.
fn assembly(target: &str) -> String {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("codegen");
    let output = Command::new(env!("CARGO"))
        .args([
            "rustc",
            "--quiet",
            "--locked",
            "--release",
            "--package",
            "smolrun",
            "--lib",
            "--no-default-features",
        ])
        .args(["--target", target, "--", "--emit=asm", "-Ccodegen-units=1"])
        .current_dir(repository())
        .env("CARGO_TARGET_DIR", &directory)
        .env("RUSTFLAGS", "-C symbol-mangling-version=v0")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .output()
        .expect("cargo runs");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{target} is missing? rustup target add {target}\n{message}");
    // Cargo may have kept those of older sources.
    let files = std::fs::read_dir(directory.join(target).join("release/deps"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let newest = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "s"))
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("smolrun-"))
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    std::fs::read_to_string(newest.expect("an assembly file")).unwrap()
}

/// The lines of each function, trimmed.
fn functions(assembly: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut functions = BTreeMap::new();
    let mut lines = Vec::new();
    let mut name = "";
    for line in assembly.lines() {
        match line.strip_suffix(':') {
            Some(symbol) if symbol.starts_with("_R") => {
                functions.insert(name, std::mem::take(&mut lines));
                name = symbol;
            }
            _ => lines.push(line.trim()),
        }
    }
    functions.insert(name, lines);
    functions
}

/// The loops with no other loop inside that multiply and add.
fn loops(processor: &Processor, kernel: &Kernel, lines: &[&str]) -> Vec<Loop> {
    let is_multiply_add = |line: &str| match kernel.symbol[1] {
        QUANTIZED => processor.integers.iter().any(|name| line.starts_with(name)),
        _ => line.starts_with(processor.floats),
    };
    let labels: BTreeMap<&str, usize> =
        lines.iter().enumerate().filter_map(|(i, line)| Some((line.strip_suffix(':')?, i))).collect();
    let jump = |line: &str| labels.get(line.split(['\t', ' ', ',']).next_back()?).copied();
    let back: Vec<(usize, usize)> = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| {
            line.starts_with('j')
                || line.starts_with("b.")
                || line.starts_with("b\t")
                || line.starts_with("cb")
                || line.starts_with("tb")
        })
        .filter_map(|(end, line)| Some((jump(line)?, end)).filter(|(start, end)| start < end))
        .collect();
    let is_innermost = |(start, end): &(usize, usize)| {
        !back.iter().any(|other| (other.0, other.1) != (*start, *end) && *start <= other.0 && other.1 <= *end)
    };
    let is_instruction =
        |line: &&&str| !line.is_empty() && !line.ends_with(':') && !line.starts_with(['.', '#', '/']);
    back.iter()
        .filter(|range| is_innermost(range))
        .map(|(start, end)| {
            let body: Vec<_> = lines[*start..=*end].iter().filter(is_instruction).collect();
            let count = |is: &dyn Fn(&str) -> bool| body.iter().filter(|line| is(line)).count();
            Loop {
                instructions: body.len(),
                multiply_adds: count(&is_multiply_add),
                spills: count(&|line| (processor.spills)(line)),
            }
        })
        .filter(|l| l.multiply_adds > 0)
        .collect()
}
