"""MaskBench's schemas and instances: `python -m tests.conformance.maskbench DATA`.

DATA is the folder maskbench/data of guidance-ai/jsonschemabench. Its files are halved by the
SHA-256 of their names: the even half is for development, the odd one for final figures. Each
instance is held against the compiled grammar; an instance whose properties stand in another order
than the schema's may be written in that order. What is judged otherwise than the file says is
printed. With `--model`, the masks along each schema's first instance are timed too.
"""

import argparse
import hashlib
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from completions.contract.llguidance_limits import ENGINE_LIMITS
from completions.grammars import Constraint, TokenSource, translate
from completions.grammars import tokens as model_tokens
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import GrammarError
from completions.grammars.validation.cost import check_cost

BYTES = LLTokenizer("byte")
MAX_TRIES = 20_000
"""Orders of properties that are tried for one instance."""
MAX_MASKS = 400
"""Tokens of an instance whose masks are timed."""
MAX_INSTANCE = 40_000
"""Bytes of an instance that is tried in several orders."""


@dataclass(slots=True)
class Tally:
    """What became of some files."""

    files: int = 0
    accepted: int = 0
    instances: int = 0
    out_of_order: int = 0
    wrong: list[str] = field(default_factory=list)
    compile_seconds: list[float] = field(default_factory=list)
    mask_seconds: list[float] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)


class Orders:
    """Tries to write a value as a grammar demands, with its properties in some order."""

    def __init__(self, grammar: str, schema: Any) -> None:
        self._declared = [list(names) for names in _declarations(schema)]
        self._matcher = LLMatcher(BYTES, grammar, log_level=0, limits=ENGINE_LIMITS)
        self._tries = 0

    def accepts(self, value: Any) -> bool:
        return self._write([value])

    def _write(self, rest: Sequence[Any]) -> bool:
        """Write what is left: texts (as bytes) and values."""
        consumed = 0
        try:
            while rest:
                first, *others = rest
                if isinstance(first, _Members):
                    return self._write_members(first, others)
                if isinstance(first, dict) and first:
                    rest = [b"{", _Members(first, True), b"}", *others]
                    continue
                if isinstance(first, list) and first:
                    items = [each for item in first for each in (b",", item)][1:]
                    rest = [b"[", *items, b"]", *others]
                    continue
                spelt = [first] if isinstance(first, bytes) else list(_spellings(first))
                if len(spelt) > 1 and self._is_next(spelt[0]) is False:
                    spelt = spelt[1:]
                if not self._consume(spelt[0]):
                    return False
                consumed += len(spelt[0])
                rest = others
            return bool(self._matcher.is_accepting())
        finally:
            self._matcher.rollback(consumed)

    def _write_members(self, members: "_Members", others: list[Any]) -> bool:
        if not members.left:
            return self._write(others)
        for name in self._ordered(members.left):
            value = members.left[name]
            self._tries += 1
            if self._tries > MAX_TRIES:
                return False
            left = {key: each for key, each in members.left.items() if key != name}
            lead = b"" if members.first else b","
            head = lead + json.dumps(name, ensure_ascii=False).encode() + b":"
            if self._write([head, value, _Members(left, False), *others]):
                return True
        return False

    def _ordered(self, value: dict[str, Any]) -> list[str]:
        """The names in the order of the object of the schema that declares most of them."""
        order = max(self._declared, key=lambda names: len(value.keys() & set(names)), default=[])
        places = {name: place for place, name in enumerate(order)}
        return sorted(value, key=lambda name: places.get(name, len(order)))

    def _is_next(self, text: bytes) -> bool:
        return self._matcher.validate_tokens(list(text)) == len(text)

    def _consume(self, text: bytes) -> bool:
        return self._is_next(text) and self._matcher.consume_tokens(list(text))


def _declarations(value: Any) -> Iterator[dict[str, Any]]:
    """All that stands at `properties` in a schema."""
    if isinstance(value, list):
        for item in value:
            yield from _declarations(item)
    elif isinstance(value, dict):
        if isinstance(value.get("properties"), dict):
            yield value["properties"]
        for inner in value.values():
            yield from _declarations(inner)


@dataclass(slots=True)
class _Members:
    left: dict[str, Any]
    first: bool


def _spellings(value: Any) -> Iterator[bytes]:
    if isinstance(value, float):
        if value.is_integer():
            yield str(int(value)).encode()
        yield f"{Decimal(str(value)):f}".encode()
    yield json.dumps(value, ensure_ascii=False).encode()


