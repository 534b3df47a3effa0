"""The reference of the Python package, read from its sources without importing them: what `__all__` names, with signature and docstring."""

import ast
import pathlib
import re

BINDINGS = pathlib.Path(__file__).resolve().parents[2] / "python/src"
BOUND = re.compile(r'nb::class_<[^;]*?>\(module, "(\w+)",\s*"([^"]+)"\)(.*?);\n(?=  nb::class_|  module\.|}|\n)', re.S)
MEMBER = re.compile(r'\.def(?:_static|_prop_ro|_prop_rw|_ro|_rw)?\(\s*"([a-z]\w*)"')


def parse(path):
    return ast.parse(pathlib.Path(path).read_text())


def public_names(tree):
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
            return [element.value for element in node.value.elts]
    return [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")]


def module_file(folder, dotted):
    """The file of a relative module name."""
    base = folder.joinpath(*dotted.split(".")) if dotted else folder
    return base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"


def definitions(path, depth=0):
    """Every function, class and alias that a module defines or takes from its siblings: {name: (node, file)}."""
    path = pathlib.Path(path)
    found = {}
    if not path.exists() or depth > 3:
        return found
    for node in parse(path).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = (node, path)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in found:  # another name of it
            found.update({target.id: found[node.value.id] for target in node.targets if isinstance(target, ast.Name)})
        elif isinstance(node, ast.ImportFrom) and node.level:
            folder = path.parent if node.level == 1 else path.parents[node.level - 1]
            inner = definitions(module_file(folder, node.module or ""), depth + 1)
            for alias in node.names:
                found[alias.asname or alias.name] = inner.get(alias.name, (None, path))
    return found


def signature(node):
    if isinstance(node, ast.ClassDef):
        init = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
        fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
        if init is None and fields:
            inside = ", ".join(ast.unparse(field).replace(" = field(", " = (") for field in fields)
            return f"class {node.name}({inside})"
        if init is None:
            return f"class {node.name}"
        arguments = ast.unparse(init.args).removeprefix("self").removeprefix(", ")
        return f"class {node.name}({arguments})"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(node.args)}){returns}"


def methods(node):
    return (
        [item for item in node.body if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")]
        if isinstance(node, ast.ClassDef)
        else []
    )


def bound_classes():
    """Classes of the extension, from their bindings: {name: (docstring, public members)}."""
    found = {}
    for path in sorted(BINDINGS.glob("*.cc")):
        for name, text, body in BOUND.findall(path.read_text()):
            found[name] = (text, sorted(set(MEMBER.findall(body))))
    return found


def undocumented(path):
    """Public names without a docstring, in Python or where they are bound."""
    found, bound = definitions(path), bound_classes()
    problems = []
    for name in public_names(parse(path)):
        node, _ = found.get(name, (None, None))
        documented = ast.get_docstring(node) if node is not None else bound.get(name)
        if not documented and not name.startswith("__"):
            problems.append(name)
    return problems


def reference(modules, title, introduction):
    """modules: {dotted name: file}."""
    text, bound = [f"# {title}", "", introduction, ""], bound_classes()
    for module, path in modules.items():
        text += [f"## {module}", "", (ast.get_docstring(parse(path)) or "").split("\n\n")[0], ""]
        found = definitions(path)
        for name in public_names(parse(path)):
            node, _ = found.get(name, (None, None))
            if node is None and name in bound:
                text += [
                    f"### `{module}.{name}`",
                    "",
                    bound[name][0],
                    "",
                    "Members: " + ", ".join(f"`{member}`" for member in bound[name][1]) + ".",
                    "",
                ]
            if node is None:
                continue
            text += [f"### `{module}.{name}`", "", "```python show", signature(node), "```", "", ast.get_docstring(node) or "", ""]
            for method in methods(node):
                documented = ast.get_docstring(method)
                text += [f"- `{signature(method)}`" + (": " + documented.split("\n\n")[0].replace("\n", " ") if documented else "")]
            text += [""]
    return "\n".join(text)
