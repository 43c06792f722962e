"""Collects plain text for language modelling from permissively licensed Python packages installed here.

    python demo/scripts/gather_text.py OUT_FOLDER

Writes text.jsonl.xz (one JSON object a line: kind "prose" | "code", package, text), words.txt (common English words
of that prose, used by the grammars as unknown nouns) and sources.json (package, version, licence, files, characters).
Whole packages are held out for evaluation (HELD_OUT); nothing of them is trained on.
"""

import ast
import collections
import inspect
import json
import lzma
import pathlib
import re
import sys
import sysconfig
from importlib import metadata

PACKAGES = [
    "sympy",
    "networkx",
    "numpy",
    "torch",
    "transformers",
    "huggingface_hub",
    "pydantic",
    "requests",
    "pillow",
    "fsspec",
    "tokenizers",
    "pytest",
    "setuptools",
    "typer",
    "Pygments",
    "mpmath",
    "h11",
    "urllib3",
    "pip",
    "markdown-it-py",
    "packaging",
    "pluggy",
    "anyio",
    "idna",
    "MarkupSafe",
    "filelock",
    "safetensors",
]
HELD_OUT = ["click", "Jinja2", "rich"]
PERMISSIVE = ("MIT", "BSD", "APACHE", "PSF", "HPND", "ISC", "PYTHON SOFTWARE")
LIMIT = 2_500_000  # characters of one package, so that none dominates
SKIP = (
    "test",
    "_vendor",
    "vendored",
    "lib2to3",
    "idlelib",
    "turtledemo",
    "site-packages",
    "pygments/lexers",
    "/models/",
)


def licence_of(dist) -> str:
    """The licence a package states in its metadata ("" if none is permissive)."""
    info = dist.metadata
    texts = [
        info.get("License-Expression") or "",
        *(c for c in info.get_all("Classifier") or [] if c.startswith("License")),
        (info.get("License") or "")[:60],
    ]
    for text in texts:
        if any(word in text.upper() for word in PERMISSIVE):
            return text.split(" :: ")[-1].strip().splitlines()[0]
    return ""


def is_prose(text: str) -> bool:
    """True for mostly plain English words in ASCII."""
    if len(text) < 120 or not text.isascii() or ">>>" in text:
        return False
    letters = sum(c.isalpha() or c in " ,.'\n" for c in text)
    return letters / len(text) > 0.93 and text.count(" ") / len(text) > 0.11


def paragraphs(text: str) -> str:
    """The prose paragraphs of a docstring or README, joined lines, without tables and code."""
    parts = [re.sub(r"\s+", " ", p).strip() for p in re.split(r"\n\s*\n", text)]
    good = [
        re.sub(r"``?([^`]*)``?", r"\1", p)
        for p in parts
        if len(p) > 60 and p[0].isalpha() and p[-1] in ".:!?" and is_prose(p + " " * 0 if len(p) >= 120 else p * 2)
    ]
    return "\n\n".join(good)


def small_functions(source: str, node) -> str | None:
    """A short documented function's own source (4 to 14 lines), or None."""
    if not isinstance(node, ast.FunctionDef) or node.decorator_list or not ast.get_docstring(node):
        return None
    text = ast.get_source_segment(source, node, padded=True) or ""
    text = inspect.cleandoc("\n" + text)
    lines = text.splitlines()
    return (
        text
        if 4 <= len(lines) <= 14
        and text.isascii()
        and max(map(len, lines)) < 100
        and len(text) < 700
        and "self" not in text
        else None
    )


def read_file(path: pathlib.Path) -> tuple[list[str], list[str]]:
    """(prose texts, function texts) of one Python file."""
    try:
        source = path.read_text("utf-8")
        tree = ast.parse(source)
    except (UnicodeDecodeError, SyntaxError, ValueError):
        return [], []
    prose, code = [], []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = paragraphs(ast.get_docstring(node) or "")
            if len(text) > 120:
                prose.append(text)
            function = small_functions(source, node)
            if function:
                code.append(function)
    for block in re.findall(r"(?:^[ \t]*# .{20,}\n){3,}", source, re.M):
        text = re.sub(r"\s+", " ", re.sub(r"^[ \t]*# ", "", block, flags=re.M)).strip()
        if is_prose(text) and text[0].isupper() and text[-1] == ".":
            prose.append(text)
    return prose, code


