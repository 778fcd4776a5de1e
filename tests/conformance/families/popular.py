"""The 40 models that were downloaded most often, and the configurations that stand for them."""

from typing import NamedTuple

SOURCE = (
    "Downloads from the Hugging Face hub in 30 days, in millions, as the list of models of\n"
    "[llmfit](https://github.com/AlexsJones/llmfit) had them on 12 May 2026 (commit 5bdc9df). The "
    "list is extended each week, so some counts are a few\n"
    "weeks older. Left out are models that embed, rank or classify texts or only read images, "
    "models made for tests, and copies in fewer bits.\n"
)


class Popular(NamedTuple):
    name: str
    downloads: float
    """In 30 days, in millions."""
    model_type: str
    """As the model's config.json has it."""
    configuration: str = ""
    """The one in the table that has its kinds of layers, if that is not named by the type."""

    @property
    def case(self) -> str:
        return self.configuration or self.model_type


POPULAR: tuple[Popular, ...] = (
    Popular("Qwen/Qwen3-VL-2B-Instruct", 187.0, "qwen3_vl"),
    Popular("Qwen/Qwen3-0.6B", 18.6, "qwen3"),
    Popular("openai-community/gpt2", 16.1, "gpt2"),
    Popular("Qwen/Qwen2.5-7B-Instruct", 14.4, "qwen2"),
    Popular("deepseek-ai/DeepSeek-V3.2", 11.9, "deepseek_v32"),
    Popular("Qwen/Qwen2.5-1.5B-Instruct", 11.8, "qwen2"),
    Popular("Qwen/Qwen3-8B", 11.1, "qwen3"),
    Popular("Qwen/Qwen3-4B-Instruct-2507", 10.8, "qwen3"),
    Popular("meta-llama/Llama-3.1-8B-Instruct", 9.4, "llama", "llama rope llama3"),
    Popular("google/gemma-4-31B-it", 8.9, "gemma4", "gemma4_text"),
    Popular("Qwen/Qwen2.5-3B-Instruct", 8.8, "qwen2"),
    Popular("Qwen/Qwen2.5-VL-7B-Instruct", 8.8, "qwen2_5_vl"),
    Popular("facebook/opt-125m", 8.6, "opt"),
    Popular("Qwen/Qwen3.5-9B", 8.2, "qwen3_5", "qwen3_5_text"),
    Popular("openai/gpt-oss-20b", 7.3, "gpt_oss"),
    Popular("google/gemma-4-26B-A4B-it", 7.1, "gemma4", "gemma4_text experts"),
    Popular("meta-llama/Llama-3.2-1B-Instruct", 6.9, "llama", "llama rope llama3"),
    Popular("Qwen/Qwen2.5-0.5B-Instruct", 6.0, "qwen2"),
    Popular("Qwen/Qwen3.5-4B", 5.9, "qwen3_5", "qwen3_5_text"),
    Popular("google/gemma-4-E4B-it", 5.6, "gemma4", "gemma4_text shared kv"),
    Popular("Qwen/Qwen3-VL-8B-Instruct", 5.4, "qwen3_vl"),
    Popular("dphn/dolphin-2.9.1-yi-1.5-34b", 4.7, "llama"),
    Popular("Qwen/Qwen2-1.5B-Instruct", 4.5, "qwen2"),
    Popular("openai/gpt-oss-120b", 4.4, "gpt_oss"),
    Popular("mistralai/Mistral-7B-Instruct-v0.3", 3.8, "mistral"),
    Popular("deepseek-ai/DeepSeek-R1", 3.8, "deepseek_v3", "deepseek_v3 yarn"),
    Popular("Qwen/Qwen3.6-35B-A3B", 3.5, "qwen3_5_moe", "qwen3_5_moe_text"),
    Popular("Qwen/Qwen2.5-VL-3B-Instruct", 3.5, "qwen2_5_vl"),
    Popular("Qwen/Qwen3-1.7B", 3.5, "qwen3"),
    Popular("Qwen/Qwen3.5-35B-A3B", 3.5, "qwen3_5_moe", "qwen3_5_moe_text"),
    Popular("Qwen/Qwen2-VL-7B-Instruct", 3.5, "qwen2_vl"),
    Popular("google/gemma-4-E2B-it", 3.4, "gemma4", "gemma4_text shared kv"),
    Popular("Qwen/Qwen3.5-27B", 3.4, "qwen3_5", "qwen3_5_text"),
    Popular("meta-llama/Meta-Llama-3-8B", 3.3, "llama"),
    Popular("EleutherAI/pythia-160m", 3.2, "gpt_neox"),
    Popular("Qwen/Qwen3.5-0.8B", 3.0, "qwen3_5", "qwen3_5_text"),
    Popular("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 3.0, "llama"),
    Popular("distilbert/distilgpt2", 3.0, "gpt2"),
    Popular("mistralai/Mistral-7B-Instruct-v0.2", 3.0, "mistral"),
    Popular("llava-hf/llava-1.5-7b-hf", 2.8, "llava"),
)
