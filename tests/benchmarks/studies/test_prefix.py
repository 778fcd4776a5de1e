"""The benchmark of common prefixes, over a tiny model."""

from argparse import Namespace

from benchmarks.studies import prefix
from tests.workers.engine import tiny_models

ARGS = Namespace(requests=3, prefix_tokens=32, own_tokens=8)


def test_prompts_begin_alike_or_do_not():
    alike = prefix.make_prompts(400, ARGS, shared=True, seed=1)
    assert len({prompt[:32] for prompt in alike}) == 1
    assert len(set(alike)) == 3
    others = prefix.make_prompts(400, ARGS, shared=False, seed=1)
    assert len({prompt[:32] for prompt in others}) == 3
    assert {len(prompt) for prompt in alike + others} == {40}


def test_it_reports_what_was_cached(tmp_path, capsys):
    folder = tiny_models.save_model(tmp_path)
    sizes = ["--requests", "3", "--prefix-tokens", "32", "--own-tokens", "8", "--new-tokens", "2"]
    sizes += ["--short-tokens", "8", "--steps", "3"]
    prefix.main(["--model", str(folder), "--dtype", "float32", "--repeats", "1", *sizes])
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "3 requests of 32 + 8 prompt tokens, 2 new tokens each"
    assert output[2].split()[0::2] == ["shared", "53%"]  # two of three took 32 of 40 tokens
    assert output[3].split()[0::2] == ["distinct", "0%"]
    assert float(output[4].split()[1]) > 0
    assert output[5].split() == ["after", "step", "ms", "ratio"]
    assert [line.split()[0] for line in output[6:]] == ["short", "shared", "distinct"]
    assert output[6].split()[2] == "1.00"
