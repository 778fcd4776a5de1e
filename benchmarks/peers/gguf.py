"""The demo model as GGUF files: tokens per second and memory, beside llama.cpp with the same files.

    python -m benchmarks.peers.gguf [--model FOLDER] [--types Q8_0,Q4_0] [--peers FOLDER]
        [--bfloat16]

llama.cpp is included if FOLDER (default: ``PEERS`` of the environment, or ``var/peers``) has the
environment ``llama-cpp``; otherwise, the run names the command that makes it. With ``--bfloat16``,
the engine with the same files in that dtype is included. Every contender is a process of its
own; all get the same random prompts in turn, and the tables give medians. ``OMP_NUM_THREADS`` sets
the threads of all contenders. ``LLAMA_CPP_REPACKS=0`` keeps llama.cpp from laying weights out
anew for AMX and vectors. Rates per processor second are in parentheses; with one thread, they
hardly depend on other load. Memory is the highest resident size of a process, and what remains of
it after the last turn; both include the model file, which all contenders map.
"""

import re
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from transformers import AutoConfig

from benchmarks import command_line
from benchmarks.engine.turns import DEMO_MODEL, random_prompts
from benchmarks.peers import gguf_file
from benchmarks.peers.environments import default_folder, install_command, program
from benchmarks.peers.process import Contender, Process, running
from benchmarks.peers.protocol import Job
from workers.preparation import gguf_checkpoint

_LLAMA_CPP = "llama-cpp"
_DTYPES = {"Q8_0": "int8", "Q4_0": "int4", "Q4_1": "int4"}


def contenders(model: Path, kind: str, made: Path, peers: Path, bfloat16: bool) -> list[Contender]:
    """Return the contenders for one file, which is written into ``made``."""
    file, folder = made / f"{kind}.gguf", made / kind
    gguf_file.write(model, file, kind)
    gguf_checkpoint.describe(file, folder, "bfloat16", str(file))
    own, module = sys.executable, "benchmarks.peers.quire"
    contenders = [Contender(f"{kind} {_DTYPES[kind]}", module, own, folder, (_DTYPES[kind],))]
    if (python := program(peers, _LLAMA_CPP)).exists():
        contenders.append(
            Contender(f"{kind} llama.cpp", "benchmarks.peers.llama_cpp", str(python), file)
        )
    if bfloat16:
        contenders.append(Contender(f"{kind} bfloat16", module, own, folder, ("bfloat16",)))
    return contenders


def main() -> None:
    parser = command_line.parser(
        __doc__,
        model=DEMO_MODEL,
        types="Q8_0,Q4_0",
        batches=[1, 8, 32],
        prompt_tokens=64,
        new_tokens=64,
        repeats=3,
    )
    parser.add_argument("--peers", type=Path, default=default_folder())
    parser.add_argument("--bfloat16", action="store_true")
    args = parser.parse_args()
    if not program(args.peers, _LLAMA_CPP).exists():
        command = install_command(args.peers, [_LLAMA_CPP])
        print(f"llama.cpp: missing. To install it: {command}")
    model = Path(args.model).resolve()
    vocab_size: int = AutoConfig.from_pretrained(model).vocab_size
    with ExitStack() as stack:
        made = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes = [
            stack.enter_context(running(contender))
            for kind in args.types.split(",")
            for contender in contenders(model, kind, made, args.peers, args.bfloat16)
        ]
        for process in processes:
            print(f"{process.name}: {process.about}")
        print("| tokens/s at | " + " | ".join(process.name for process in processes) + " |")
        print("|---" * (len(processes) + 1) + "|")
        for batch in args.batches:
            clock: dict[str, list[float]] = {process.name: [] for process in processes}
            processor: dict[str, list[float]] = {process.name: [] for process in processes}
            for turn in range(args.repeats + 1):
                seed = 1000 * batch + turn
                prompts = random_prompts(vocab_size, batch, args.prompt_tokens, seed)
                job = Job(list(map(list, prompts)), args.new_tokens)
                for process in processes:
                    answer = process.run(job)
                    if turn:
                        clock[process.name].append(answer.tokens / answer.seconds)
                        used = answer.processor_seconds
                        processor[process.name].append(answer.tokens / used)
            cells = [
                f"{statistics.median(clock[name]):.0f} ({statistics.median(processor[name]):.0f})"
                for name in clock
            ]
            print(f"| {batch} | " + " | ".join(cells) + " |", flush=True)
        for what, field in (("peak", "VmHWM"), ("at the end", "VmRSS")):
            print(f"| MiB, {what} | " + " | ".join(f"{_mib(p, field):.0f}" for p in processes), "|")


def _mib(process: Process, field: str) -> float:
    """Return a field of a process's status, in MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text("utf-8")
    match = re.search(rf"{field}:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) / 1024


if __name__ == "__main__":
    main()
