"""How a constraint shaped a choice, for `meta_info.constraint`."""

from completions.grammars.schema.pointers import escape
from completions.jobs.events import ConstraintEffect
from completions.responses.choice_record import ChoiceRecord
from completions.responses.truncated_json import find_path_at_end


def make_report(record: ChoiceRecord, closes: bool = False) -> dict[str, object]:
    """Return the object of `meta_info`; empty if nothing is to be reported. `closes` says that the
    choice was to be closed."""
    closed_at = record.limit_ending and record.limit_ending["closed_at"]
    is_closed = None if closed_at is None else True
    closing = {"closed": False if record.is_cut else is_closed, "closed_at": closed_at}
    effect = {} if record.constraint is None else _make_effect(record, record.constraint)
    if effect and closes and not record.is_cut:
        effect["cut_at"] = None
    return effect | (closing if closes else {})


def _make_effect(record: ChoiceRecord, effect: ConstraintEffect) -> dict[str, object]:
    """Return how far the constraint shaped a choice. The share is over the steps and those forced
    tokens that the model was asked about, the mean over the steps; null if there are none."""
    steps = effect["steps"]
    scored = steps + effect.get("forced_scored", 0)
    overruled = effect["overruled"] + effect.get("forced_overruled", 0)
    return {
        "forced_tokens": effect["forced_tokens"],
        "steps": steps,
        "overruled_share": round(overruled / scored, 4) if scored else None,
        "removed_mass": round(effect["removed"] / steps, 4) if steps else None,
        "cut_at": find_pointer("".join(record.texts)) if record.finish_reason == "length" else None,
    }


def find_pointer(text: str) -> str | None:
    """Return the JSON pointer to where a JSON text was cut off; None if the text does not begin as
    an object or an array."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    return "".join(f"/{escape(str(each))}" for each in find_path_at_end(text))
