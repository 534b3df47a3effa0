#!/usr/bin/env python3
"""Turns text on standard input into an SVG that looks like a terminal: `tools/dev/demo.sh | tools/dev/terminal_picture.py 'make demo' > docs/images/demo.svg`."""
import html
import sys

CHARACTER, LINE, MARGIN = 8.4, 19, 18

lines = [f"$ {sys.argv[1]}"] + sys.stdin.read().rstrip("\n").split("\n")
width = int(max(len(line) for line in lines) * CHARACTER + 2 * MARGIN)
height = len(lines) * LINE + 2 * MARGIN
print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">')
print(f'<rect width="{width}" height="{height}" rx="8" fill="#12161c"/>')
print("<style>text { white-space: pre; }</style>")
print('<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14" fill="#d7dde5" xml:space="preserve">')
for number, line in enumerate(lines):
    colour = ' fill="#7ee0a8"' if number == 0 else ""
    print(f'<text x="{MARGIN}" y="{MARGIN + 14 + number * LINE}"{colour}>{html.escape(line)}</text>')
print("</g></svg>")
