"""What was measured, as Markdown and as a plot."""

import statistics
from collections import defaultdict

from .engines import ENGINES, FastSmolrun, LlamaCpp, Smolrun

DTYPES = ("f32", "bf16", "f16", "q8", "q8_0", "q4", "q4_0", "q4_k_m", "q3")
# A position's keys and values in all layers of SmolLM2-135M.
KV_NUMBERS = 2 * 30 * 3 * 64
KV_BYTES = {"f32": 4 * KV_NUMBERS, "f16": 2 * KV_NUMBERS, "q8": KV_NUMBERS + 4 * KV_NUMBERS // 64}
# Prompts of few tokens, and a context of many.
FEW_TOKENS, DEPTH = (2, 4, 8, 16), 4096
# Sequences that are decoded together.
TOGETHER = (1, 4, 16, 64)


class Results:
    """The samples by what was measured: medians."""

    def __init__(self, samples):
        self.groups = defaultdict(list)
        for values in samples:
            self.groups[values["measure"], values["engine"], values["dtype"], values["threads"]].append(values)

    def all(self, measure, engine, dtype, threads, key):
        return [values[key] for values in self.groups.get((measure, engine, dtype, threads), []) if key in values]

    def median(self, *which):
        values = self.all(*which)
        return statistics.median(values) if values else None

    def cases(self, measure):
        """Engines with dtypes that were measured."""
        seen = {(engine, dtype) for kind, engine, dtype, _ in self.groups if kind == measure}
        return sorted(seen, key=lambda case: (list(ENGINES).index(case[0]), DTYPES.index(case[1])))

    def threads(self, measure):
        return sorted({threads for kind, _, _, threads in self.groups if kind == measure})


def table(header, rows):
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}"


def ratio(a, b):
    return "-" if a is None or b is None else f"{a / b:.2f}"


def spread(values, digits=0):
    if not values:
        return "-"
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def plural(threads):
    return f"{threads} thread{'s' * (threads > 1)}"


def alike(dtype):
    """smolrun's dtype that a peer's is compared with."""
    return next((ours for ours, theirs in LlamaCpp.likes.items() if dtype in theirs), dtype)


def compared(results, measure, key, is_speed, digits=0):
    """A row for each engine and dtype: median and range, and how many times as fast smolrun is with the dtype alike."""
    threads = results.threads(measure)
    ours = [Smolrun.name] + [FastSmolrun.name] * any(engine == FastSmolrun.name for engine, _ in results.cases(measure))
    header = ["", *map(plural, threads), *(f"{name} is, {plural(n)}" for name in ours for n in threads)]
    rows = []
    for engine, dtype in results.cases(measure):
        row = [f"{engine} {dtype}", *(spread(results.all(measure, engine, dtype, n, key), digits) for n in threads)]
        for name in ours:
            for n in threads:
                mine = results.median(measure, name, alike(dtype), n, key)
                theirs = results.median(measure, engine, dtype, n, key)
                times = ratio(mine, theirs) if is_speed else ratio(theirs, mine)
                row.append("" if engine.startswith(Smolrun.name) or times == "-" else f"{times} x")
        rows.append(row)
    return table(header, rows)


def machine_table(results):
    """smolrun beside what the machine gives, measured in the same runs."""
    header = ["smolrun", "read GB/s", "decode reaches", "FMA GFLOP/s", "prefill reaches"]
    rows = []
    for engine, dtype in results.cases("speed"):
        for n in results.threads("speed"):
            keys = ("read_gb_s", "fraction_of_bandwidth", "fma_gflop_s", "fraction_of_fma")
            read, decode, fma, prefill = (results.median("speed", engine, dtype, n, key) for key in keys)
            if engine == Smolrun.name:
                rows.append([f"{dtype}, {plural(n)}", number(read, 1), f"{decode:.0%}", number(fma), f"{prefill:.0%}"])
    return table(header, rows)


