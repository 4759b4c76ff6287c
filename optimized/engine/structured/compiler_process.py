"""The program of a compiler process: grammars in, compiled grammars out, one a line, until its input ends.

Knows xgrammar and the lines it speaks; knows nothing of this project, and is run by its path. A process can be ended
when it takes too long, and what it breaks is its own.

The first line that comes in holds a serialised TokenizerInfo for each kind, answered with {}. Each further line is
{"kind", "text"}, answered with {"grammar": serialised} or {"error": why}. A warning of the compiler is an error: it
says that a part of the grammar was ignored.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import tempfile
from typing import IO, Any

#: Bytes that compiling may take beyond what the process has when it is ready.
MEMORY_LIMIT = 4 << 30
#: Bytes of a serialised grammar; reading one back takes 0.02 s a megabyte.
ANSWER_LIMIT = 64 << 20

_STAMP = re.compile(r"\[[\d:]+\] \S+:\d+: ")


def main() -> None:
    """Serves the lines of standard input on standard output."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    warnings = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  (lives as long as fd 2)
    os.dup2(warnings.fileno(), 2)
    os.dup2(2, 1)
    import xgrammar

    infos = json.loads(sys.stdin.readline())
    compilers = {
        kind: xgrammar.GrammarCompiler(
            xgrammar.TokenizerInfo.deserialize_json(info), max_threads=1, cache_enabled=False
        )
        for kind, info in infos.items()
    }
    _limit_memory()
    _answer(answers, {})
    for line in sys.stdin:
        job = json.loads(line)
        _answer(answers, _compiled(xgrammar, compilers[job["kind"]], job, warnings))


def _answer(stream: IO[str], answer: dict[str, str]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


def _limit_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as stream:
        size = int(stream.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_LIMIT, size + MEMORY_LIMIT))


def _compiled(xgrammar: Any, compiler: Any, job: dict[str, str], warnings: IO[str]) -> dict[str, str]:
    before = os.fstat(warnings.fileno()).st_size
    try:
        if job["kind"] == "json":
            grammar = compiler.compile_json_schema(job["text"], any_whitespace=False, strict_mode=True)
        elif job["kind"] == "regex":
            grammar = compiler.compile_regex(job["text"])
        else:
            grammar = compiler.compile_grammar(job["text"])
    except (RuntimeError, MemoryError) as error:
        return {"error": _STAMP.sub("", str(error)).strip() or type(error).__name__}
    warnings.seek(before)
    warned = [_STAMP.sub("", line).strip() for line in warnings.read().splitlines() if "Warning: " in line]
    if warned:
        return {"error": "; ".join(warned).replace("Warning: ", "")}
    mask = xgrammar.allocate_token_bitmask(1, grammar.tokenizer_info.vocab_size)
    xgrammar.GrammarMatcher(grammar).fill_next_token_bitmask(mask)
    if not mask.any():
        return {"error": "no token begins a text of this language"}
    serialized = grammar.serialize_json()
    if len(serialized) > ANSWER_LIMIT:
        return {"error": f"the compiled grammar has {len(serialized)} bytes; accepted: at most {ANSWER_LIMIT}"}
    return {"grammar": serialized}


if __name__ == "__main__":
    main()
