"""The child process that tokenizes and detokenizes long texts. `tokenization` starts it.

A question is a JSON array of the tokenizer's file, `encode` or `decode`, the text or the ids, and
whether special tokens are added. An answer is a number and a JSON document: the number of ids and
the ids, or 0 and the text, or -1 and what is wrong.
"""

import signal
import sys
from functools import lru_cache

import orjson
from tokenizers import Tokenizer


@lru_cache(maxsize=4)
def load(path: str) -> Tokenizer:
    tokenizer = Tokenizer.from_file(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def run_request(question: bytes) -> bytes:
    """Return the line that answers a line."""
    path, action, value, special = orjson.loads(question)
    try:
        if action == "encode":
            ids = load(path).encode_batch_fast([value], add_special_tokens=special)[0].ids
            return b"%d %b\n" % (len(ids), orjson.dumps(ids))
        return b"0 %b\n" % orjson.dumps(load(path).decode(value, skip_special_tokens=special))
    except Exception as error:  # noqa: BLE001 - tokenizers raises nothing narrower
        return b"-1 %b\n" % orjson.dumps(str(error))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service handles Ctrl-C
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(run_request(line))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
