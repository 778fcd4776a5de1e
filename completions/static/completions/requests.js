// A request, written for a shell, a program and a batch file. Its entries are [name, value in JSON]: text, so that
// large numbers stay exact.

const KEYWORDS = new Set([ // what OpenAI's client has parameters for, on both routes
  "model", "messages", "prompt", "max_tokens", "temperature", "top_p", "seed", "n", "stop", "stream", "logprobs", "top_logprobs", "tools", "tool_choice",
]);

export const asJson = (entries) => `{\n${entries.map(([name, json]) => `  ${JSON.stringify(name)}: ${json}`).join(",\n")}\n}`;

const streams = (entries) => entries.some(([name, json]) => name === "stream" && json === "true");

export function asCurl(base, path, entries) {
  return [
    `curl ${streams(entries) ? "-N " : ""}'${base}${path}' \\`,
    `  -H "Authorization: Bearer $QUIRE_API_KEY" \\`,
    `  -H 'Content-Type: application/json' \\`,
    `  -d '${asJson(entries).replaceAll("'", "'\\''")}'`,
  ].join("\n");
}

export function asPython(base, path, entries) {
  const isChat = path.includes("chat");
  const lines = entries.filter(([name]) => KEYWORDS.has(name)).map(([name, json]) => `    ${name}=${literal(json)},`);
  const extra = entries.filter(([name]) => !KEYWORDS.has(name));
  if (extra.length) lines.push(`    extra_body={${extra.map(([name, json]) => `${JSON.stringify(name)}: ${literal(json)}`).join(", ")}},`);
  return [
    "import os",
    "",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${base}/v1`)}, api_key=os.environ["QUIRE_API_KEY"])`,
    `answer = client.${isChat ? "chat.completions" : "completions"}.create(`,
    ...lines,
    ")",
    ...(streams(entries)
      ? ["for chunk in answer:", "    for choice in chunk.choices:", `        print(${isChat ? 'choice.delta.content or ""' : "choice.text"}, end="", flush=True)`]
      : ["for choice in answer.choices:", `    print(${isChat ? "choice.message.content or choice.message.tool_calls" : "choice.text"})`]),
  ].join("\n");
}

const LIVE = new Set(["stream", "stream_options", "background"]); // lines of batches have none of these

export function asBatchLine(base, path, entries) {
  const body = asJson(entries.filter(([name]) => !LIVE.has(name))).replace(/\s*[\r\n]+\s*/g, " ");
  return `{"custom_id": "playground-1", "method": "POST", "url": ${JSON.stringify(path)}, "body": ${body}}`;
}

// Show a text in a field and copy it. Returns what became of that.
export async function copyFrom(area, text) {
  area.value = text;
  area.hidden = false;
  area.select();
  try { // only over HTTPS and on localhost
    await navigator.clipboard.writeText(text);
    return "Copied";
  } catch {
    return document.execCommand("copy") ? "Copied" : "Copy it from here";
  }
}

// JSON as a Python literal. A string is written anew: Python reads the escapes of JSON otherwise.
function literal(json) {
  const names = { true: "True", false: "False", null: "None" };
  return json.replace(/"(?:[^"\\]|\\.)*"|true|false|null/g, (part) => names[part] ?? JSON.stringify(JSON.parse(part)));
}
