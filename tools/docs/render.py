"""Markdown to HTML: tables, highlighted code, equations as MathML, anchors for headings."""

import functools
import html
import re

import latex2mathml.converter
import markdown_it
import mdit_py_plugins.dollarmath
import pygments
import pygments.formatters
import pygments.lexers
import pygments.util

FORMATTER = pygments.formatters.HtmlFormatter(nowrap=True)


def slug(text):
    return re.sub(r"[^\w]+", "-", re.sub(r"<[^>]+>|`", "", text).lower()).strip("-")


@functools.cache
def highlighted(code, language):
    try:
        return pygments.highlight(code, pygments.lexers.get_lexer_by_name(language), FORMATTER)
    except pygments.util.ClassNotFound:
        return html.escape(code)


def with_powers(text):
    """2^-14 as people write it; None where there is none."""
    changed, count = re.subn(r"\b(\d+)\^(-?\d+|[A-Za-z]\b)", r"\1<sup>\2</sup>", html.escape(text, quote=False))
    return changed if count else None


def equation(text, options):
    display = options.get("display_mode", False)
    return latex2mathml.converter.convert(text, display="block" if display else "inline")


def make_parser():
    parser = markdown_it.MarkdownIt("commonmark", {"html": True, "typographer": False}).enable("table").enable("strikethrough")
    parser.use(mdit_py_plugins.dollarmath.dollarmath_plugin, renderer=equation, allow_space=True, double_inline=True)
    return parser


PARSER = make_parser()


class Page:
    """One page: its title, body, headings [(level, anchor, text)] and links."""

    def __init__(self, markdown):
        tokens = PARSER.parse(markdown)
        self.headings, self.links, used = [], [], {}
        for i, token in enumerate(tokens):
            if token.type == "heading_open":
                text = tokens[i + 1].content
                anchor = slug(text) or "section"
                used[anchor] = used.get(anchor, 0) + 1
                if used[anchor] > 1:
                    anchor = f"{anchor}-{used[anchor]}"
                token.attrs["id"] = anchor
                self.headings.append((int(token.tag[1]), anchor, re.sub(r"[`*]", "", text)))
            for child in token.children or []:
                for name in ("href", "src"):
                    if name in child.attrs:
                        self.links.append(child)
                if child.type == "text" and (powers := with_powers(child.content)):
                    child.type, child.content = "html_inline", powers
            if token.type == "fence":
                language = token.info.split()[0] if token.info else "text"
                token.type, token.tag = "html_block", ""
                token.content = f'<pre class="code {language}"><code>{highlighted(token.content.rstrip(), language)}</code></pre>\n'
        self.tokens = tokens
        self.title = self.headings[0][2] if self.headings else "narrow"

    def rewrite(self, change):
        for link in self.links:
            for name in ("href", "src"):
                if name in link.attrs:
                    link.attrs[name] = change(link.attrs[name])

    def html(self):
        text = PARSER.renderer.render(self.tokens, PARSER.options, {})
        return re.sub(r"<table>(.*?)</table>", r'<div class="scroll"><table>\1</table></div>', text, flags=re.S)

    def text(self):
        return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", self.html()))).strip()
