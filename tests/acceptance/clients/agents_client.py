"""OpenAI's agents library: a run that calls a tool, a streamed one, a session in a conversation."""

import asyncio
import sys

from agents import (  # type: ignore[import-not-found]
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

URL, KEY, MODEL = sys.argv[1:]


class Answer(BaseModel):
    """An answer that ends with any model."""

    ok: bool


async def main() -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0)
    called = []

    @function_tool
    def pick(colour: bool) -> str:
        """Pick a colour, or none."""
        called.append(colour)
        return "Blue."

    model = OpenAIResponsesModel(model=MODEL, openai_client=client)
    picker = Agent(
        name="picker",
        model=model,
        tools=[pick],
        model_settings=ModelSettings(tool_choice="required", parallel_tool_calls=False),
        tool_use_behavior="stop_on_first_tool",
    )
    result = await Runner.run(picker, "Pick.")
    assert result.final_output == "Blue."
    assert len(called) == 1

    agent = Agent(name="demo", instructions="Be brief.", model=model, output_type=Answer)
    first = await Runner.run(agent, "Say hello.")
    second = await Runner.run(agent, "Again.", previous_response_id=first.last_response_id)
    used = [each.raw_responses[0].usage.input_tokens for each in (first, second)]
    assert used[1] > used[0]
    streamed = Runner.run_streamed(agent, "Say hello.")
    kinds = [event.type async for event in streamed.stream_events()]
    assert "raw_response_event" in kinds
    assert isinstance(streamed.final_output, Answer)

    session = OpenAIConversationsSession(openai_client=client)
    await Runner.run(agent, "My name is Ada.", session=session)
    await Runner.run(agent, "Who am I?", session=session)
    assert len(await session.get_items()) == 4
    await session.clear_session()
    print("done")


asyncio.run(main())
