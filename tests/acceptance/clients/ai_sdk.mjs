// The AI SDK with its default provider, which speaks the Responses API: text, streams, tools whose
// results go back as references to stored items, objects.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [, , baseURL, apiKey, model] = process.argv;
const openai = createOpenAI({ baseURL, apiKey });

const whole = await generateText({ model: openai(model), prompt: "Say hello.", maxOutputTokens: 6 });
assert.ok(whole.text);
assert.equal(whole.usage.outputTokens, 6);

const stream = streamText({ model: openai(model), prompt: "Say hello.", maxOutputTokens: 6 });
let text = "";
for await (const part of stream.textStream) text += part;
assert.equal(text, await stream.text);

const asked = [];
const weather = tool({
  description: "The weather of a city.",
  inputSchema: z.object({ city: z.enum(["Rome", "Paris"]) }),
  execute: async (input) => {
    asked.push(input.city);
    return "Sun.";
  },
});
const used = await generateText({
  model: openai(model),
  prompt: "Rome?",
  tools: { weather },
  toolChoice: "required",
  maxOutputTokens: 40,
  stopWhen: stepCountIs(2),
  providerOptions: { openai: { parallelToolCalls: false } },
});
assert.equal(used.steps.length, 2);
assert.ok(asked.every((city) => ["Rome", "Paris"].includes(city)));
assert.equal(asked.length, 2);

const { output } = await generateText({
  model: openai(model),
  prompt: "Ok?",
  output: Output.object({ schema: z.object({ ok: z.boolean() }) }),
});
assert.equal(typeof output.ok, "boolean");

const turns = await generateText({
  model: openai(model),
  messages: [
    { role: "user", content: "Say hello." },
    ...whole.response.messages,
    { role: "user", content: "Again." },
  ],
  maxOutputTokens: 6,
});
assert.ok(turns.usage.inputTokens > whole.usage.inputTokens);
console.log("done");