def judge(document: dict[str, Any], name: str, compiler: Compiler, tally: Tally) -> None:
    tally.files += 1
    began = time.thread_time()
    try:
        grammar = translate(Constraint("json_schema", document["schema"]), compiler).grammar
        tally.compile_seconds.append(time.thread_time() - began)
        check_cost(grammar, compiler)
    except GrammarError as error:
        tally.refusals[error.message[:100]] += 1
        tally.refused.append(f"{name} {error.pointer}")
        return
    tally.accepted += 1
    for index, test in enumerate(document["tests"]):
        tally.instances += 1
        text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":")).encode()
        matcher = LLMatcher(BYTES, grammar, log_level=0, limits=ENGINE_LIMITS)
        taken = matcher.try_consume_tokens(list(text)) == len(text) and matcher.is_accepting()
        if taken is test["valid"]:
            continue
        if (
            not taken
            and len(text) < MAX_INSTANCE
            and Orders(grammar, document["schema"]).accepts(test["data"])
        ):
            tally.out_of_order += 1
            continue
        verdict = "accepted" if taken else "rejected"
        tally.wrong.append(f"{name} test {index} is {verdict}: {text.decode()[:200]}")


def time_masks(
    document: dict[str, Any], compiler: Compiler, tokenizer: Tokenizer, tally: Tally
) -> None:
    """Processor seconds of the masks along the first instance that the grammar takes as it is."""
    try:
        grammar = translate(Constraint("json_schema", document["schema"]), compiler).grammar
    except GrammarError:
        return
    for test in document["tests"]:
        text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
        ids = tokenizer.encode(text, add_special_tokens=False).ids[:MAX_MASKS]
        tokens = model_tokens.load(compiler.tokens)
        matcher = LLMatcher(tokens, grammar, log_level=0, limits=ENGINE_LIMITS)
        if not test["valid"] or matcher.validate_tokens(ids) < len(ids):
            continue
        for token in ids:
            began = time.thread_time()
            matcher.compute_bitmask()
            tally.mask_seconds.append(time.thread_time() - began)
            matcher.consume_token(token)
        return


def is_held_out(path: Path) -> bool:
    """Whether a file belongs to the half for final figures."""
    return int(hashlib.sha256(path.name.encode()).hexdigest(), 16) % 2 == 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--half", choices=("even", "odd"), default="even")
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--offset", type=int, default=0, help="files to leave out before")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="compile for its tokens instead of bytes")
    parser.add_argument("--only", default="", help="a part of the names of files")
    parser.add_argument("--list", action="store_true", help="name the refused files")
    options = parser.parse_args()
    wanted = options.half == "odd"
    files = [
        path
        for path in sorted(options.data.glob("*.json"))
        if is_held_out(path) == wanted and options.only in path.name
    ]
    random.Random(options.seed).shuffle(files)  # noqa: S311 - a sample
    compiler = Compiler()
    if options.model:
        tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
        compiler = Compiler(TokenSource(str(options.model / "tokenizer.json"), 0, (2,)))
        compiler.find_error('{"grammars":[{"json_schema":{}}]}')
    tally = Tally()
    for path in files[options.offset : options.offset + options.sample]:
        document = json.loads(path.read_bytes())
        judge(document, path.name, compiler, tally)
        if options.model:
            time_masks(document, compiler, tokenizer, tally)
    print(*tally.wrong, sep="\n")
    if options.list:
        print(*tally.refused, sep="\n")
    for message, count in tally.refusals.most_common():
        print(f"{count:5} {message}")
    share, median = tally.accepted / tally.files, statistics.median(tally.compile_seconds)
    print(
        f"{tally.accepted} of {tally.files} schemas accepted ({share:.1%}); "
        f"{tally.instances} instances, {len(tally.wrong)} judged wrongly, "
        f"{tally.out_of_order} right in another order; median compile {median * 1000:.2f} ms"
    )
    if masks := sorted(tally.mask_seconds):
        median, high = (1e6 * masks[len(masks) * share // 100] for share in (50, 99))
        print(
            f"{len(masks)} masks: median {median:.1f} us, mean "
            f"{1e6 * statistics.fmean(masks):.1f}, 99 % below {high:.0f}"
        )
    return bool(tally.wrong)


if __name__ == "__main__":
    sys.exit(main())
