"""Layers that take the place of ``nn.Linear``."""

from torch import nn


class LinearLayer(nn.Module):
    """A layer that computes what an ``nn.Linear`` of the same sizes would."""

    in_features: int
    out_features: int
