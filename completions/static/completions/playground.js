// The playground: builds a request, has its constraint judged, and shows the answer as it streams.

import { ConstraintEditor } from "./constraint_editor.js";
import { asBatchLine, asCurl, asPython, copyFrom } from "./requests.js";

const form = document.getElementById("play");
const fields = form.elements;
const find = (selector) => form.querySelector(selector);
const show = (element, visible) => { element.hidden = !visible; };
const CHAT = "/v1/chat/completions", PLAIN = "/v1/completions";
const LIKELIEST = 5;

// The request -----------------------------------------------------------------------------------

let mode = "messages";
const path = () => (mode === "messages" ? CHAT : PLAIN);

function addMessage(role = "user", content = "") {
  const row = document.createElement("div");
  row.className = "q-message";
  const roles = ["system", "user", "assistant"].map((each) => new Option(each, each, false, each === role));
  const select = Object.assign(document.createElement("select"), { className: "q-input", ariaLabel: "Role" });
  select.append(...roles);
  const area = Object.assign(document.createElement("textarea"), { className: "q-input", rows: 3, value: content, ariaLabel: "Content" });
  const remove = Object.assign(document.createElement("button"), { type: "button", className: "q-button", textContent: "Remove" });
  remove.addEventListener("click", () => row.remove());
  row.append(select, remove, area);
  find("#messages").append(row);
}

// The body of the request. Throws an Error that says what to change.
function body() {
  const made = { model: fields.model.value };
  if (mode === "messages") {
    made.messages = [...find("#messages").children].map((row) => ({
      role: row.querySelector("select").value, content: row.querySelector("textarea").value,
    }));
  } else {
    made.prompt = tokenIds(fields.ids.value);
  }
  for (const name of ["max_tokens", "temperature", "top_p", "seed"]) {
    if (!fields[name].checkValidity()) throw new Error(`${name}: ${fields[name].validationMessage}`);
    if (fields[name].value !== "") made[name] = Number(fields[name].value);
  }
  if (editor.field && editor.text.trim()) {
    made[editor.field] = constraintValue(editor.text);
    made.return_meta_info = true; // how far the constraint shaped the answer
  }
  if (mode === "messages") Object.assign(made, { logprobs: true, top_logprobs: LIKELIEST });
  else made.logprobs = LIKELIEST;
  return { ...made, stream: true };
}

function tokenIds(text) {
  const parts = text.replace(/^\s*\[|\]\s*$/g, "").split(/[\s,]+/).filter(Boolean);
  const wrong = parts.find((part) => !/^\d+$/.test(part));
  if (wrong !== undefined) throw new Error(`“${wrong}” is no token id. Write whole numbers.`);
  return parts.map(Number);
}

// A JSON object is sent as an object. Other text is sent as it is, and the service says what is wrong.
function constraintValue(text) {
  if (!fields.kind.selectedOptions[0].dataset.object) return text;
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value) ? value : text;
  } catch { return text; }
}

// Calls to the service --------------------------------------------------------------------------

function call(route, document, signal) {
  const headers = { "Content-Type": "application/json", "X-CSRFToken": form.dataset.csrf, [form.dataset.header]: fields.key.value };
  return fetch(form.dataset.calls + route.slice(1), { method: "POST", headers, body: JSON.stringify(document), signal });
}