def collect(files, name: str, seen: set) -> list[dict]:
    """Rows of one package up to LIMIT characters; `seen` drops repeats across packages."""
    rows, size = [], 0
    for path in sorted(files):
        if size > LIMIT:
            break
        prose, code = read_file(path)
        for kind, texts in (("prose", prose), ("code", code)):
            for text in texts:
                if text[:150] not in seen:
                    seen.add(text[:150])
                    rows.append({"kind": kind, "package": name, "text": text})
                    size += len(text)
    return rows


def package_files(dist) -> list[pathlib.Path]:
    return [
        pathlib.Path(str(f.locate()))
        for f in dist.files or []
        if f.suffix == ".py" and not any(s in str(f) for s in SKIP)
    ]


def standard_library(seen: set) -> list[dict]:
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    rows = collect(
        [p for p in root.rglob("*.py") if not any(s in str(p) for s in SKIP + ("pydoc_data",))], "python", seen
    )
    spec = {}
    exec((root / "pydoc_data" / "topics.py").read_text("utf-8"), spec)  # the language reference, as plain text
    return rows + [
        {"kind": "prose", "package": "python", "text": p}
        for p in map(paragraphs, spec["topics"].values())
        if len(p) > 120
    ]


def common_words(rows: list[dict]) -> list[str]:
    """Plain lower-case words of 4 to 10 letters that occur at least four times and look like nouns."""
    counts = collections.Counter(
        re.findall(
            r"(?<=(?: a|an|he|is|of) )[a-z]{4,10}(?=[ .,])", " ".join(r["text"] for r in rows if r["kind"] == "prose")
        )
    )
    bad = re.compile(r"(ly|ing|ed|ous|ble|ful|ive|ical|less|ary|ent|ant|est|s)$")
    stop = set(
        [
            "that",
            "this",
            "then",
            "they",
            "their",
            "there",
            "them",
            "when",
            "where",
            "which",
            "while",
            "what",
            "with",
            "will",
            "would",
            "from",
            "into",
            "only",
            "also",
            "each",
            "some",
            "such",
            "more",
            "most",
            "other",
            "same",
            "both",
            "very",
            "even",
            "just",
            "been",
            "have",
            "does",
            "many",
            "than",
            "used",
            "here",
            "case",
            "first",
            "second",
            "last",
            "next",
            "same",
            "done",
            "else",
            "once",
        ]
    )
    return [w for w, n in counts.most_common(4000) if n >= 4 and not bad.search(w) and w not in stop]


def main() -> None:
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    seen: set = set()
    rows = standard_library(seen)
    versions = {"python": (sys.version.split()[0], "PSF-2.0")}
    for name in PACKAGES + HELD_OUT:
        dist = metadata.distribution(name)
        licence = licence_of(dist)
        if not licence:
            print("skipped, no permissive licence stated:", name)
            continue
        got = collect(package_files(dist), name, seen)
        readme = paragraphs(dist.metadata.get_payload() if isinstance(dist.metadata.get_payload(), str) else "")
        rows += got + ([{"kind": "prose", "package": name, "text": readme}] if len(readme) > 120 else [])
        versions[name] = (dist.version, licence)
    sources = []
    for name, (version, licence) in versions.items():
        mine = [r for r in rows if r["package"] == name]
        sources.append(
            {
                "package": name,
                "version": version,
                "licence": licence,
                "texts": len(mine),
                "characters": sum(len(r["text"]) for r in mine),
                "held_out": name in HELD_OUT,
            }
        )
    with lzma.open(out / "text.jsonl.xz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(r) + "\n" for r in rows)
    (out / "words.txt").write_text("\n".join(common_words([r for r in rows if r["package"] not in HELD_OUT])), "utf-8")
    (out / "sources.json").write_text(json.dumps(sources, indent=1), "utf-8")
    for source in sources:
        print(source)


if __name__ == "__main__":
    main()
