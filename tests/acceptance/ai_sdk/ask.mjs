// Asks a service for an object and for a tool call, as the AI SDK does, and prints both as JSON.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, jsonSchema, streamText, tool } from "ai";

const [baseURL, apiKey, id, schemaText] = process.argv.slice(2);
const schema = jsonSchema(JSON.parse(schemaText));
const provider = createOpenAICompatible({
  name: "quire",
  baseURL,
  apiKey,
  supportsStructuredOutputs: true,
});
const model = provider(id);
const options = { model, prompt: "The weather in Rome?", maxOutputTokens: 300, seed: 1, maxRetries: 0 };

const { object } = await generateObject({ ...options, schema });
const stream = streamText({
  ...options,
  tools: { weather: tool({ description: "Says the weather.", inputSchema: schema }) },
  toolChoice: "required",
  providerOptions: { quire: { parallel_tool_calls: false } },
});
const calls = await stream.toolCalls;
console.log(JSON.stringify({ object, calls: calls.map(({ toolName, input }) => [toolName, input]) }));
