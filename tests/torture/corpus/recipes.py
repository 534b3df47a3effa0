"""Recipes in YAML."""
from .kit import Case, directory, disguises, fifo, link, sparse


def recipe_cases():
    command = ["plan", "{seeds}/model", "--recipe", "{in}/recipe.yaml"]
    texts = dict(disguises())
    texts.update({"list": b"- int8:row\n", "text": b"int8:row\n", "number": b"7\n", "null": b"null\n", "no_scheme": b"ignore: [lm_head]\n",
                  "scheme_twice": b"scheme: int8:row\nscheme: int4:row\n",
                  "policy_unknown": b"scheme: int8:row\non_nonfinite: ignore\n", "policy_list": b"scheme: int8:row\non_nonfinite: [keep]\n",
                  "unknown_key": b"scheme: int8:row\nmagic: 1\n", "scheme_list": b"scheme: [int8:row]\n", "scheme_map": b"scheme: {a: b}\n",
                  "scheme_null": b"scheme:\n", "scheme_unknown": b"scheme: int77:row\n",
                  "scheme_long": b"scheme: " + b"x" * 500_000 + b"\n", "scheme_block_0": b"scheme: int4:block0\n",
                  "scheme_block_huge": b"scheme: int4:block99999999999999999999\n", "scheme_negative": b"scheme: int4:block-32\n",
                  "targets_map": b"scheme: int8:row\ntargets: {a: b}\n", "targets_nested": b"scheme: int8:row\ntargets: [[a]]\n",
                  "rules_text": b"scheme: int8:row\nrules: x\n", "rule_no_scheme": b"scheme: int8:row\nrules: [{match: a}]\n",
                  "rule_three": b"scheme: int8:row\nrules: [{match: a, scheme: int4:row, x: y}]\n",
                  "rule_text": b"scheme: int8:row\nrules: [abc]\n", "rule_bad_scheme": b"scheme: int8:row\nrules: ['a=int99']\n",
                  "rule_number": b"scheme: int8:row\nrules: [[1]]\n", "regex_open": b"scheme: int8:row\nignore: ['re:(']\n",
                  "regex_star": b"scheme: int8:row\nignore: ['re:*']\n",
                  "regex_backreference": b"scheme: int8:row\nignore: ['re:(a)\\1']\n",
                  "regex_counts": b"scheme: int8:row\nignore: ['re:((a{999}){999}){999}']\n",
                  "regex_many_states": b"scheme: int8:row\nignore: ['re:(?:a?){10000}']\n",
                  "regex_long": b"scheme: int8:row\nignore: ['re:" + b"a?" * 300 + b"']\n",
                  "regex_groups": b"scheme: int8:row\nignore: ['re:" + b"(" * 250 + b")" * 249 + b"']\n",
                  "pattern_empty": b"scheme: int8:row\nignore: ['']\n", "tab": b"scheme: int8:row\n\tignore: x\n",
                  "open_quote": b"scheme: 'int8:row\n",
                  "open_list": b"scheme: int8:row\nignore: [a\n", "unknown_alias": b"scheme: *x\n",
                  "unknown_tag": b"scheme: !!python/object:os.system {a: b}\n",
                  "deep_lists": b"scheme: int8:row\nignore: " + b"[" * 100_000,
                  "deep_maps": b"scheme: int8:row\nignore: " + b"{a: " * 50_000, "deep_lines": b"- " * 100_000 + b"\n",
                  "billion_laughs": b"scheme: int8:row\na: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nignore: *c\n",
                  "self_alias": b"scheme: int8:row\nignore: &x [*x]\n", "two_documents": b"---\nignore: [a]\n---\nscheme: int8:row\n",
                  "bad_utf8": b"scheme: int8:row\n\xff\xfe: 1\n", "nul": b"scheme: int8:row\0\n",
                  "complex_key": b"? [a, b]\n: c\nscheme: int8:row\n", "merge_key": b"scheme: int8:row\n<<: 3\n",
                  "directive": b"%YAML 9.9\n---\nscheme: int8:row\nx: 1\n", "colon_only": b":\n", "wide_scheme": b"scheme: fp32\n"})
    for name, text in texts.items():
        yield Case("recipe", name, "", {"recipe.yaml": text}, command)
        yield Case("recipe", name + "/quantize", "", {"recipe.yaml": text}, ["quantize", "{seeds}/model", "{out}", "--recipe",
                   "{in}/recipe.yaml"])
    for name, make in {"fifo": fifo, "directory": directory, "missing": link("nowhere"), "too_large": sparse(2**20 + 1),
                       "device": link("/dev/zero")}.items():
        yield Case("recipe", "file_" + name, "", {"recipe.yaml": make}, command)
