// A request, written for a shell, a program and a batch file.

const OPENAI = new Set(["model", "messages", "prompt", "max_tokens", "temperature", "top_p", "seed", "logprobs", "top_logprobs"]);

export function asCurl(base, path, body) {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return [
    `curl -N '${base}${path}' \\`,
    `  -H "Authorization: Bearer $QUIRE_API_KEY" \\`,
    `  -H 'Content-Type: application/json' \\`,
    `  -d '${json}'`,
  ].join("\n");
}

export function asPython(base, path, body) {
  const { stream, ...rest } = body;
  const known = Object.entries(rest).filter(([name]) => OPENAI.has(name));
  const extra = Object.fromEntries(Object.entries(rest).filter(([name]) => !OPENAI.has(name)));
  const isChat = path.includes("chat");
  const lines = known.map(([name, value]) => `    ${name}=${literal(value)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${literal(extra)},`);
  return [
    "import os",
    "",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${base}/v1`)}, api_key=os.environ["QUIRE_API_KEY"])`,
    `stream = client.${isChat ? "chat.completions" : "completions"}.create(`,
    ...lines,
    "    stream=True,",
    ")",
    "for chunk in stream:",
    "    for choice in chunk.choices:",
    `        print(${isChat ? 'choice.delta.content or ""' : "choice.text"}, end="", flush=True)`,
  ].join("\n");
}

export function asBatchLine(base, path, body) {
  const { stream, stream_options, ...rest } = body;
  return JSON.stringify({ custom_id: "playground-1", method: "POST", url: path, body: rest });
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

// A JSON value as a Python literal. A string of JSON is one of Python too.
function literal(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
