#!/usr/bin/env python3
"""Builds the site of docs/ into build/site: static pages, searchable, that load nothing from elsewhere. `make docs`.

    build.py [--narrow build/release/bin/narrow] [--output build/site]

References are made from the sources: the command's from its parser, C and C++ from the headers, Python from the docstrings.
The build fails on a link that leads nowhere and on a public symbol that nothing documents.
"""

import argparse
import html
import json
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys

import docstrings
import drawings
import headers
from render import FORMATTER, Page

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent

# The order of the site: (section, pages under docs/). Pages of made/ are made below; a page that is not named comes last, under "More".
SECTIONS = [
    ("Start", ["first_steps.md", "choosing.md", "faq.md"]),
    (
        "Coming from",
        [
            "coming_from/torchao.md",
            "coming_from/llm_compressor.md",
            "coming_from/llama_cpp.md",
            "coming_from/bitsandbytes.md",
            "coming_from/tensorrt.md",
        ],
    ),
    (
        "Use",
        [
            "command.md",
            "formats.md",
            "quantization.md",
            "methods.md",
            "evaluation.md",
            "cuda_executor.md",
            "scaling.md",
            "interop.md",
            "python.md",
            "onnx.md",
            "c_api.md",
            "trust.md",
        ],
    ),
    ("Reference", ["made/command_line.md", "made/python_api.md", "made/cpp_api.md", "made/c_api.md"]),
    ("Kernels", ["layouts.md", "kernels/*"]),
    ("Benchmarks", ["made/benchmarks.md", "benchmarks/*"]),
    ("Project", ["architecture.md", "release.md"]),
]
PYTHON_MODULES = {
    "narrow": "python/narrow/__init__.py",
    "narrow.torch": "python/narrow/torch/__init__.py",
    "narrow.onnx": "python/narrow/onnx/__init__.py",
}


def command(narrow, *words):
    return subprocess.run([narrow, *words], capture_output=True, text=True, check=True).stdout


def made_pages(narrow):
    """Pages that nobody writes: {name: Markdown}."""
    public = sorted((ROOT / "include/narrow").glob("*.h"))
    cpp = [path for path in public if path.name not in ("c.h", "narrow.h")]
    plots = [
        "# All benchmarks",
        "",
        "Drawn from the tables that are committed beside the pages; every figure there says how it was measured.",
        "",
    ]
    for path in sorted((ROOT / "docs/benchmarks").glob("*.json")):
        title = (ROOT / f"docs/benchmarks/{path.stem}.md").read_text().split("\n", 1)[0].removeprefix("# ")
        plots += [f"## {title}", "", f"[The page](../benchmarks/{path.stem}.md), [the data](../benchmarks/{path.name}).", ""]
        plots += [figure + "\n" for figure in drawings.benchmark_plots(json.loads(path.read_text()))]
    return {
        "made/command_line.md": command(narrow, "manual", "--markdown").replace("](command.md)", "](../command.md)"),
        "made/python_api.md": docstrings.reference(
            {name: ROOT / path for name, path in PYTHON_MODULES.items()},
            "Python reference",
            "Made from the docstrings; [Python and PyTorch](../python.md) is the guide.",
        ),
        "made/cpp_api.md": headers.reference(
            cpp,
            "C++ reference",
            "Made from the public headers; `#include <narrow/narrow.h>` includes those of the core. "
            "[headers.cc](../../examples/cpp/headers.cc) shows each by its main function, "
            "[cuda_headers.cc](../../examples/cpp/cuda_headers.cc) those for GPUs.",
        ),
        "made/c_api.md": headers.reference(
            [ROOT / "include/narrow/c.h"], "C reference", "Made from `narrow/c.h`; [the C interface](../c_api.md) is the guide."
        ),
        "made/benchmarks.md": "\n".join(plots),
    }


def draw_values(markdown, narrow):
    """Puts a format's picture in the place of <!-- values: NAME -->."""
    return re.sub(
        r"<!-- values: (\S+) -->",
        lambda found: drawings.value_line(json.loads(command(narrow, "formats", found.group(1), "--json"))),
        markdown,
    )


def undocumented():
    problems = [
        f"{path.relative_to(ROOT)}:{line}: {name} has no comment"
        for path in sorted((ROOT / "include/narrow").glob("*.h"))
        for line, name in headers.undocumented(path)
    ]
    return problems + [
        f"{path}: {module}.{name} has no docstring"
        for module, path in PYTHON_MODULES.items()
        for name in docstrings.undocumented(ROOT / path)
    ]


def short(title):
    """A title for lists: without the file that a section is about, and without the day that a page was measured on."""
    return re.sub(r" \((?:src|include|python|tools)/[^)]*\)|, \d{4}-\d\d-\d\d$", "", title)


def page_path(name):
    return name.removesuffix(".md") + ".html"


