"""The reference of the Python package, read from its sources without importing them: what `__all__` names, with signature and docstring."""

import ast
import pathlib


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


def undocumented(path):
    """Public names without a docstring. What the extension module defines is documented where it is bound."""
    found = definitions(path)
    problems = []
    for name in public_names(parse(path)):
        node, _ = found.get(name, (None, None))
        if node is not None and not ast.get_docstring(node):
            problems.append(name)
    return problems


def reference(modules, title, introduction):
    """modules: {dotted name: file}."""
    text = [f"# {title}", "", introduction, ""]
    for module, path in modules.items():
        text += [f"## {module}", "", (ast.get_docstring(parse(path)) or "").split("\n\n")[0], ""]
        found = definitions(path)
        for name in public_names(parse(path)):
            node, _ = found.get(name, (None, None))
            if node is None:
                continue
            text += [f"### `{module}.{name}`", "", "```python show", signature(node), "```", "", ast.get_docstring(node) or "", ""]
            for method in methods(node):
                documented = ast.get_docstring(method)
                text += [f"- `{signature(method)}`" + (": " + documented.split("\n\n")[0].replace("\n", " ") if documented else "")]
            text += [""]
    return "\n".join(text)
