"""JSON documents that SQL keeps compressed."""

from hypothesis import given
from hypothesis import strategies as st

from completions.contract.json_lines import compress_lines, decompress_lines
from completions.contract.strict_json import encode_line


@given(st.lists(st.text(), min_size=1))
def test_compressing_loses_nothing(texts):
    documents = [encode_line({"text": text}) for text in texts]
    assert decompress_lines(compress_lines(documents)) == documents
    assert decompress_lines(memoryview(compress_lines(documents))) == documents