class Site:
    def __init__(self, narrow, output):
        self.output, self.problems = output, undocumented()
        made = made_pages(narrow)
        self.sections = []
        self.pages = {"index.md": Page(self.index(made))}
        named = {name for _, patterns in SECTIONS for name in patterns}
        written = sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))
        more = [name for name in written if name not in named and f"{posixpath.dirname(name)}/*" not in named]
        for section, patterns in [*SECTIONS, *([("More", more)] if more else [])]:
            names = []
            for pattern in patterns:
                if pattern.endswith("/*"):
                    names += sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").glob(pattern.replace("*", "*.md")))
                else:
                    names.append(pattern)
            self.sections.append((section, names))
            for name in names:
                text = made.get(name) or (ROOT / "docs" / name).read_text()
                self.pages[name] = Page(draw_values(text, narrow))

    @staticmethod
    def index(_):
        """The first page is the README, seen from docs/."""
        text = (ROOT / "README.md").read_text()
        return re.sub(
            r"\]\((?:docs/)?([^)#:]+)((?:#[^)]*)?)\)",
            lambda m: f"]({'' if m.group(0).startswith('](docs/') else '../'}{m.group(1)}{m.group(2)})",
            text,
        )

    def resolve(self, page, link):
        """Where a link of a page leads on the site; files that are not of the site are copied into it."""
        if re.match(r"[a-z]+:", link):
            return link
        target, _, anchor = link.partition("#")
        name = posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page
        if name in ("benchmarks", "kernels", "docs", "."):
            name = {"benchmarks": "made/benchmarks.md", "kernels": "kernels/cpu_matmul.md"}.get(name, "index.md")
        if name in ("../README.md",):
            name = "index.md"
        up = "../" * page.count("/")
        if name in self.pages:
            if anchor and anchor not in {heading[1] for heading in self.pages[name].headings}:
                self.problems.append(f"{page}: {link} names no heading of {name}")
            return f"{up}{page_path(name)}" + (f"#{anchor}" if anchor else "")
        source = (ROOT / "docs" / name).resolve()
        if not source.exists() or not source.is_relative_to(ROOT):
            self.problems.append(f"{page}: {link} leads nowhere")
            return link
        place = pathlib.Path("files") / source.relative_to(ROOT)
        if source.is_dir():
            listing = "".join(f"<li>{html.escape(path.name)}" for path in sorted(source.iterdir()))
            self.write(
                f"{place}/index.html",
                self.frame(f"{place}/index.html", place.name, f"<h1>{html.escape(str(source.relative_to(ROOT)))}</h1><ul>{listing}</ul>"),
            )
            return f"{up}{place.as_posix()}/index.html"
        (self.output / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, self.output / place)
        return f"{up}{place.as_posix()}"

    def navigation(self, current):
        up = "../" * current.count("/")
        text = f'<a class="home" href="{up}index.html">narrow</a>'
        text += '<label class="menu" for="menu">Contents</label>'
        text += '<input id="search" type="search" placeholder="Search" aria-label="Search"><ul id="found"></ul>'
        text += '<input id="menu" type="checkbox" aria-label="Contents"><div class="tree">'
        for section, names in self.sections:
            is_open = " open" if current in [page_path(name) for name in names] or section == "Start" else ""
            items = ""
            for name in names:
                here = " class=here" if page_path(name) == current else ""
                items += f'<li><a href="{up}{page_path(name)}"{here}>{html.escape(short(self.pages[name].title))}</a>'
            text += f"<details{is_open}><summary>{section}</summary><ul>{items}</ul></details>"
        return text + "</div>"

    def neighbours(self, current):
        """The pages before and after this one, for those who read on."""
        order = ["index.md", *(name for _, names in self.sections for name in names)]
        place, up = order.index(current), "../" * current.count("/")
        links = ""
        for other, mark in ((place - 1, "previous"), (place + 1, "next")):
            if 0 <= other < len(order):
                links += f'<a class="{mark}" href="{up}{page_path(order[other])}">{html.escape(self.pages[order[other]].title)}</a>'
        return f"<footer>{links}</footer>"

    def frame(self, path, title, body, contents=""):
        up = "../" * path.count("/")
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)} · narrow</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{up}style.css">
</head>
<body data-root="{up}">
<nav>{self.navigation(path)}</nav>
<main>{body}</main>
<aside>{contents}</aside>
<script src="{up}search_index.js"></script>
<script src="{up}search.js"></script>
<script src="{up}copy.js"></script>
</body>
</html>
"""

    def write(self, path, text):
        place = self.output / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def build(self):
        index = []
        for name, page in self.pages.items():
            page.rewrite(lambda link, name=name: self.resolve(name, link))
            path = page_path(name)
            second = [(anchor, text) for level, anchor, text in page.headings if level == 2]
            contents = ""
            if len(second) > 2:
                contents = "<ul>" + "".join(f'<li><a href="#{anchor}">{html.escape(short(text))}</a>' for anchor, text in second) + "</ul>"
            self.write(path, self.frame(path, page.title, page.html() + self.neighbours(name), contents))
            index.append(
                {
                    "path": path,
                    "title": page.title,
                    "headings": [[anchor, text] for _, anchor, text in page.headings[1:]],
                    "text": page.text()[:20000],
                }
            )
        self.write("search_index.js", "const pages = " + json.dumps(index, ensure_ascii=False) + ";\n")
        for script in ("search.js", "copy.js"):
            shutil.copyfile(HERE / script, self.output / script)
        code = FORMATTER.get_style_defs(".code")
        self.write("style.css", (HERE / "style.css").read_text() + re.sub(r"background: [^;}]*;?", "", code) + "\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--narrow", default=ROOT / "build/release/bin/narrow", type=pathlib.Path)
    arguments.add_argument("--output", default=ROOT / "build/site", type=pathlib.Path)
    options = arguments.parse_args()
    shutil.rmtree(options.output, ignore_errors=True)
    site = Site(options.narrow, options.output)
    site.build()
    for problem in site.problems:
        print(problem)
    print(f"docs: {len(site.pages)} pages in {options.output}, {len(site.problems)} problems")
    return 1 if site.problems else 0


if __name__ == "__main__":
    sys.exit(main())
