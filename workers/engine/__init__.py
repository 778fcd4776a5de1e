"""Continuous-batching inference. It knows no Django, Celery, Redis or job, and runs from a script:

from completions.contract.sampling import SamplingParams
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request

engine = build_engine("var/models/smollm2-135m-instruct", EngineConfig())
request = Request(((504, 3575, 282),), SamplingParams(max_tokens=8), request_id="1")
for completion in engine.generate([request]):
    print(completion.choices[0].text)
"""
