"""Node's regular expressions, asked by one process for many texts."""

import json
import shutil
import subprocess
from collections.abc import Sequence

# Searched code point by code point, as ECMA-262, 22.2.7.2 says: V8 also looks for matches between
# the halves of a surrogate pair, where a negated look-ahead may hold.
_SCRIPT = """
function isFound(pattern, text) {
  for (let start = 0; start <= text.length; ) {
    pattern.lastIndex = start;
    if (pattern.test(text)) return true;
    start += text.codePointAt(start) > 0xffff ? 2 : 1;
  }
  return false;
}
const asked = JSON.parse(require("fs").readFileSync(0, "utf8"));
const answers = asked.map(([pattern, texts]) => {
  try {
    const found = new RegExp(pattern, "uy");
    return texts.map((text) => isFound(found, text));
  } catch (error) {
    return String(error);
  }
});
process.stdout.write(JSON.stringify(answers));
"""

NODE = shutil.which("node")


def matches(asked: Sequence[tuple[str, Sequence[str]]]) -> list[list[bool]]:
    """For each pattern with the flag u, in which of its texts it is found."""
    assert NODE is not None
    answer = subprocess.run(
        [NODE, "-e", _SCRIPT], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    found = json.loads(answer.stdout)
    for (pattern, _), each in zip(asked, found, strict=True):
        assert isinstance(each, list), f"Node does not read {pattern!r}: {each}"
    return found