def few_table(results):
    """Prompts of few tokens, as times the speed of tokens one at a time."""
    prompts = [f"pp{count}" for count in FEW_TOKENS]
    rows = []
    for engine, dtype in results.cases("few"):
        for n in results.threads("few"):
            times = (results.median("few", engine, dtype, n, prompt) for prompt in prompts)
            rows.append([f"{dtype}, {plural(n)}", *(number(value, 2) for value in times)])
    return table(["times tg", *prompts], rows)


def together_table(results):
    """Tokens per second of all sequences together; in brackets how many times as fast smolrun is with the dtype alike."""
    rows = []
    for n in results.threads("together"):
        for engine, dtype in results.cases("together"):
            cells = []
            for count in TOGETHER:
                speed = results.median("together", engine, dtype, n, f"tg{count}")
                times = ratio(results.median("together", Smolrun.name, alike(dtype), n, f"tg{count}"), speed)
                cells.append(number(speed) + ("" if engine == Smolrun.name else f" ({times} x)"))
            rows.append([f"{engine} {dtype}, {plural(n)}", *cells])
    return table(["sequences", *map(str, TOGETHER)], rows)


def depth_table(results):
    """What 4,096 positions of keys and values cost a token, beside the time that reading them takes."""
    header = ["", "tg at 0", f"tg at {DEPTH:,}", "more, ms", "reading takes, ms", "ratio of all"]
    rows = []
    for engine, dtype in results.cases("depth"):
        for n in results.threads("depth"):
            for kv in KV_BYTES:
                group = [values for values in results.groups["depth", engine, dtype, n] if values["kv"] == kv]
                keys = ("near", "far", "read_gb_s")
                near, far, read = (statistics.median(values[key] for values in group) for key in keys)
                reading = KV_BYTES[kv] * DEPTH / read / 1e6
                times = ratio(far, near + reading)
                cells = [number(1e3 / near, 1), number(1e3 / far, 1), number(far - near, 2), number(reading, 2)]
                rows.append([f"{dtype}, KV {kv}, {plural(n)}", *cells, times])
    return table(header, rows)


def cold_table(results):
    threads = results.threads("cold")
    header = ["", *(f"{plural(n)}: {what}" for n in threads for what in ("ms", "cat, ms", "ratio"))]
    rows = []
    for engine, dtype in results.cases("cold"):
        row = [f"{engine} {dtype}"]
        for n in threads:
            ms, cat = (results.median("cold", engine, dtype, n, key) for key in ("ms", "cat_ms"))
            row += [number(ms), number(cat), ratio(ms, cat)]
        rows.append(row)
    return table(header, rows)


def memory_table(results):
    threads = max(results.threads("memory"))
    rows = []
    for engine, dtype in results.cases("memory"):
        hello, full = (results.median(kind, engine, dtype, threads, "rss_mb") for kind in ("start", "memory"))
        rows.append([f"{engine} {dtype}", number(hello), number(full)])
    return table([f"peak RSS, MB, {plural(threads)}", "one token", "context of 512"], rows)


def shared_table(results):
    rows = []
    for engine, dtype in results.cases("shared"):
        rss, pss = (results.median("shared", engine, dtype, 1, key) for key in ("rss_mb", "pss_mb"))
        rows.append([f"{engine} {dtype}", number(rss), number(pss)])
    return table(["4 processes on one file, each, MB", "RSS", "PSS"], rows)


def phases_table(results):
    """Where the time of a start goes, as each peer tells it: milliseconds since its `main`, medians."""
    rows = []
    for engine, dtype in results.cases("start"):
        threads = max(results.threads("start"))
        phases = [values for values in results.all("start", engine, dtype, threads, "phases") if values]
        if phases:
            at = {key: statistics.median(values[key] for values in phases) for key in phases[0]}
            in_order = sorted(at.items(), key=lambda phase: phase[1])
            rows.append([f"{engine} {dtype}", ", ".join(f"{key} {ms:.0f}" for key, ms in in_order)])
    return table(["done at, ms since `main`", ""], rows) if rows else None


def same_token(results):
    groups = [group for (kind, *_), group in results.groups.items() if kind == "start"]
    tokens = {values["token"].strip() for group in groups for values in group}
    return "All answer with the same token." if len(tokens) == 1 else f"The answers differ: {sorted(tokens)}."


