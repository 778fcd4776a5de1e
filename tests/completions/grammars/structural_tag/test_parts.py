from completions.grammars.structural_tag.parts import (
    ANY,
    Alternatives,
    Opaque,
    make_alternatives,
    make_chain,
    make_literal,
)
from tests.operations import counted_operations


def test_repeated_alternatives_count_once() -> None:
    one, other = Opaque("@one", ANY), Opaque("@other", ANY)
    assert make_alternatives([one, other, one]) == Alternatives((one, other))
    assert make_alternatives([one, Alternatives((one, other))]) == Alternatives((one, other))
    assert make_alternatives([one, one]) is one


def test_many_alternatives_are_compared_once() -> None:
    options = [
        make_chain([Opaque(f"@{number}", ANY), make_literal("y")]) for number in range(4_000)
    ]
    with counted_operations() as operations:
        make_alternatives(options)
    assert operations.count < 100 * len(options)  # 19 for each
