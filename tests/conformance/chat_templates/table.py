"""What is known of the templates: the format of their calls, their think tags, and calls that Quire
does not read or accept, with the reason."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.conformance.chat_templates.packages import (
    LLAMA_CPP,
    OLLAMA_UTILS,
    TRL,
    VLLM,
    XINFERENCE,
    Package,
)

FORMATS: Mapping[Package, Mapping[str, str]] = {
    LLAMA_CPP: {
        "apertus": "Apertus-8B-Instruct",
        "cohere_command": "Cohere2MoE CohereForAI-c4ai-command-r7b-12-2024-tool_use",
        "deepseek_v3": """
            deepseek-ai-DeepSeek-R1-Distill-Llama-8B
            deepseek-ai-DeepSeek-R1-Distill-Qwen-32B llama-cpp-deepseek-r1
        """,
        "deepseek_v31": "deepseek-ai-DeepSeek-V3.1",
        "deepseek_v32": "deepseek-ai-DeepSeek-V3.2",
        "deepseek_v4": "deepseek-ai-DeepSeek-V4 deepseek-ai-DeepSeek-V4-Flash-0731",
        "gemma4": "google-gemma-4-31B-it google-gemma-4-31B-it-interleaved",
        "gigachat3": "GigaChat3.1-10B-A1.8B",
        "gigachat3_roles": "GigaChat3-10B-A1.8B",
        "glm": """
            GLM-4.6 GLM-4.7-Flash Spark2.5 inclusionai-ling-3.0-flash
            poolside-Laguna-S-2.1 poolside-Laguna-XS-2.1 poolside-Laguna-XS.2
        """,
        "granite": "ibm-granite-granite-3.3-2B-Instruct",
        "hermes": """
            Bielik-11B-v3.0-Instruct MiMo-VL
            NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use
            NousResearch-Hermes-3-Llama-3.1-8B-tool_use Qwen-QwQ-32B
            Qwen-Qwen2.5-7B-Instruct Qwen-Qwen3-0.6B Reka-Edge ibm-granite-granite-4.0
            ibm-granite-granite-4.1
        """,
        "hunyuan_a13b": "Apriel-1.6-15b-Thinker-fixed unsloth-Apriel-1.5",
        "kimi_k2": "Kimi-K2-Instruct Kimi-K2-Thinking moonshotai-Kimi-K2",
        "kimi_k3": "Kimi-K3",
        "lfm2": "LFM2-8B-A1B LFM2.5-8B-A1B LFM2.5-Instruct",
        "llama3": """
            meta-llama-Llama-3.1-8B-Instruct meta-llama-Llama-3.2-3B-Instruct
            meta-llama-Llama-3.3-70B-Instruct
        """,
        "minimax_m1": "MiniMax-M1",
        "minimax_m2": "MiniMax-M2",
        "minimax_m3": "MiniMax-M3",
        "mistral": """
            mistralai-Ministral-3-14B-Reasoning-2512 unsloth-mistral-Devstral-Small-2507
        """,
        "mistral_ids": "Mistral-Small-3.2-24B-Instruct-2506",
        "mistral_list": "mistralai-Mistral-Nemo-Instruct-2407",
        "nemotron_nano": "NVIDIA-Nemotron-Nano-v2",
        "openai": "openai-gpt-oss-120b",
        "phi4_mini": "fireworks-ai-llama-3-firefunction-v2",
        "qwen3_coder": """
            NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 Qwen3-Coder Qwen3.5-4B StepFun3.5-Flash
        """,
        "seed_oss": "ByteDance-Seed-OSS",
        "solar_open": "upstage-Solar-Open-100B",
    },
    VLLM: {
        "apertus": "apertus",
        "deepseek_v3": "deepseekr1 deepseekv3",
        "deepseek_v31": "deepseekv31",
        "functiongemma": "functiongemma",
        "gemma4": "gemma4",
        "glm": "glm4",
        "granite": "granite",
        "granite_20b_fc": "granite_20b_fc",
        "hermes": "hermes",
        "hunyuan_a13b": "hunyuan_a13b",
        "internlm": "internlm2_tool",
        "llama3": "llama3.1_json llama3.2_json llama4_json",
        "llama4_pythonic": "llama4_pythonic",
        "mistral_list": "mistral mistral3 mistral_parallel",
        "phi4_mini": "phi4_mini",
        "pythonic": "gemma3_pythonic llama3.2_pythonic toolace",
        "qwen3_coder": "qwen3coder",
        "xlam": "xlam_llama xlam_qwen",
    },
    TRL: {
        "deepseek_v3": "deepseek_r1_distill deepseekv3",
        "gemma4": "diffusion_gemma gemma4 gemma4_v2 gemma4_v3 gemma4_v4 gemma4_v5",
        "glm": "glm4moe",
        "hermes": "qwen2_5 qwen3 qwen3_instruct_2507 qwen3_vl",
        "lfm2": "lfm2 lfm2_2_5 lfm2_2_5_v2 lfm2_2_5_vl lfm2_v2",
        "llama3": "llama3_1 llama3_2",
        "openai": "gptoss",
        "qwen3_coder": """
            nemotron_3_5_lightning nemotron_3_nano nemotron_3_super nemotron_3_ultra
            qwen3_5_nothink qwen3_5_think qwen3_6 qwen3_8
        """,
    },
    XINFERENCE: {
        "deepseek_v3": """
            deepseek-prover-v2 deepseek-r1 deepseek-r1-0528 deepseek-r1-0528-qwen3
            deepseek-r1-distill-llama deepseek-r1-distill-qwen deepseek-v2.5
            deepseek-v3-0324 qwenLong-l1 skywork-or1 skywork-or1-preview
        """,
        "deepseek_v31": "DeepSeek-V3.2 DeepSeek-V3.2-Exp Deepseek-V3.1",
        "glm": """
            GLM-4.6 GLM-4.7 GLM-4.7-Flash Ling-3.0-flash Ling-3.0-tiny glm-4.5 glm-4.5v
            glm-5 glm-5.1 glm-5.2 glm-5.3
        """,
        "hermes": """
            Baichuan-M2 DianJin-R1 HuatuoGPT-o1-Qwen2.5 InternVL3 KAT-V1 Ovis2 QwQ-32B
            QwQ-32B-Preview Qwen3-Instruct Qwen3-Next-Instruct Qwen3-Next-Thinking
            Qwen3-Omni-Instruct Qwen3-Omni-Thinking Qwen3-Thinking Qwen3-VL-Instruct
            Qwen3-VL-Thinking XiYanSQL-QwenCoder-2504 fin-r1 qwen1.5-chat
            qwen1.5-moe-chat qwen2-instruct qwen2-moe-instruct qwen2.5-coder-instruct
            qwen2.5-instruct qwen2.5-instruct-1m qwen3 vibethinker
        """,
        "kimi_k2": "Kimi-K2.5",
        "llama3": """
            HuatuoGPT-o1-LLaMA-3.1 deepseek-v3 llama-3.1-instruct llama-3.3-instruct
        """,
        "minimax_m2": "MiniMax-M2 MiniMax-M2.5 MiniMax-M2.7",
        "minimax_m3": "MiniMax-M3",
        "mistral_list": """
            mistral-instruct-v0.3 mistral-large-instruct mistral-nemo-instruct
            mixtral-8x22B-instruct-v0.1
        """,
        "openai": "gpt-oss",
        "qwen3_coder": """
            Nex-N2 Ornith-1.0-35B Ornith-1.5-35B-A3B Ornith-1.5-397B Qwen3-Coder qwen3.5
            qwen3.6 qwen3.8 qwen3.8-Flash-Next qwen3.8-max
        """,
        "seed_oss": "seed-oss",
    },
    OLLAMA_UTILS: {
        "cohere_command": "command-a-111b command-r7b-7b command-r7b-arabic-7b",
        "deepseek_v3": """
            deepcoder-14b deepseek-r1-8b deepseek-r1-latest deepseek-v2.5-236b
            deepseek-v3-671b r1-1776-671b
        """,
        "deepseek_v31": "deepseek-v3.1-latest",
        "granite": """
            granite3-dense-2b granite3.1-moe-1b granite3.2-8b granite3.2-vision-2b
            granite3.3-2b
        """,
        "hermes": """
            cogito-14b granite4-350m granite4-latest qwen2.5-0.5b qwen2.5-coder-1.5b
            qwen3-0.6b qwen3-next-80b qwq-32b rnj-1-latest
        """,
        "llama3": """
            llama3.1-8b llama3.2-3b llama3.2-vision-90b llama3.2-vision-latest
            llama4-latest nemotron-70b
        """,
        "phi4_mini": "firefunction-v2-70b phi4-mini-3.8b phi4-mini-reasoning-3.8b",
        "qwen3_coder": "qwen3-coder-30b",
    },
}
"""Names of templates, by the format of calls that is found; the others have none."""

THINKING: Mapping[Package, Mapping[str, str]] = {
    LLAMA_CPP: {
        "<mm:think>": "MiniMax-M3",
        "<seed:think>": "ByteDance-Seed-OSS",
        "<think>": """
            Bielik-11B-v3.0-Instruct GLM-4.6 GLM-4.7-Flash HuggingFaceTB-SmolLM3-3B
            Kimi-K2-Thinking LFM2.5-8B-A1B LFM2.5-Instruct MiniMax-M2
            NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 NVIDIA-Nemotron-Nano-v2 Qwen-QwQ-32B
            Qwen-Qwen3-0.6B Qwen3.5-4B Reka-Edge Spark2.5 StepFun3.5-Flash
            deepseek-ai-DeepSeek-R1-Distill-Llama-8B
            deepseek-ai-DeepSeek-R1-Distill-Qwen-32B deepseek-ai-DeepSeek-V3.1
            deepseek-ai-DeepSeek-V3.2 deepseek-ai-DeepSeek-V4
            deepseek-ai-DeepSeek-V4-Flash-0731 ibm-granite-granite-3.3-2B-Instruct
            inclusionai-ling-3.0-flash llama-cpp-deepseek-r1 llama-cpp-rwkv-world
            openbmb-MiniCPM5-1B poolside-Laguna-S-2.1 poolside-Laguna-XS-2.1
            poolside-Laguna-XS.2
        """,
        "<|START_THINKING|>": "Cohere2MoE CohereForAI-c4ai-command-r7b-12-2024-tool_use",
        "<|channel>thought": "google-gemma-4-31B-it google-gemma-4-31B-it-interleaved",
        "<|channel|>analysis<|message|>": "openai-gpt-oss-120b",
        "<|inner_prefix|>": "Apertus-8B-Instruct",
        "<|open|>think<|sep|>": "Kimi-K3",
        "<|think|>": "upstage-Solar-Open-100B",
        "[THINK]": "mistralai-Ministral-3-14B-Reasoning-2512",
    },
    VLLM: {
        "<think>": "deepseekr1 deepseekv31 hunyuan_a13b",
        "<|channel>thought": "gemma4",
        "<|inner_prefix|>": "apertus",
    },
    TRL: {
        "<think>": """
            deepseek_r1_distill deepseekv3 glm4moe lfm2_2_5 lfm2_2_5_v2 lfm2_2_5_vl
            nemotron_3_5_lightning nemotron_3_nano nemotron_3_super nemotron_3_ultra
            qwen3 qwen3_5_nothink qwen3_5_think qwen3_6 qwen3_8
        """,
        "<|channel>thought": "diffusion_gemma gemma4 gemma4_v3 gemma4_v4 gemma4_v5",
        "<|channel|>analysis<|message|>": "gptoss",
    },
    XINFERENCE: {
        "<mm:think>": "MiniMax-M3",
        "<seed:think>": "seed-oss",
        "<think>": """
            Baichuan-M2 DeepSeek-V3.2 DeepSeek-V3.2-Exp Deepseek-V3.1 GLM-4.6 GLM-4.7
            GLM-4.7-Flash KAT-V1 Kimi-K2.5 Ling-3.0-flash Ling-3.0-tiny MiniMax-M2
            MiniMax-M2.5 MiniMax-M2.7 Nex-N2 Ornith-1.0-35B Ornith-1.5-35B-A3B
            Ornith-1.5-397B QwQ-32B Qwen3-Instruct Qwen3-Next-Thinking
            Qwen3-Omni-Instruct Qwen3-Omni-Thinking Qwen3-Thinking Qwen3-VL-Thinking
            deepseek-r1 deepseek-r1-0528 deepseek-r1-0528-qwen3
            deepseek-r1-distill-llama deepseek-r1-distill-qwen glm-4.5 glm-4.5v glm-5
            glm-5.1 glm-5.2 glm-5.3 minicpm5-1b minicpm5-2b qwen3 qwen3.5 qwen3.6
            qwen3.8 qwen3.8-Flash-Next qwen3.8-max qwenLong-l1 skywork-or1
            skywork-or1-preview
        """,
        "<|channel|>analysis<|message|>": "gpt-oss",
    },
    OLLAMA_UTILS: {
        "<think>": """
            deepcoder-14b deepseek-r1-8b deepseek-r1-latest deepseek-v3.1-latest
            granite3.3-2b phi4-reasoning-14b qwen3-0.6b qwen3-next-80b qwq-32b
            r1-1776-671b
        """,
        "<|START_THINKING|>": "command-a-111b command-r7b-7b command-r7b-arabic-7b",
    },
}
"""Names of templates, by the tag that begins their reasoning; the others have none."""

LOSSES: Mapping[Package, str] = {
    LLAMA_CPP: """
        CohereForAI-c4ai-command-r-plus-tool_use fireworks-ai-llama-3-firefunction-v2
        llama-cpp-deepseek-r1
    """,
    OLLAMA_UTILS: "firefunction-v2-70b granite3-guardian-2b shieldgemma-27b",
}
"""Names of templates that refuse a usual conversation, or judge its last message alone."""

EVERY = ""
"""All calls."""


@dataclass(frozen=True)
class Difference:
    """Calls that Quire does not read, or whose text its grammar does not accept."""

    package: Package
    names: str
    calls: str
    """Their names, in a list with commas."""
    reason: str
    reads: bool = False
    """Whether they are read all the same."""


ONE_CALL = "the template takes or prints one call a message"
UNQUOTED = "the template does not escape or quote strings"
PRINTED = "the template prints lists and objects as Python does; the grammar writes JSON"
HARMONY = "the template names the recipient before the channel, the grammar after it"
SORTED = "the template sorts arguments; the grammar keeps the order of the schema"
SPACES = "the template writes white space between marks, which the grammar does not"
IDS = "the template adds ids, which models do not write"
BROKEN = "the template writes calls without quotes that JSON needs"
DIFFERENCES = (
    Difference(
        LLAMA_CPP,
        "GigaChat3-10B-A1.8B GigaChat3.1-10B-A1.8B meta-llama-Llama-3.1-8B-Instruct "
        "meta-llama-Llama-3.2-3B-Instruct meta-llama-Llama-3.3-70B-Instruct",
        "two",
        ONE_CALL,
    ),
    Difference(VLLM, "llama3.1_json llama3.2_json", "two", ONE_CALL),
    Difference(TRL, "llama3_1 llama3_2", "two", ONE_CALL),
    Difference(
        XINFERENCE,
        "HuatuoGPT-o1-LLaMA-3.1 llama-3.1-instruct llama-3.3-instruct",
        "two",
        ONE_CALL,
    ),
    Difference(
        OLLAMA_UTILS,
        "llama3.1-8b llama3.2-3b llama3.2-vision-90b llama3.2-vision-latest nemotron-70b",
        "two",
        ONE_CALL,
    ),
    Difference(LLAMA_CPP, "openai-gpt-oss-120b", EVERY, HARMONY, reads=True),
    Difference(TRL, "gptoss", EVERY, HARMONY, reads=True),
    Difference(XINFERENCE, "gpt-oss", EVERY, HARMONY, reads=True),
    Difference(
        LLAMA_CPP,
        "google-gemma-4-31B-it google-gemma-4-31B-it-interleaved",
        "numbers",
        SORTED,
        reads=True,
    ),
    Difference(VLLM, "gemma4", "numbers", SORTED, reads=True),
    Difference(
        TRL,
        "diffusion_gemma gemma4 gemma4_v2 gemma4_v3 gemma4_v4 gemma4_v5",
        "numbers",
        SORTED,
        reads=True,
    ),
    Difference(LLAMA_CPP, "LFM2.5-8B-A1B", "quotes", UNQUOTED),
    Difference(LLAMA_CPP, "LFM2.5-8B-A1B", "lines", UNQUOTED, reads=True),
    Difference(LLAMA_CPP, "LFM2.5-8B-A1B", "a list", PRINTED, reads=True),
    Difference(TRL, "lfm2_2_5 lfm2_2_5_v2", "quotes", UNQUOTED),
    Difference(TRL, "lfm2_2_5 lfm2_2_5_v2", "lines", UNQUOTED, reads=True),
    Difference(TRL, "lfm2_2_5 lfm2_2_5_v2", "a list", PRINTED, reads=True),
    Difference(VLLM, "gemma3_pythonic", "numbers, a boolean, a list, an object", UNQUOTED),
    Difference(VLLM, "llama4_pythonic", "quotes, numbers, a boolean, a list, an object", UNQUOTED),
    Difference(VLLM, "llama4_pythonic", "lines", UNQUOTED, reads=True),
    Difference(VLLM, "llama3.2_pythonic toolace", "unicode, quotes, lines, numbers", UNQUOTED),
    Difference(
        VLLM,
        "llama3.2_pythonic toolace",
        "a word, a boolean, a list, an object, two",
        UNQUOTED,
        reads=True,
    ),
    Difference(
        VLLM,
        "functiongemma",
        "numbers, a boolean, a list, an object",
        "this template quotes every value; the model's own only strings",
    ),
    Difference(LLAMA_CPP, "ByteDance-Seed-OSS", "a list, an object", PRINTED, reads=True),
    Difference(XINFERENCE, "seed-oss", "a list, an object", PRINTED, reads=True),
    Difference(XINFERENCE, "Qwen3-Coder", "a list", PRINTED, reads=True),
    Difference(OLLAMA_UTILS, "qwen3-coder-30b", "a list, an object", PRINTED, reads=True),
    Difference(
        LLAMA_CPP, "Reka-Edge", "unicode, a list", "the template escapes all of it", reads=True
    ),
    Difference(
        LLAMA_CPP,
        "GigaChat3-10B-A1.8B",
        EVERY,
        "the template ends an empty message before a call",
        reads=True,
    ),
    Difference(LLAMA_CPP, "mistralai-Mistral-Nemo-Instruct-2407", EVERY, IDS, reads=True),
    Difference(VLLM, "mistral mistral3 mistral_parallel", EVERY, IDS, reads=True),
    Difference(
        XINFERENCE,
        "mistral-instruct-v0.3 mistral-large-instruct mistral-nemo-instruct "
        "mixtral-8x22B-instruct-v0.1",
        EVERY,
        IDS,
        reads=True,
    ),
    Difference(VLLM, "deepseekv3 deepseekv31 granite", EVERY, SPACES, reads=True),
    Difference(XINFERENCE, "DeepSeek-V3.2 Deepseek-V3.1", EVERY, SPACES, reads=True),
    Difference(
        VLLM,
        "internlm2_tool",
        EVERY,
        "this template calls arguments so; the model's own documents parameters",
        reads=True,
    ),
    Difference(
        OLLAMA_UTILS,
        "llama4-latest",
        EVERY,
        "the template writes an empty pair of special tokens before a call",
        reads=True,
    ),
    Difference(
        XINFERENCE, "qwen1.5-chat qwen1.5-moe-chat qwen2-instruct qwen2-moe-instruct", EVERY, BROKEN
    ),
    Difference(
        XINFERENCE,
        "deepseek-v3",
        "a word, unicode, quotes, lines, numbers, a boolean, a list, an object, two",
        BROKEN,
    ),
    Difference(XINFERENCE, "deepseek-v3", "nothing", SPACES, reads=True),
    Difference(
        LLAMA_CPP,
        "llama-cpp-deepseek-r1",
        EVERY,
        "the template needs another implementation of Jinja",
    ),
    Difference(
        LLAMA_CPP,
        "fireworks-ai-llama-3-firefunction-v2",
        EVERY,
        "the template needs a variable `functions`",
    ),
    Difference(
        OLLAMA_UTILS, "firefunction-v2-70b", EVERY, "the template needs a variable `functions`"
    ),
)
