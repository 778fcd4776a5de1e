"""Heads of parts in any encoding, wherever the body is cut."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.http.multipart import _ReadableHeads


def read_in(sizes, body, boundary=b"b"):
    """What comes of a body that is read in pieces of these sizes, over and over."""
    stream, read, turn = _ReadableHeads(io.BytesIO(body), boundary), [], 0
    while piece := stream.read(sizes[turn % len(sizes)]):
        read.append(piece)
        turn += 1
    return b"".join(read)


def part(name, content):
    return b'--b\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n\r\n%b\r\n' % (
        name,
        content,
    )


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_only_heads_are_mended(size):
    body = part(b"caf\xe9", b"\xe9\xff" * 50) + part("ü".encode(), b"\xe9--") + b"--b--\r\n"
    mended = part(b"caf?", b"\xe9\xff" * 50) + part("ü".encode(), b"\xe9--") + b"--b--\r\n"
    assert read_in([size], body) == mended


@pytest.mark.parametrize("lead", [b"", b"x"])
def test_a_long_name_in_utf_8_is_not_cut_within_a_character(lead):
    """The limit of a head counts from behind its delimiter, as Django's does."""
    boundary = b"b" * 40
    body = part(lead + "ü".encode() * 465, b"").replace(b"--b", b"--" + boundary)
    assert 1024 < body.index(b"\r\n\r\n") < len(boundary) + 1024
    assert read_in([4096], body, boundary) == body


@given(
    st.lists(st.sampled_from([b"--b", b"-", b"\r\n", b"\r\n\r\n", b"x" * 700, b"a"])).map(b"".join),
    st.lists(st.integers(1, 900), min_size=1),
)
def test_a_body_of_ascii_stays_as_it_is(body, sizes):
    assert read_in(sizes, body) == body


@given(st.binary(), st.lists(st.integers(1, 40), min_size=1))
def test_the_pieces_make_no_difference(body, sizes):
    body = part(b"a", body) + part(body, b"c")
    assert read_in(sizes, body) == read_in([100_000], body)
