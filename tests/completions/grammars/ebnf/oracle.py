"""Our translation against XGrammar's own matcher, over many grammars and strings.

XGrammar is no requirement of Quire. Run it by hand where both are installed:

    pip install xgrammar
    python -m tests.completions.grammars.ebnf.oracle --strings 10000 --seed 1

With `--checkout FOLDER`, a checkout of XGrammar, the grammars are those that its tests spell out
and that it compiles; how many of them we take is printed too, and why not the others.

Ends with status 1 when the two disagree on a string.
"""

import argparse
import ast
import itertools
import random
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from llguidance import LLMatcher
from tokenizers import Tokenizer

from completions.contract.llguidance_limits import VALIDATION_LIMITS
from completions.contract.token_bytes import TokenBytes, count_ids
from completions.grammars import TokenSource, ebnf
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import GrammarError
from tests.completions.grammars.byte_matcher import BYTES, accepts
from tests.completions.grammars.ebnf.random_grammars import random_grammar, random_text

try:
    import xgrammar
    from xgrammar.testing import _is_grammar_accept_string
except ImportError:
    sys.exit("XGrammar is not installed: pip install xgrammar, in an environment of its own")

SAMPLES = tomllib.loads(Path(__file__).with_name("samples.toml").read_text())
RANDOM_GRAMMARS = 100
MOST_BYTES = 60
TOKENIZER = Path("var/models/smollm2-135m-instruct/tokenizer.json")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strings", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkout", type=Path)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)  # noqa: S311 - nothing secret
    if arguments.checkout is None:
        grammars = list(_grammars(rng))
    else:
        grammars = [(text, []) for text in _taken(arguments.checkout) if _both_take(text)]
    each = -(-arguments.strings // len(grammars))
    compared = accepted = disagreements = 0
    for text, known in grammars:
        lark = ebnf.translate(text)
        theirs = xgrammar.Grammar.from_ebnf(text)
        for string in _strings(rng, lark, known, each):
            ours = accepts(lark, string)
            compared += 1
            accepted += ours
            if ours != _is_grammar_accept_string(theirs, string):
                disagreements += 1
                print(f"{string!r} is {'accepted' if ours else 'refused'} by Quire only:\n{text}\n")
    print(
        f"{len(grammars)} grammars, {compared} strings, {accepted} of them accepted: "
        f"{disagreements} disagreements"
    )
    return 1 if disagreements else 0


def _grammars(rng: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Grammars that both take, and strings worth trying."""
    for name, sample in SAMPLES.items():
        if _both_take(sample["grammar"]):
            yield sample["grammar"], sample["good"] + sample["bad"]
        else:
            print(f"XGrammar refuses {name}")
    texts = filter(_both_take, iter(lambda: random_grammar(rng), ""))
    for text in itertools.islice(texts, RANDOM_GRAMMARS):
        yield text, []


def _taken(checkout: Path) -> list[str]:
    """The grammars of XGrammar's tests that it compiles and that we take."""
    read = TokenBytes(Tokenizer.from_file(str(TOKENIZER)))
    tokens = read.make_table(count_ids(read.tokenizer))
    last = len(tokens) - 1  # a token that no grammar names
    compiler = Compiler(TokenSource(str(TOKENIZER), len(tokens), (last,)))
    theirs = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(tokens, stop_token_ids=[last]))
    taken: list[str] = []
    compiled = 0
    for text in _spelt_out(checkout):
        try:
            theirs.compile_grammar(text)
        except RuntimeError:
            continue
        compiled += 1
        try:
            ebnf.translate(text, compiler)
            taken.append(text)
        except GrammarError as error:
            print(f"refused: {error.message}:\n{text}\n")
    print(f"{len(taken)} of {compiled} grammars that XGrammar compiles are taken")
    return taken


def _spelt_out(checkout: Path) -> list[str]:
    """The strings in the tests that hold rules."""
    nodes = itertools.chain.from_iterable(
        ast.walk(ast.parse(path.read_text())) for path in sorted(checkout.glob("tests/**/*.py"))
    )
    values = (node.value for node in nodes if isinstance(node, ast.Constant))
    return list(dict.fromkeys(x for x in values if isinstance(x, str) and "::=" in x))


def _both_take(text: str) -> bool:
    try:
        ebnf.translate(text)
        # Patterns are read only when a text is tried.
        _is_grammar_accept_string(xgrammar.Grammar.from_ebnf(text), "")
    except (GrammarError, RuntimeError):
        return False
    return True


def _strings(rng: random.Random, lark: str, known: list[str], count: int) -> Iterator[str]:
    """Known strings, then ones that the grammar generated, as they are and with a mistake."""
    yield from known[:count]
    for index in range(count - len(known)):
        string = _generated(rng, lark) if index % 4 else random_text(rng)
        yield _mutated(rng, string) if index % 2 else string


def _generated(rng: random.Random, lark: str) -> str:
    """A random walk along what our matcher allows; it may end before the grammar does."""
    matcher = LLMatcher(BYTES, lark, log_level=0, limits=VALIDATION_LIMITS)
    written = bytearray()
    while len(written) < MOST_BYTES and not matcher.is_stopped():
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [byte for byte in range(256) if mask >> byte & 1]
        if not allowed or (matcher.is_accepting() and rng.random() < 0.2):
            break
        # Mostly letters and signs: most of what a class allows is no fun.
        printable = [byte for byte in allowed if 32 <= byte < 127]
        byte = rng.choice(printable if printable and rng.random() < 0.8 else allowed)
        matcher.consume_token(byte)
        written.append(byte)
    return written.decode(errors="ignore")


def _mutated(rng: random.Random, string: str) -> str:
    place = rng.randint(0, len(string))
    kind = rng.random()
    if kind < 0.4:
        return string[:place] + string[place + 1 :]
    inserted = rng.choice(string) if string and kind < 0.8 else random_text(rng, 1)
    return string[:place] + inserted + string[place:]


if __name__ == "__main__":
    sys.exit(main())
