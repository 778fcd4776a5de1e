"""Falcon's attention through an attention function: transformers' own classes call none."""

from typing import Any

from torch import Tensor
from transformers import AttentionInterface
from transformers.models.falcon import modeling_falcon as falcon

from workers.engine.compat import get_attention, let_attention_be_set
from workers.engine.exceptions import UnsupportedModel

apply_rotary_pos_emb: Any = falcon.apply_rotary_pos_emb
"""Rotates queries and keys. Under its usual name, since the C forward looks for it here."""

_functions: Any = AttentionInterface
_pretrained: Any = falcon.FalconPreTrainedModel
_registered: set[str] = set()


class PagedFalconAttention(falcon.FalconAttention):
    """Calls the attention function that the configuration names, with as many key heads as the
    model has; transformers' own class repeats them."""

    def forward(
        self,
        hidden_states: Tensor,
        alibi: Tensor | None,
        attention_mask: Any,
        *args: Any,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **options: Any,
    ) -> Any:
        """``hidden_states`` [batch, tokens, hidden]; the output has the same shape. Raises
        UnsupportedModel for a model with ALiBi."""
        name = get_attention(self.config)
        if name not in _registered:
            options["position_embeddings"] = position_embeddings
            return super().forward(hidden_states, alibi, attention_mask, *args, **options)
        if alibi is not None or position_embeddings is None:
            raise UnsupportedModel("Falcon with ALiBi does not run over pages")
        batch, tokens, hidden = hidden_states.shape
        kv_heads: Any = self.num_kv_heads
        heads = self.query_key_value(hidden_states).view(batch, tokens, kv_heads, -1, self.head_dim)
        query = heads[..., :-2, :].flatten(2, 3).transpose(1, 2)
        key, value = (heads[..., place, :].transpose(1, 2) for place in (-2, -1))
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        attended, _ = _functions()[name](
            self, query, key, value, attention_mask, scaling=self.inv_norm_factor
        )
        return self.dense(attended.reshape(batch, tokens, hidden)), None


def register_falcon(attention: str) -> None:
    """Let Falcon models take the attention function of this name."""
    _registered.add(attention)
    falcon.FALCON_ATTENTION_CLASSES[attention] = PagedFalconAttention
    let_attention_be_set(_pretrained)
