"""Which forward pass each configuration gets on a CPU, in float32 and in bfloat16, and on a GPU,
kept beside the table, and the page that shows it.

``python -m tests.conformance.families.report`` loads all of them and writes both.
"""

import json
import tempfile
import warnings
from pathlib import Path

import transformers

from tests.conformance.families.popular import POPULAR, SOURCE
from tests.conformance.families.table import CASES
from workers.engine.build import build_engine

FORWARDS = Path(__file__).with_name("forwards.json")
PAGE = Path(__file__).parents[3] / "docs/models.md"
_TABLE = "<!-- What follows is written by `python -m tests.conformance.families.report`. -->\n"


Forwards = dict[str, dict[str, str]]
"""By configuration, then by column of the page."""

COLUMNS = {"float32": "float32", "bfloat16": "bfloat16", "cuda": "GPU"}
"""The last one is the attention of GPUs, tried on a CPU."""


def read() -> Forwards:
    forwards: Forwards = json.loads(FORWARDS.read_text())
    return forwards


def page(forwards: Forwards, text: str) -> str:
    """The text of docs/models.md, of which all that follows the marker is made anew."""
    above, marker, _ = text.partition(_TABLE)
    rows = []
    for case in CASES:
        cells = (case.family, case.note, *(forwards[str(case)][name] for name in COLUMNS))
        rows.append(f"| {' | '.join(cells)} |\n")
    tried = f"\n{len(CASES)} configurations, with transformers {transformers.__version__}.\n\n"
    head = f"| family | configuration | {' | '.join(COLUMNS.values())} |\n|---|---|---|---|---|\n"
    return above + marker + tried + head + "".join(rows) + "\n" + popular_section(forwards)


def popular_section(forwards: Forwards) -> str:
    rows = []
    for model in POPULAR:
        found = forwards[model.case]
        cells = (model.name, f"{model.downloads:.1f}", f"`{model.model_type}`")
        rows.append(f"| {' | '.join(cells)} | {found['bfloat16']} | {found['cuda']} |\n")
    head = "\n| model | downloads | `model_type` | CPU | GPU |\n|---|---|---|---|---|\n"
    return f"## The {len(POPULAR)} most downloaded models\n\n{SOURCE}{head}{''.join(rows)}"


def main() -> None:
    from tests.conformance.families.trial import (
        CONFIG,
        CONFIG_IN_BFLOAT16,
        find_forward_on_gpu,
        save,
        save_for_c,
    )
    from workers.engine.exceptions import UnsupportedModel

    warnings.simplefilter("ignore")
    forwards: Forwards = {}
    for case in CASES:
        found = forwards[str(case)] = {}
        for dtype, write, config in (
            ("float32", save, CONFIG),
            ("bfloat16", save_for_c, CONFIG_IN_BFLOAT16),
        ):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    engine = build_engine(write(Path(folder), case), config)
                except UnsupportedModel:
                    found[dtype] = "refused"
                    continue
            found[dtype] = engine.forward
            engine.stop()
        with tempfile.TemporaryDirectory() as folder:
            found["cuda"] = find_forward_on_gpu(Path(folder), case)
    FORWARDS.write_text(json.dumps(forwards, indent=1) + "\n")
    PAGE.write_text(page(forwards, PAGE.read_text()))


if __name__ == "__main__":
    main()
