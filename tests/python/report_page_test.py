"""The page of `narrow compare --report` in a real browser: it opens, says nothing on the console, its plots have data, its links lead somewhere."""
import html.parser
import pathlib
import re
import shutil
import subprocess

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
SCHEMES = ["int8:row", "W8A8", "int4:block128", "nvfp4", "fp3_e2m0:row"]


class Page(html.parser.HTMLParser):
    """The elements of a page: (tag, attributes), and its text by the id of the element that holds it."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.stack, self.inside = [], [], {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        fields = dict(attributes)
        self.elements.append((tag, fields))
        if fields.get("id"):
            self.stack.append((tag, fields["id"], []))
        for _, name, found in self.stack:
            self.inside.setdefault(name, []).append((tag, fields))

    handle_startendtag = handle_starttag

    def handle_endtag(self, tag):
        for i in range(len(self.stack) - 1, -1, -1):
            if self.stack[i][0] == tag:
                del self.stack[i:]
                break


@pytest.fixture(scope="module")
def report(bin_dir, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    done = subprocess.run([bin_dir / "narrow", "compare", EXAMPLES / "docs-llama-13m", *SCHEMES, "--tokens", EXAMPLES / "docs_tokens.safetensors", "--windows", "2",
                           "--report", path, "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


def open_in_browser(path, *options):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("chromium is not installed")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=4000", *options, "--dump-dom", path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("options", [["--window-size=1200,900"], ["--window-size=390,844", "--force-dark-mode"]], ids=["desk", "phone"])
def test_the_page_opens_and_shows_its_data(report, options):
    done = open_in_browser(report, *options)
    assert done.returncode == 0, done.stderr
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not console, console
    page = Page(done.stdout)
    count = lambda place, tag, kind=None: sum(t == tag and (kind is None or kind in (a.get("class") or "").split()) for t, a in page.inside[place])
    assert count("schemes", "tr") == 2 + len(SCHEMES)
    for plot in ("kl-plot", "perplexity-plot"):
        assert count(plot, "circle", "point") == len(SCHEMES) and count(plot, "path", "front") == 1
    assert count("layer-plot", "rect", "bar") == 42
    assert count("worst-table", "tr") == 11
    assert count("weight-plot", "rect", "bar") == count("input-plot", "rect", "bar") == 96
    assert count("weight-plot", "line", "code") > 100
    tips = [a["data-tip"] for _, a in page.elements if "data-tip" in a]
    assert len(tips) > 300 and not any("NaN" in tip or "undefined" in tip for tip in tips)
    for tag, fields in page.elements:
        for key in ("cx", "cy", "x", "y", "width", "height", "d"):
            assert not re.search("NaN|Infinity|undefined", fields.get(key) or ""), (tag, fields)


def test_links_lead_somewhere_and_nothing_is_loaded(report):
    text = report.read_text()
    page = Page(open_in_browser(report).stdout)
    names = {fields["id"] for _, fields in page.elements if "id" in fields}
    links = [fields["href"] for tag, fields in page.elements if tag == "a"]
    assert len(links) >= 15 and all(link.startswith("#") and link[1:] in names for link in links)
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text) and "@import" not in text and "url(" not in text
    assert '<meta name="viewport"' in text and "prefers-color-scheme: dark" in text
