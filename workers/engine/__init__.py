"""Continuous-batching inference. It knows no Django, Celery, Redis or job, and runs from a script:

from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.request import Request
from workers.engine.sampling.params import SamplingParams

engine = Engine.from_pretrained("var/models/smollm2-135m-instruct", EngineConfig())
request = Request("1", prompts=((504, 3575, 282),), sampling=SamplingParams(max_tokens=8))
for completion in engine.generate([request]):
    print(completion.choices[0].text)
"""
