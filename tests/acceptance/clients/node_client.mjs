// The official client of Node: create, stream, resume, retrieve, continue, parse, cancel, delete.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [, , baseURL, apiKey, model] = process.argv;
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const short = { model, max_output_tokens: 6, temperature: 0 };

const whole = await client.responses.create({ ...short, input: "Say hello." });
assert.ok(whole.output_text);
assert.equal(whole.usage.output_tokens, 6);

const stream = client.responses.stream({ ...short, input: "Say hello." });
let text = "";
stream.on("response.output_text.delta", (event) => (text += event.delta));
const final = await stream.finalResponse();
assert.equal(text, final.output_text);

const background = { ...short, input: "Go on.", background: true, stream: true };
const seen = [];
let id;
for await (const event of await client.responses.create(background)) {
  id ??= event.response?.id;
  seen.push(event);
}
const rest = await client.responses.retrieve(id, { stream: true, starting_after: 3 });
const again = [];
for await (const event of rest) again.push(event);
assert.deepEqual(again.slice(0, -1), seen.slice(4, -1));

const next = { ...short, input: "Again.", previous_response_id: whole.id };
assert.ok((await client.responses.create(next)).usage.input_tokens > whole.usage.input_tokens);
const items = await client.responses.inputItems.list(whole.id);
assert.equal(items.data[0].content[0].text, "Say hello.");

const Answer = z.object({ ok: z.boolean() });
const parsed = await client.responses.parse({
  model,
  input: "Ok?",
  text: { format: zodTextFormat(Answer, "answer") },
});
assert.equal(typeof parsed.output_parsed.ok, "boolean");

const conversation = await client.conversations.create({ metadata: { a: "b" } });
await client.responses.create({ ...short, input: "Hi.", conversation: conversation.id });
const said = await client.conversations.items.list(conversation.id, { order: "asc" });
assert.deepEqual(said.data.map((item) => item.role), ["user", "assistant"]);

const long = { ...short, max_output_tokens: 3000, input: "Count.", background: true };
const endless = await client.responses.create(long);
await client.responses.cancel(endless.id);
await client.responses.delete(whole.id);
await assert.rejects(client.responses.retrieve(whole.id), OpenAI.NotFoundError);
await assert.rejects(
  client.responses.create({ ...short, input: "Hi.", tools: [{ type: "web_search" }] }),
  (error) => error.param === "tools[0].type",
);
console.log("done");
