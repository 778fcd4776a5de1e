// Anthropic's client of Node: create, stream, count, tools, thinking, a schema, refusals.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";

const [, , url, apiKey, model] = process.argv;
const client = new Anthropic({ baseURL: url.replace(/\/v1$/, ""), apiKey, maxRetries: 0 });
const hello = [{ role: "user", content: "Say hello." }];
const short = { model, max_tokens: 6, temperature: 0, messages: hello };

const { data: whole, request_id } = await client.messages.create(short).withResponse();
assert.ok(request_id);
assert.deepEqual([whole.stop_reason, whole.usage.output_tokens], ["max_tokens", 6]);
const [{ text }] = whole.content;

const stream = client.messages.stream(short);
let streamed = "";
stream.on("text", (delta) => (streamed += delta));
const final = await stream.finalMessage();
assert.equal(streamed, text);
assert.deepEqual([final.content[0].text, final.stop_reason], [text, "max_tokens"]);

const kinds = [];
for await (const event of await client.messages.create({ ...short, stream: true }))
  kinds.push(event.type);
assert.deepEqual([kinds[0], kinds.at(-1)], ["message_start", "message_stop"]);

const counted = await client.messages.countTokens({ model, messages: hello });
const { input_tokens, cache_read_input_tokens } = whole.usage;
assert.equal(counted.input_tokens, input_tokens + cache_read_input_tokens);

const middle = text.slice(2, 5);
const cut = await client.messages.create({ ...short, stop_sequences: [middle] });
assert.deepEqual([cut.stop_reason, cut.stop_sequence], ["stop_sequence", middle]);

const turns = [...hello, { role: "assistant", content: whole.content }];
const next = [...turns, { role: "user", content: "Again." }];
assert.equal((await client.messages.create({ ...short, messages: next })).content[0].type, "text");
const rest = await client.messages.create({ ...short, messages: turns });
const twice = await client.messages.create({ ...short, max_tokens: 12 });
assert.equal(rest.content[0].type, "text");
assert.ok(twice.content[0].text.startsWith(text));

const colours = { enum: ["red", "blue"] };
const tools = [
  {
    name: "pick",
    description: "Pick a colour.",
    input_schema: {
      type: "object",
      properties: { colour: colours },
      required: ["colour"],
      additionalProperties: false,
    },
  },
];
const asked = { model, max_tokens: 60, tools, messages: hello };
const tool_choice = { type: "tool", name: "pick", disable_parallel_tool_use: true };
const called = await client.messages.create({ ...asked, tool_choice });
const call = called.content.find((block) => block.type === "tool_use");
assert.ok(colours.enum.includes(call.input.colour));
const again = client.messages.stream({ ...asked, tool_choice });
const inputs = [];
again.on("inputJson", (_piece, snapshot) => inputs.push(snapshot));
await again.finalMessage();
assert.ok(colours.enum.includes(inputs.at(-1).colour));
const result = { type: "tool_result", tool_use_id: call.id, content: "Fine." };
const answered = [
  ...hello,
  { role: "assistant", content: called.content },
  { role: "user", content: [result] },
];
const then = await client.messages.create({ ...asked, max_tokens: 6, messages: answered });
assert.ok(then.usage.input_tokens + then.usage.cache_read_input_tokens > counted.input_tokens);

const Answer = z.object({ ok: z.boolean() });
const format = zodOutputFormat(Answer);
const parsed = await client.messages.parse({
  ...short,
  max_tokens: 40,
  output_config: { format },
});
assert.equal(typeof parsed.parsed_output.ok, "boolean");

await assert.rejects(
  client.messages.create({ ...short, model: "none" }),
  (error) => error instanceof Anthropic.NotFoundError && error.error.error.type === "not_found_error",
);
await assert.rejects(client.messages.create({ ...short, max_tokens: 0 }), Anthropic.BadRequestError);
const stranger = new Anthropic({ baseURL: client.baseURL, apiKey: "sk-no", maxRetries: 0 });
await assert.rejects(stranger.messages.create(short), Anthropic.AuthenticationError);
console.log("done");
