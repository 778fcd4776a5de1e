"""The tables of rotary positions that the C forward reads."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.workers.engine.tiny_models import LLAMA
from workers.engine.backends.cpu.recognition import rotary
from workers.engine.backends.cpu.recognition.rotary import Angles


def test_tables_that_are_made_in_parts_are_those_that_are_made_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**LLAMA)).model
    attention = model.layers[0].self_attn
    _, whole = Angles(model.rotary_emb, 40, ()).get(attention, attention.head_dim)
    monkeypatch.setattr(rotary, "_POSITIONS_AT_ONCE", 7)
    _, parts = Angles(model.rotary_emb, 40, ()).get(attention, attention.head_dim)
    assert whole is not None
    assert parts is not None
    assert all(map(torch.equal, whole, parts))
    assert len(whole[0]) == 40
