"""Texts that tokenizers treat in a way of their own."""

RUNS = "  two  spaces" + 17 * " " + "and" + 33 * " " + "x\n\n\n\n\ttabs\t\t\tx  "
SCRIPTS = "naïve 東京 Ελλάδα 한국어 हिन्दी العربية 😀👩\u200d👩\u200d👧 𓀀"
COMPOSED = "e\u0301 u\u0308 \u212b \ufb01 \u1112\u1161\u11ab \U0002f800"
"""Characters that a normalizer replaces."""
MARKS = "▁a▁▁b Ġc Âé <0x41> <0xE2>"
"""The spelling of spaces and bytes in vocabularies."""
SPELLED = "<s> </s> <eos> <|im_end|> <|eot_id|> <|return|> [INST] <think> " + (
    "<｜end▁of▁sentence｜><｜User｜>"  # noqa: RUF001 - DeepSeek's spelling
)
"""Special and added tokens, as text."""
ODD = "\ufeffbom \u200b\u00a0\u3000 \x7f ÿ \ue000"

ALL = (RUNS, SCRIPTS, COMPOSED, MARKS, SPELLED, ODD)