def markdown(record):
    """The whole report."""
    results = Results(record["samples"])
    kinds = {kind for kind, *_ in results.groups}
    parts = [" · ".join(f"{key}: {value}" for key, value in record["machine"].items())]
    parts += [" · ".join(dict.fromkeys(record["versions"].values()))]
    parts += [f"Left out: {name}: {why}" for name, why in record["left_out"].items()]
    parts += ["Medians (and ranges). The last columns: how many times as fast smolrun is with the dtype alike."]
    if "speed" in kinds:
        parts += ["### Decode, tg128, tokens per second", compared(results, "speed", "tg", True, 1)]
        parts += ["### Prefill, pp512, tokens per second", compared(results, "speed", "pp", True)]
        parts += ["### Beside the machine", machine_table(results)]
    if "few" in kinds:
        parts += ["### Prompts of few tokens, times the speed of one at a time", few_table(results)]
    if "together" in kinds:
        parts += ["### Many sequences, tokens per second of all, prompts of 32 tokens", together_table(results)]
    if "depth" in kinds:
        parts += [f"### Decode after {DEPTH:,} tokens", depth_table(results)]
    if "start" in kinds:
        parts += ['### Start, whole process, prompt "Hello", one token, warm page cache, ms']
        parts += [compared(results, "start", "ms", False), same_token(results), phases_table(results)]
    if "cold" in kinds:
        parts += ["### Start, cold page cache, beside `cat FILE >/dev/null`", cold_table(results)]
    if "memory" in kinds:
        parts += ["### Memory", memory_table(results)]
    if "shared" in kinds:
        parts += [shared_table(results)]
    return "\n\n".join(part for part in parts if part)


# --- the plot ---

COLORS = {"smolrun": "#c2410c", "llama.cpp": "#475569", "candle": "#7c93ad", "transformers": "#b6c2cf"}
PLOTS = [
    ("speed", "tg", "Decode, tokens per second"),
    ("speed", "pp", "Prefill, tokens per second"),
    ("start", "ms", "Start to first token, ms (less is better)"),
]
BAR, GAP, LABEL, WIDTH = 16, 5, 150, 760


def svg(record):
    """Bars of the three headline figures, with the most threads measured: engines with the dtype alike side by side."""
    results, shapes, y = Results(record["samples"]), [], 10
    for kind, key, title in PLOTS:
        if results.threads(kind):
            threads = max(results.threads(kind))
            cases = sorted(results.cases(kind), key=lambda case: DTYPES.index(alike(case[1])))
            bars = [(engine, dtype, results.median(kind, engine, dtype, threads, key)) for engine, dtype in cases]
            bars = [bar for bar in bars if bar[2]]
            shapes += chart(f"{title}, {threads} threads", bars, y)
            y += 40 + len(bars) * (BAR + GAP)
    style = "text{font:12px system-ui,sans-serif;fill:#334155}.title{font-weight:600;font-size:13px}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}">'
    return "\n".join(
        [head, f"<style>{style}</style>", f'<rect width="{WIDTH}" height="{y}" fill="#fff"/>', *shapes, "</svg>", ""]
    )


def chart(title, bars, top):
    """A title and bars from `top` down, cut at 20 times the shortest, so that all can be seen."""
    values = [value for *_, value in bars]
    longest = min(max(values), 20 * min(values))
    yield f'<text class="title" x="10" y="{top + 14}">{title}</text>'
    for row, (engine, dtype, value) in enumerate(bars):
        y, length = top + 24 + row * (BAR + GAP), (WIDTH - LABEL - 90) * min(value, longest) / longest
        yield f'<text x="{LABEL - 8}" y="{y + 12}" text-anchor="end">{engine} {dtype}</text>'
        color = COLORS[engine.split(" ")[0]]
        yield f'<rect x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2" fill="{color}"/>'
        yield f'<text x="{LABEL + length + 6:.1f}" y="{y + 12}">{value:,.0f}{" (cut)" * (value > longest)}</text>'
