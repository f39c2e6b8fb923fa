#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws perf/results/latest.csv, and prints it as the README's table.

usage: figure.py [--table]

Without --table writes perf/results/latest.svg: a panel for each test, a pair of
bars for each processor. A row of the file holds the tokens per second of every
round, separated by spaces; picture and table show their median.
"""

import argparse
import csv
import pathlib
import statistics
from xml.sax.saxutils import escape

RESULTS = pathlib.Path(__file__).parent / "results"
PROGRAMS = ["ringfleet", "ik_llama.cpp"]
COLOURS = ["#1f6feb", "#b8bfc8"]
UNITS = {
    "prompt of 512": "prompt of 512 tokens",
    "1 sequence": "generation, 1 sequence",
    "8 sequences": "generation, 8 sequences together",
    "32 sequences": "generation, 32 sequences together",
}

WIDTH, PANEL_HEIGHT = 860, 210
PANEL_WIDTH = WIDTH // 2
LABEL_WIDTH, BAR_HEIGHT, PAIR_HEIGHT = 120, 11, 32
BAR_WIDTH = PANEL_WIDTH - LABEL_WIDTH - 60


def read():
    """{test: {processor: {program: median}}}, and the dates by processor."""
    tests, dates = {}, {}
    with open(RESULTS / "latest.csv", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            medians = {
                name: statistics.median(map(float, row[name].split()))
                for name in PROGRAMS
            }
            tests.setdefault(row["test"], {})[row["processor"]] = medians
            dates.setdefault(row["processor"], row["date"])
    return tests, dates


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def text(x, y, content, size=12, anchor="start", weight="normal"):
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" '
        f'text-anchor="{anchor}" font-weight="{weight}">{escape(content)}</text>'
    )


def bar(x, y, width, colour):
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.1f}" '
        f'height="{BAR_HEIGHT}" fill="{colour}"/>'
    )


def panel(left, top, test, processors):
    largest = max(max(programs.values()) for programs in processors.values())
    lines = [text(left + 10, top + 16, UNITS[test], size=13, weight="bold")]
    y = top + 30
    for processor, programs in processors.items():
        lines.append(
            text(left + LABEL_WIDTH - 6, y + 15, processor, anchor="end")
        )
        for row, program in enumerate(PROGRAMS):
            value = programs[program]
            width = BAR_WIDTH * value / largest
            at = y + row * (BAR_HEIGHT + 1)
            lines.append(bar(left + LABEL_WIDTH, at, width, COLOURS[row]))
            lines.append(
                text(
                    left + LABEL_WIDTH + width + 4, at + 10, number(value),
                    size=11,
                )
            )
        y += PAIR_HEIGHT
    return lines


def draw(tests):
    header = 44
    height = header + PANEL_HEIGHT * ((len(tests) + 1) // 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
        f'height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif" fill="#1f2328">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        text(
            10, 24, "Tokens per second on two cores: three layers of R1's sizes",
            size=14, weight="bold",
        ),
    ]
    x = WIDTH - 230
    for program, colour in zip(PROGRAMS, COLOURS):
        lines.append(bar(x, 14, 11, colour))
        lines.append(text(x + 16, 24, program))
        x += 100
    for index, (test, processors) in enumerate(tests.items()):
        lines += panel(
            index % 2 * PANEL_WIDTH, header + index // 2 * PANEL_HEIGHT, test,
            processors,
        )
    lines.append("</svg>")
    return "\n".join(lines) + "\n"


def table(tests, dates):
    lines = [
        "| two cores of | measured | " + " | ".join(tests) + " |",
        "|---|---|" + "---|" * len(tests),
    ]
    for processor, date in dates.items():
        cells = []
        for processors in tests.values():
            programs = processors.get(processor)
            cells.append(
                "" if programs is None
                else " / ".join(number(programs[name]) for name in PROGRAMS)
            )
        lines.append(f"| {processor} | {date} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--table", action="store_true", help="print Markdown, draw nothing"
    )
    options = parser.parse_args()
    tests, dates = read()
    if options.table:
        print(table(tests, dates))
    else:
        (RESULTS / "latest.svg").write_text(draw(tests), encoding="utf-8")


if __name__ == "__main__":
    main()
