"""The site of the docs: built without problems, searchable, opened in a real browser without a word on the console; every block of
code runs."""

import html.parser
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/docs"))
import docstrings  # noqa: E402
import headers  # noqa: E402
import snippets  # noqa: E402


@pytest.fixture(scope="module")
def site(bin_dir, tmp_path_factory):
    pytest.importorskip("latex2mathml", reason="tools/dev/requirements.txt is not installed")
    place = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, ROOT / "tools/docs/build.py", "--narrow", bin_dir / "narrow", "--output", place], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 problems" in done.stdout
    return place


class Links(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.names = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        fields = dict(attributes)
        self.names.update(value for name, value in fields.items() if name == "id")
        self.links += [value for name, value in fields.items() if name in ("href", "src") and not value.startswith("data:")]


def test_links_lead_somewhere_and_nothing_is_loaded(site):
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html")}
    assert len(pages) > 40
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"https?:", link):
                continue
            target, _, anchor = link.partition("#")
            place = (path.parent / target).resolve() if target else path
            assert place.exists(), (path, link)
            assert not anchor or anchor in pages[place].names, (path, link)
        loaded = re.findall(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=[\"']?([^\"'> ]+)", path.read_text())
        assert not [link for link in loaded if link.startswith(("http", "//"))], path
    assert "url(" not in (site / "style.css").read_text() and "@import" not in (site / "style.css").read_text()


def browse(page):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("chromium is not installed")
    return subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--virtual-time-budget=30000",
            "--dump-dom",
            page,
        ],
        capture_output=True,
        text=True,
        timeout=400,
    )


def test_every_page_opens_without_a_word_on_the_console(site):
    """All pages in frames of one page, so that the browser starts once."""
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    frames = "".join(f'<iframe src="{page}" onload="document.title = Number(document.title) + 1"></iframe>' for page in pages)
    (site / "all.htm").write_text(f"<!doctype html><title>0</title>{frames}")
    done = browse((site / "all.htm").as_uri())
    assert done.returncode == 0, done.stderr
    assert f"<title>{len(pages)}</title>" in done.stdout
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not console, console
    broken = browse("data:text/html,<script>nothing()</script>")
    assert any("CONSOLE" in line for line in broken.stderr.splitlines()), "an error would not have been seen"


def test_search_finds_pages(site):
    found = re.search(r'id="found">(.*?)</ul>', browse(f"{(site / 'index.html').as_uri()}?q=smoothquant").stdout, re.S).group(1)
    assert "methods.html" in found
    found = re.search(r'id="found">(.*?)</ul>', browse(f"{(site / 'made/cpp_api.html').as_uri()}?q=binary_conv2d").stdout, re.S).group(1)
    assert '"../made/cpp_api.html' in found


def test_references_name_every_public_symbol(site):
    text = (site / "made/c_api.html").read_text()
    for name in re.findall(r"\b(narrow_\w+)\(", (ROOT / "include/narrow/c.h").read_text()):
        assert f"{name}" in text
    python = (site / "made/python_api.html").read_text()
    for module, path in {"narrow": "python/narrow/__init__.py", "narrow.torch": "python/narrow/torch/__init__.py"}.items():
        names = docstrings.public_names(docstrings.parse(ROOT / path))
        assert len(names) > 20
        for name in names:
            assert name.startswith("__") or f"{module}.{name}" in python, name
    assert 'class="values"' in (site / "formats.html").read_text() and 'class="plot"' in (site / "made/benchmarks.html").read_text()


def test_undocumented_symbols_are_found(tmp_path):
    header = tmp_path / "some.h"
    header.write_text(
        "#pragma once\n/// A header.\n\n/// Told.\nint told(int x);\nint together();\n\nint untold(int x);\n\n"
        "struct Bare {\n  int value() const;\n};\n\nenum class Kind { kOne };\n\nconstexpr int kCount = 3;  ///< beside\n"
    )
    assert [name for _, name in headers.undocumented(header)] == ["untold", "Bare", "Bare::value", "Kind"]
    module = tmp_path / "module.py"
    module.write_text('__all__ = ["told", "untold"]\ndef told():\n    """Told."""\ndef untold():\n    pass\n')
    assert docstrings.undocumented(module) == ["untold"]


def test_blocks_of_code_say_how_they_run(tmp_path):
    blocks = [block for page in snippets.pages() for block in snippets.blocks_of(page)]
    assert len(blocks) >= 35 and all(block.reason is None or len(block.reason) > 10 for block in blocks)
    left_out = [block for block in blocks if block.reason is not None]
    assert len(left_out) <= 4, [str(block) for block in left_out]


def test_every_block_of_code_runs(bin_dir):
    package = pathlib.Path(pytest.importorskip("narrow", reason="the Python package is not built").__file__).parents[1]
    library = f"{bin_dir.parent / 'src/libnarrow.a'} {(bin_dir.parent / 'narrow.pc').read_text().split('-lnarrow', 1)[1].strip()}"
    done = subprocess.run(
        [sys.executable, ROOT / "tools/docs/snippets.py", "--narrow", bin_dir / "narrow", "--library", library, "--python-path", package],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
