"""The reference of the C and C++ interfaces, read from the public headers: each declaration with the comment above it.

A comment stands for the declarations that follow it without a blank line. `undocumented(path)` lists those that none stands for.
"""

import dataclasses
import pathlib
import re

NAME = re.compile(
    r"""
    (?:\b(?:struct|class|enum\s+class|enum)\s+(?P<type>\w+)) |
    (?:\busing\s+(?P<alias>\w+)\s*=) |
    (?:\#\s*define\s+(?P<macro>\w+)) |
    (?:typedef\b[^;]*\(\*(?P<pointer>\w+)\)) |
    (?:typedef\s+(?:struct|enum)\s+\w+\s+(?P<opaque>\w+)\s*;) |
    (?:(?P<function>operator\s*[^\s(]+|~?\w+)\s*\() |
    (?:\b(?P<constant>k[A-Z]\w*|NARROW_\w+|[a-z]\w*)\s*(?:=|\{|;|\[))
""",
    re.X,
)
SKIPPED = re.compile(
    r"^\s*(#\s*(pragma|include|if|ifdef|ifndef|else|elif|endif|undef)\b|namespace\b|extern \"C\"|template\s*<[^>]*>\s*$"
    r"|public:|private:|protected:|friend\b|static_assert)"
)


@dataclasses.dataclass
class Declaration:
    names: list
    comment: str
    code: str
    line: int


def without_literals(line):
    return re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])\'', '""', re.sub(r"//.*|/\*.*?\*/", "", line))


def comment_text(line):
    """The text of a line that is a comment alone, or None."""
    text = line.strip()
    for begin in ("///", "//", "/*", "*/", "*"):
        if text.startswith(begin) and not text.startswith("///<"):
            return re.sub(r"\s*\*/$", "", text[len(begin) :]).removeprefix(" ") if begin != "*/" else ""
    return None


def join_statements(lines):
    """(first line's number, statement) for everything at namespace level, a class with its body being one."""
    collected, depth, start = [], 0, None
    for number, line in lines:
        plain = without_literals(line)
        if not collected and (not plain.strip() or SKIPPED.match(line) or re.fullmatch(r"\s*}.*", plain)):
            continue
        if not collected:
            start = number
        collected.append(line)
        depth += plain.count("{") + plain.count("(") - plain.count("}") - plain.count(")")
        if depth <= 0 and (plain.rstrip().endswith((";", "}")) or line.lstrip().startswith("#")):
            yield start, collected
            collected, depth = [], 0


def name_of(statement):
    head = " ".join(without_literals(line).strip() for line in statement)
    head = re.sub(r"^template\s*<.*?>\s*", "", head)
    head = re.sub(r"\b(NARROW_HOST_DEVICE|NARROW_API|constexpr|inline|static|extern|explicit|\[\[\w+\]\])\s+", "", head)
    head = re.sub(r"^operator", "x operator", head)
    if re.match(r"[^({=]*\b\w+::~?\w+\(", head):  # a definition of what a class declares
        return None
    found = NAME.search(head)
    return next((text for text in found.groupdict().values() if text), None) if found else None


def declarations(path):
    """Everything that a header declares at namespace level, in order; the header's own comment first, without names."""
    lines = pathlib.Path(path).read_text().split("\n")
    result, comment, pending, in_block, head = [], [], [], False, True

    def flush():
        nonlocal pending, comment
        for index, (number, statement) in enumerate(join_statements(pending)):
            name = name_of(statement)
            if name is None:
                continue
            code = "\n".join(statement)
            if index and result and result[-1].comment == "\n".join(comment) and result[-1].line >= pending[0][0]:
                result[-1].names.append(name)
                result[-1].code += "\n" + code
            else:
                result.append(Declaration([name], "\n".join(comment), code, number))
        pending = []

    depth = 0
    for number, line in enumerate(lines, 1):
        text = comment_text(line) if depth == 0 or in_block else None
        if depth == 0 and line.strip().startswith("/*") and "*/" not in line:
            in_block = True
        if text is not None and depth == 0:
            if pending:
                flush()
                comment = []
            comment.append(text)
            if "*/" in line:
                in_block = False
            continue
        if not line.strip() and depth == 0:
            if head and comment:
                result.append(Declaration([], "\n".join(comment), "", number))
                head = False
            flush()
            comment = []
            continue
        plain = without_literals(line)
        if not pending and (SKIPPED.match(line) or re.fullmatch(r"\s*}.*", plain)) and not line.lstrip().startswith("#define"):
            continue
        pending.append((number, line))
        depth += plain.count("{") + plain.count("(") - plain.count("}") - plain.count(")")
    flush()
    return result


def member_problems(declaration):
    """Functions of a class that no comment stands for, in the class, above them or beside them."""
    commented = False
    for line in declaration.code.split("\n")[1:]:
        if not line.strip() or re.match(r"\s*(public|private|protected):", line):
            if "private:" in line:
                return
            commented = False
            continue
        if comment_text(line) is not None or "///" in line:
            commented = True
            continue
        member = re.match(r"  (?:[\w:<>,&*\[\] ]+?[ &*])?(\w+)\([^;]*", line)
        special = re.search(r"= (default|delete);|operator|^\s*explicit|^\s*~|^\s*\[\[|^\s*friend|\breturn\b|^\s{3,}", line)
        if member and not special and member.group(1) not in declaration.names and not commented:
            yield member.group(1)


def undocumented(path):
    """Names that no comment stands for: (line, name)."""
    problems = []
    for declaration in declarations(path):
        beside = "///" in declaration.code or re.search(r"//|/\*", declaration.code.split("\n")[0])
        if declaration.names and not declaration.comment and not beside:
            problems += [(declaration.line, name) for name in declaration.names]
        if re.match(r"\s*(struct|class)\b", declaration.code) and "{" in declaration.code and not declaration.comment:
            problems += [(declaration.line, f"{declaration.names[0]}::{name}") for name in member_problems(declaration)]
    return problems


def reference(paths, title, introduction):
    """One page of Markdown for several headers."""
    text = [f"# {title}", "", introduction, ""]
    for path in paths:
        path = pathlib.Path(path)
        text += [f"## {path.parent.name}/{path.name}", ""]
        for declaration in declarations(path):
            prose = declaration.comment.replace("<", "&lt;").replace("_", r"\_").replace("*", r"\*").replace("[", r"\[")
            if not declaration.names:
                text += [prose, ""]
                continue
            text += [f"### {', '.join(f'`{name}`' for name in declaration.names)}", ""]
            text += [prose, ""] if prose else []
            text += ["```cpp show", declaration.code.rstrip(), "```", ""]
    return "\n".join(text)
