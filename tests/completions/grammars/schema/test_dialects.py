"""What drafts of JSON Schema ignore."""

from completions.grammars.schema import dialects
from completions.grammars.schema.keywords import LATEST


def test_each_draft_ignores_the_keywords_that_it_does_not_have() -> None:
    assert dialects.detect_draft({"$schema": "http://json-schema.org/draft-04/schema#"}) == 4
    assert dialects.detect_draft({}) == dialects.detect_draft({"$schema": "x"}) == LATEST
    assert dialects.find_without_effect({"if": {}, "const": 1}, 4).keys() == {"if"}
    assert dialects.find_without_effect({"$ref": "#", "minimum": 1, "$defs": {}}, 7).keys() == {
        "minimum"
    }
    assert not dialects.find_without_effect({"$ref": "#", "minimum": 1, "if": {}}, LATEST)
