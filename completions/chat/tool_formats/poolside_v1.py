"""Tool calls of poolside's Laguna: those of GLM."""

from dataclasses import replace

from completions.chat.tool_formats.glm import FORMAT as GLM

FORMAT = replace(
    GLM, name="poolside_v1", families="poolside Laguna", signature=(), model_types=("laguna",)
)