async function faultOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The service answered ${response.status}. Reload this page.`;
  }
}

async function judge(field, text) {
  // A schema is sent as its text, so that an error has a line and a column. A grammar is an object.
  const value = field === "grammar" ? constraintValue(text) : text;
  try {
    const response = await call("/v1/grammars/validate", { model: fields.model.value, [field]: value });
    if (response.ok) return await response.json();
    return { valid: false, error: await faultOf(response) };
  } catch {
    return { valid: false, error: "The service does not answer." };
  }
}

// The answer ------------------------------------------------------------------------------------

const answer = { controller: null, job: "", began: 0, count: 0, finish: "", stopped: false, effect: null };

function startAnswer() {
  Object.assign(answer, { controller: new AbortController(), job: "", began: performance.now(), first: 0, count: 0, finish: "", stopped: false, effect: null });
  find("#tokens").replaceChildren();
  find("#text").textContent = "";
  find("#token").textContent = "\u00a0";
  find("#facts").replaceChildren();
  show(find("#facts"), false);
  fault("");
  find("#run").disabled = true;
  find("#stop").disabled = false;
  find("#state").textContent = "Waiting …";
}

function endAnswer() {
  find("#run").disabled = false;
  find("#stop").disabled = true;
  const seconds = (performance.now() - answer.began) / 1000;
  find("#state").textContent = answer.stopped ? "Stopped" : answer.finish ? `Ended: ${answer.finish}` : "";
  if (!answer.count && !answer.job) return;
  const decode = seconds - (answer.first ? (answer.first - answer.began) / 1000 : 0);
  const facts = [
    ["Tokens", String(answer.count)], ["Time", `${seconds.toFixed(2)} s`],
    ["Speed", answer.count > 1 && decode > 0 ? `${((answer.count - 1) / decode).toFixed(1)} tokens/s` : "–"],
  ];
  if (answer.effect) {
    facts.push(["Forced", `${answer.effect.forced_tokens} tokens: the only ones that the constraint allowed`]);
    facts.push(["Overruled", `${share(answer.effect.overruled_share)} of the tokens: another was likeliest and not allowed`]);
  }
  for (const [name, value] of facts) fact(name, document.createTextNode(value));
  if (answer.job) {
    const link = Object.assign(document.createElement("a"), { className: "q-link", textContent: answer.job });
    link.href = form.dataset.job.replace("JOB", encodeURIComponent(answer.job));
    fact("Job", link);
  }
  show(find("#facts"), true);
}

// The share of steps whose likeliest token the constraint refused, among those in which it left a choice.
const share = (part) => (part === null ? "no choice was left" : `${Math.round(100 * part)} % of the likeliest tokens`);

function fact(name, node) {
  const title = document.createElement("dt"), value = document.createElement("dd");
  title.textContent = name;
  value.append(node);
  find("#facts").append(title, value);
}

function fault(message) {
  find("#fault").textContent = message;
  show(find("#fault"), Boolean(message));
}

async function run() {
  let document;
  try { document = body(); } catch (error) { fault(error.message); return; }
  answer.path = path();
  startAnswer();
  try {
    const response = await call(answer.path, document, answer.controller.signal);
    if (!response.ok) { fault(await faultOf(response)); return; }
    for await (const event of eventsOf(response.body)) take(event);
  } catch (error) {
    if (error.name !== "AbortError") fault("The connection to the service was lost.");
  } finally {
    endAnswer();
  }
}

// The objects in a stream of server-sent events.
async function* eventsOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (held + value).split("\n");
    held = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

function take(event) {
  if (event.error) {
    if (!answer.stopped) fault(event.error.message);
    return;
  }
  answer.job ||= event.id;
  for (const choice of event.choices ?? []) {
    const { delta = {}, logprobs } = choice;
    const calls = (delta.tool_calls ?? []).map((each) => each.function?.arguments ?? "").join("");
    find("#text").append((choice.text ?? delta.content ?? "") + (delta.reasoning ?? delta.reasoning_content ?? "") + calls);
    for (const token of scored(logprobs)) addToken(token);
    answer.finish = choice.finish_reason ?? answer.finish;
    answer.effect = choice.meta_info?.constraint ?? answer.effect;
  }
  if (answer.count) find("#state").textContent = `${answer.count} tokens`;
}

// {text, logprob, likeliest, forced} of each token, from the form of either route.
function scored(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content) {
    return logprobs.content.map((each) => ({
      text: each.token, logprob: each.logprob, forced: each.forced, likeliest: each.top_logprobs.map((top) => [top.token, top.logprob]),
    }));
  }
  return logprobs.tokens.map((text, index) => ({
    text, logprob: logprobs.token_logprobs[index], forced: logprobs.forced?.[index],
    likeliest: Object.entries(logprobs.top_logprobs[index] ?? {}).sort((a, b) => b[1] - a[1]).slice(0, LIKELIEST),
  }));
}

const percent = (logprob) => (logprob === null ? "unknown" : `${(100 * Math.exp(logprob)).toPrecision(3)} %`);

function addToken({ text, logprob, likeliest, forced }) {
  const span = document.createElement("span");
  span.textContent = text;
  span.className = forced ? "q-token q-forced" : "q-token";
  span.tabIndex = 0;
  const probability = logprob === null ? 0 : Math.exp(logprob);
  span.style.setProperty("--p", probability.toFixed(3));
  const others = likeliest.map(([other, score]) => `${JSON.stringify(other)} ${percent(score)}`).join(", ");
  const cause = forced ? " Forced: the constraint allowed no other token." : "";
  span.dataset.details = `${JSON.stringify(text)} ${percent(logprob)}.${cause} Likeliest here: ${others || "unknown"}`;
  span.title = span.dataset.details;
  const output = find("#tokens");
  const follows = output.scrollTop + output.clientHeight >= output.scrollHeight - 20;
  output.append(span);
  if (follows) output.scrollTop = output.scrollHeight;
  if (!answer.count) answer.first = performance.now();
  answer.count++;
}

async function stop() {
  answer.stopped = true;
  find("#stop").disabled = true;
  // The hang-up cancels the job too; a proxy may hide it for a while, so cancel it explicitly.
  if (answer.job) await call(`${answer.path}/${answer.job}/cancel`, {}).catch(() => {});
  answer.controller.abort();
}

// Copying ---------------------------------------------------------------------------------------

const WRITERS = { curl: asCurl, python: asPython, line: asBatchLine };

async function copy(form_) {
  const area = find("#copy"), result = find("#copied");
  let text;
  try { text = WRITERS[form_](location.origin, path(), body()); } catch (error) { fault(error.message); return; }
  fault("");
  result.textContent = await copyFrom(area, text);
}

// Wiring ----------------------------------------------------------------------------------------

function press(name, value) {
  for (const button of form.querySelectorAll(`[data-${name}]`)) button.setAttribute("aria-pressed", button.dataset[name] === value);
}

function setMode(wanted) {
  mode = wanted;
  press("mode", mode);
  for (const pane of form.querySelectorAll("[data-pane]")) show(pane, pane.dataset.pane === mode);
}

function checkChat() {
  const chats = Boolean(fields.model.selectedOptions[0]?.dataset.chats);
  find("[data-mode=messages]").disabled = !chats;
  if (!chats) setMode("tokens");
}

const editor = new ConstraintEditor(form, judge);
addMessage("user", "Name three colours.");
form.addEventListener("submit", (event) => { event.preventDefault(); run(); });
find("#add").addEventListener("click", () => addMessage());
find("#stop")?.addEventListener("click", stop);
fields.model.addEventListener("change", checkChat);
for (const button of form.querySelectorAll("[data-mode]")) button.addEventListener("click", () => setMode(button.dataset.mode));
for (const button of form.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button.dataset.copy));
for (const button of form.querySelectorAll("[data-shown]")) {
  button.addEventListener("click", () => {
    press("shown", button.dataset.shown);
    for (const name of ["tokens", "text"]) show(find(`#${name}`), name === button.dataset.shown);
  });
}
for (const kind of ["focusin", "pointerover", "click"]) {
  find("#tokens").addEventListener(kind, ({ target }) => { if (target.dataset.details) find("#token").textContent = target.dataset.details; });
}
// The request of a job that the page was opened with.
function fill(given) {
  for (const name of ["model", "key", "max_tokens", "temperature", "top_p", "seed"]) {
    const before = fields[name].value;
    if (given[name] !== null) fields[name].value = given[name];
    if (!fields[name].value) fields[name].value = before; // a model or key that may no longer run
  }
  fields.ids.value = given.prompt.join(", ");
  if (given.constraint) editor.put(...given.constraint);
  checkChat();
  setMode("tokens");
}

checkChat();
const given = JSON.parse(document.getElementById("given").textContent);
if (given) fill(given);
