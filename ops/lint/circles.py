#!/usr/bin/env python3
"""Fails if files of a crate need each other: if file A uses a name defined in file B, and B uses,
directly or through other files, a name defined in A. A name that a module only passes on, with
`pub use`, does not count as used. Comments, strings and tests are not read. Calls of methods are
not seen, because a call does not name the method's type.

  ops/lint/circles.py              check this repository
  ops/lint/circles.py --self-test  show that the check can fail
"""

import re
import sys
import tempfile
from pathlib import Path

CRATES = ["proto/src", "scheduler/src", "agent/src", "tests/src"]
USE = re.compile(r"(?:^|(?<=[;{}\s]))(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
DEFINITION = re.compile(r"\b(?:struct|enum|trait|type|const|static|fn|union|macro_rules!)\s+(\w+)")
# Line comments, raw strings, strings and characters. They are found together, because each may
# contain the beginning of another, such as the `//` of a URL.
NO_CODE = re.compile(
    r"""//[^\n]*|\bb?r(\#*)".*?"\1|\bb?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*"|b?'(?:\\[^']+|\\'|[^\\'\n])'""",
    re.DOTALL,
)
MODULE = re.compile(r"\bmod\s+\w+;")
WORD = re.compile(r"\w+")
PATH = re.compile(r"\b(?:\w+::)+\w+")


def without_tests(text):
    """The code of a file, without comments, strings and items under `#[cfg(test)]`."""
    text = NO_CODE.sub(" ", text)
    kept, start = "", 0
    for attribute in re.finditer(r"#\[cfg\(test\)\]", text):
        if attribute.start() < start:
            continue
        kept += text[start : attribute.start()]
        start, depth = attribute.end(), 0
        for start in range(attribute.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[start], 0)
            if depth == 0 and text[start] in ";}":
                break
        start += 1
    return kept + text[start:]


def imported(tree):
    """The paths of a `use` tree, each with the name it gets here."""
    opening = tree.find("{")
    if opening == -1:
        path, _, alias = tree.strip().partition(" as ")
        segments = [segment.strip() for segment in path.split("::") if segment.strip()]
        if segments and segments[-1] == "self":
            segments.pop()
        return [(alias.strip() or segments[-1], segments)] if segments else []
    branches, depth, branch = [], 0, ""
    for character in tree[opening + 1 : tree.rfind("}")]:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            branches.append(branch)
            branch = ""
        else:
            branch += character
    branches.append(branch)
    return [found for each in branches if each.strip() for found in imported(tree[:opening] + each)]


class Crate:
    def __init__(self, root):
        self.files = {}
        for path in sorted(root.rglob("*.rs")):
            module = path.relative_to(root).with_suffix("").parts
            if module != ("main",):
                self.files[() if module == ("lib",) else module] = path
        code = {module: without_tests(path.read_text()) for module, path in self.files.items()}
        self.defined = {module: set(DEFINITION.findall(text)) for module, text in code.items()}
        self.names, imports = {}, {}
        for module, text in code.items():
            self.names[module], imports[module] = {}, []
            body = set(WORD.findall(MODULE.sub("", USE.sub("", text))))
            for passed_on, tree in USE.findall(text):
                for name, segments in imported(re.sub(r"\s+", " ", tree)):
                    self.names[module][name] = segments
                    if not passed_on or name in body:
                        imports[module].append(segments)
        self.uses = {}
        for module, text in code.items():
            paths = imports[module] + [path.split("::") for path in PATH.findall(USE.sub("", text))]
            found = {self.definer(module, path) for path in paths}
            self.uses[module] = found - {None, module}

    def definer(self, module, path, depth=0):
        """The module that defines the name at `path`, as seen from `module`."""
        if depth > 8 or not path:
            return None
        start, rest = path[0], list(path[1:])
        if start == "crate":
            at = ()
        elif start == "self":
            at = module
        elif start == "super":
            at = module[:-1]
            while rest and rest[0] == "super":
                at, rest = at[:-1], rest[1:]
        elif module + (start,) in self.files:
            at, rest = module, list(path)
        elif start in self.names[module] and self.names[module][start] != path:
            return self.definer(module, self.names[module][start] + rest, depth + 1)
        else:
            return None
        while rest and at + (rest[0],) in self.files:
            at, rest = at + (rest[0],), rest[1:]
        if not rest:
            return None
        if rest[0] not in self.defined[at] and rest[0] in self.names[at]:
            return self.definer(at, self.names[at][rest[0]] + rest[1:], depth + 1)
        return at

    def circles(self):
        """Sets of files that need each other."""
        reached = {}
        for module in self.files:
            seen, open_modules = set(), [module]
            while open_modules:
                for used in self.uses.get(open_modules.pop(), ()):
                    if used not in seen:
                        seen.add(used)
                        open_modules.append(used)
            reached[module] = seen
        circles = {
            tuple(sorted(other for other in reached[module] if module in reached[other]))
            for module in self.files
            if module in reached[module]
        }
        return sorted(circles)


def check(root):
    """Prints every circle, and whether there is any."""
    found = False
    for folder in CRATES:
        crate = Crate(root / folder)
        for circle in crate.circles():
            found = True
            print(f"{folder}: these files need each other:")
            for module in circle:
                for used in sorted(crate.uses[module] & set(circle)):
                    print(f"  {'::'.join(module)} uses {'::'.join(used)}")
    return found


def self_test():
    """Every way to need a file is found, and what is no need is not."""
    needs = {
        "an import": ("use super::b::B;\npub struct A(B);\n", "pub struct B(crate::a::A);\n"),
        "a path": ("pub struct A(crate::b::B);\n", "pub struct B(crate::a::A);\n"),
        "a name used and passed on": ("pub use super::b::B;\npub struct A(B);\n", "use crate::a::A;\npub struct B(A);\n"),
        "a path after a URL": (
            'const U: &str = "http://x";\nconst Q: char = \'"\';\npub struct A(crate::b::B);\n',
            'const R: &str = r"\\";\npub struct B(crate::a::A);\nconst S: &str = "";\n',
        ),
        "a name from another file": ("use crate::B;\npub struct A(B);\n", "use crate::a::A;\npub struct B(A);\n"),
    }
    none = {
        "a name passed on": ("pub use super::b::B;\npub struct A;\n", "pub struct B(crate::a::A);\n"),
        "a comment, a string and a test": (
            "use super::b::B;\npub struct A(B);\n",
            'pub struct B;\n// crate::a::A\npub const C: &str = "crate::a::A";\n'
            "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
        ),
    }
    for expected, cases in ((True, needs), (False, none)):
        for name, (a, b) in cases.items():
            with tempfile.TemporaryDirectory() as folder:
                root = Path(folder)
                (root / "lib.rs").write_text("mod a;\nmod b;\npub use b::B;\n")
                (root / "a.rs").write_text(a)
                (root / "b.rs").write_text(b)
                if bool(Crate(root).circles()) != expected:
                    sys.exit(f"lint-circles: self-test: {name}: a circle was {'not found' if expected else 'reported'}")
    print(f"lint-circles: self-test passed: {len(needs)} circles are found")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    elif sys.argv[1:]:
        print(f"lint-circles: unknown argument '{sys.argv[1]}': only --self-test is known", file=sys.stderr)
        sys.exit(2)
    elif check(Path(__file__).resolve().parent.parent.parent):
        print("lint-circles: move what these files share into a file of its own", file=sys.stderr)
        sys.exit(1)
    else:
        print("lint-circles: no two files need each other")


main()
