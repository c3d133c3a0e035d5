#!/usr/bin/env python3
"""Draws what a blob's bytes buy: size, lost perplexity and speed of each kind of quantization.

usage: plot_quality.py docs/quality.json docs/quality.svg

The JSON is a list of {"name", "engine", "mb", "loss": percent of perplexity, "speed": tokens a second or null}, and "dy"
where a label would lie on another.
"""
import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 420, 60, 50, 40, 30
COLORS = {"smolrun": "#2563eb", "llama.cpp": "#d97706"}
LEAST, MOST = 0.05, 40.0  # percent, logarithmic
MEGABYTES = (60, 160)


def main(source: Path, out: Path) -> None:
    points = json.loads(source.read_text())
    shapes = [*axes(), *(shape for point in points for shape in mark(point))]
    style = "text{font:12px system-ui,sans-serif;fill:#334155}.title{font-weight:600;font-size:13px}.small{font-size:11px}"
    title = "Size, loss and speed of SmolLM2-135M-Instruct (tokens a second, 2 threads)"
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f"<style>{style}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text class="title" x="{LEFT}" y="22">{title}</text>',
    ]
    out.write_text("\n".join([*head, *shapes, "</svg>", ""]))


def across(megabytes: float) -> float:
    first, last = MEGABYTES
    return LEFT + (megabytes - first) / (last - first) * (WIDTH - LEFT - RIGHT)


def down(loss: float) -> float:
    part = math.log(max(loss, LEAST) / LEAST) / math.log(MOST / LEAST)
    return HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP)


def axes():
    for loss in (0.1, 0.3, 1, 3, 10, 30):
        y = down(loss)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e2e8f0"/>'
        yield f'<text class="small" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">+{loss:g} %</text>'
    for megabytes in range(MEGABYTES[0], MEGABYTES[1] + 1, 20):
        x = across(megabytes)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#e2e8f0"/>'
        yield f'<text class="small" x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{megabytes} MB</text>'
    yield f'<text class="small" x="{LEFT}" y="{HEIGHT - 10}">Perplexity above that of f32; the lower left is best.</text>'
    for index, (engine, color) in enumerate(COLORS.items()):
        x = WIDTH - RIGHT - 180 + 90 * index
        yield f'<circle cx="{x}" cy="{HEIGHT - 14}" r="5" fill="{color}"/>'
        yield f'<text class="small" x="{x + 10}" y="{HEIGHT - 10}">{engine}</text>'


def mark(point):
    x, y = across(point["mb"]), down(point["loss"])
    speed = f" · {point['speed']:.0f}" if point.get("speed") else ""
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{COLORS[point["engine"]]}"/>'
    is_right = x > WIDTH - 120
    place = f'x="{x - 10:.1f}" text-anchor="end"' if is_right else f'x="{x + 10:.1f}"'
    yield f'<text {place} y="{y + 4 + point.get("dy", 0):.1f}">{point["name"]}{speed}</text>'


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
