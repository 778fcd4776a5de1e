"""The cost of tool calls in each format: of parsing a token, and of the grammar of 20 tools.

    python -m benchmarks.studies.tool_formats [--only hermes,pythonic]

Parses an answer of text, and one of calls with a long argument, token by token with the demo
model's tokens. A grammar is that of `tool_choice: "auto"`; its time includes the first mask. The
least of several passes counts, in processor time of one thread.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks import command_line
from benchmarks.engine.turns import DEMO_MODEL
from completions.chat.call_parser import CallParser
from completions.chat.grammar import ToolCalls, make_answer_constraint
from completions.chat.parser import OutputParser
from completions.chat.tool_format import ToolFormat
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool, ToolCall, ToolChoice
from completions.grammars import Constraint, TokenSource, translate
from completions.grammars.compiler import Compiler

_NUM_TOOLS = 20
_TEXT = "The sky is blue, and a < b holds; see [1] for {more} about `it`.\n" * 40


def make_tool(number: int) -> Tool:
    """Return a tool whose schema no other has."""
    parameters = {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 14 + number},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    return Tool(f"get_weather_{number}", "Tells it.", parameters)


_TOOLS = [make_tool(number) for number in range(_NUM_TOOLS)]


def measure(run: Callable[[], object], passes: int) -> float:
    """Return the least processor seconds."""
    least = float("inf")
    for _ in range(passes):
        began = time.thread_time()
        run()
        least = min(least, time.thread_time() - began)
    return least


def parse(tool_format: ToolFormat, pieces: list[str]) -> None:
    parser = OutputParser(
        None, CallParser(tool_format, _TOOLS), (), tool_format.hidden, tool_format.around
    )
    for piece in pieces:
        parser.push(piece)
    parser.finish()


def list_rows(names: list[str], folder: Path) -> Iterator[list[str]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    compiler = Compiler(TokenSource(str(folder / "tokenizer.json"), size, (2,)))
    translate(make_constraint(TOOL_FORMATS[names[0]]), compiler)  # reads the tokenizer
    for name in names:
        tool_format = TOOL_FORMATS[name]
        call = ToolCall("get_weather_7", {"city": _TEXT, "tags": ["a b", "c"] * 40, "days": 3})
        costs = []
        for text in (_TEXT, tool_format.write(call, call)):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            pieces = [tokenizer.decode([each], skip_special_tokens=False) for each in ids]
            seconds = measure(partial(parse, tool_format, pieces), 20)
            costs.append(f"{seconds / len(pieces) * 1e6:.2f}")
        constraint = make_constraint(tool_format)
        seconds = measure(partial(translate, constraint, compiler), 10)
        yield [name, *costs, f"{seconds * 1e3:.0f}"]


def make_constraint(tool_format: ToolFormat) -> Constraint:
    calls = ToolCalls(tool_format, _TOOLS, ToolChoice("auto"))
    constraint = make_answer_constraint(None, calls, None, tool_format=tool_format)
    assert constraint is not None
    return constraint


def main() -> None:
    parser = command_line.parser(__doc__)
    parser.add_argument("--only", default=",".join(TOOL_FORMATS))
    parser.add_argument("--model", type=Path, default=Path(DEMO_MODEL))
    arguments = parser.parse_args()
    print(f"{'format':18} text us/token  call us/token  {_NUM_TOOLS} tools, ms")
    for row in list_rows(arguments.only.split(","), arguments.model):
        print("{:18} {:>13} {:>14} {:>12}".format(*row))


if __name__ == "__main__":
    main()
