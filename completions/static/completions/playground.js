// The playground: builds a request, or two to compare, and keeps what the form holds.

import { Parameters } from "./playground_fields.js";
import { Messages } from "./playground_messages.js";
import { Side } from "./playground_side.js";
import { asBatchLine, asCurl, asJson, asPython, copyFrom } from "./requests.js";

const form = document.getElementById("play");
const fields = form.elements;
const find = (selector) => form.querySelector(selector);
const show = (element, visible) => { element.hidden = !visible; };
const CHAT = "/v1/chat/completions", PLAIN = "/v1/completions";
const LIKELIEST = "5";
const UNSTREAMED = ["background", "best_of", "prompt_logprobs"]; // not with stream
const KEPT = `quire-playground-${form.dataset.user}`, ANSWERS = `${KEPT}-answers`;

const parameters = new Parameters(form);
const messages = new Messages(find("#messages"));
const sides = [...form.querySelectorAll("[data-side]")].map((element) => new Side(element, form, call));
const shownSides = () => sides.filter((side) => side.isShown);

// The request -----------------------------------------------------------------------------------

let mode = "messages";
const route = () => (mode === "messages" ? "chat" : "plain");
const path = () => (mode === "messages" ? CHAT : PLAIN);

// What was set, as [name, value in JSON]. Throws an Error that says what to change.
function requestOf(side) {
  const prompt = { messages: () => messages.json, tokens: () => tokenIds(fields.tokens.value), text: () => JSON.stringify(fields.text.value) }[mode]();
  return [
    ["model", JSON.stringify(side.model.value)],
    [mode === "messages" ? "messages" : "prompt", prompt],
    ...parameters.entries(route()),
    ...side.entries,
  ];
}

// The request with what this page shows of an answer, where nothing else was set.
function sentBy(side) {
  const entries = requestOf(side), names = new Set(entries.map(([name]) => name));
  const added = [["stream", "true"], ...(mode === "messages" ? [["logprobs", "true"], ["top_logprobs", LIKELIEST]] : [["logprobs", LIKELIEST]])];
  if (side.sendsConstraint) added.push(["return_meta_info", "true"]); // how far it shaped the answer
  const skipped = new Set([
    ...names,
    ...(names.has("logprobs") ? ["top_logprobs"] : []),
    ...(UNSTREAMED.some((name) => names.has(name)) ? ["stream"] : []),
  ]);
  return [...entries, ...added.filter(([name]) => !skipped.has(name))];
}

// One prompt of token ids, or several, as JSON or as numbers with commas or spaces between them.
function tokenIds(text) {
  try {
    if (/^\s*\[\s*\[/.test(text)) return JSON.stringify(JSON.parse(text));
  } catch (error) { throw new Error(`The prompts are not JSON: ${error.message}`); }
  const parts = text.replace(/^\s*\[|\]\s*$/g, "").split(/[\s,]+/).filter(Boolean);
  const wrong = parts.find((part) => !/^\d+$/.test(part));
  if (wrong !== undefined) throw new Error(`“${wrong}” is no token id. Write whole numbers.`);
  return `[${parts.join(", ")}]`;
}

function call(route, entries, signal) {
  const headers = { "Content-Type": "application/json", "X-CSRFToken": form.dataset.csrf, [form.dataset.header]: fields.key.value };
  return fetch(form.dataset.calls + route.slice(1), { method: "POST", headers, body: asJson(entries), signal });
}

async function run() {
  if (!find("#run") || find("#run").disabled) return;
  const requests = attempt(() => shownSides().map((side) => [side, sentBy(side)]));
  if (!requests) return;
  const several = requests[0][1].some(([name, json]) => name === "n" && Number(json) > 1);
  find("#run").disabled = true;
  find("#stop").disabled = false;
  await Promise.all(requests.map(([side, entries]) => side.run(path(), entries, several)));
  find("#stop").disabled = true;
  find("#run").disabled = !fields.key.value;
  keepAnswers();
}

// What `make` returns; nothing, and its error is shown, where the form holds something wrong.
function attempt(make) {
  sides[0].answer.fault("");
  try { return make(); } catch (error) { sides[0].answer.fault(error.message); return null; }
}

const WRITERS = { curl: asCurl, python: asPython, line: asBatchLine };

async function copy(name) {
  const texts = attempt(() => shownSides().map((side) => WRITERS[name](location.origin, path(), requestOf(side))));
  if (texts) find("#copied").textContent = await copyFrom(find("#copy"), texts.join(name === "line" ? "\n" : "\n\n"));
}

// What the form holds ---------------------------------------------------------------------------

const draftNow = () => ({
  key: fields.key.value, mode, messages: messages.drafts, prompts: { tokens: fields.tokens.value, text: fields.text.value },
  values: parameters.texts, sides: shownSides().map((side) => side.draft),
});

function put(draft) {
  messages.drafts = draft.messages;
  for (const name of ["tokens", "text"]) fields[name].value = draft.prompts[name] ?? "";
  parameters.texts = draft.values;
  draft.sides.forEach((each, index) => { sides[index].draft = each; });
  wantedKey = draft.key || wantedKey;
  compare(draft.sides.length > 1);
  setMode(draft.mode);
}

// A reload, the way back and another visit find the form and the answers as they were.
function keep() {
  store(KEPT, draftNow());
  localStorage.setItem(KEPT, JSON.stringify({ key: wantedKey, model: fields.model.value }));
}

const keepAnswers = () => store(ANSWERS, shownSides().map((side) => side.answer.kept));

function store(name, value) {
  try { sessionStorage.setItem(name, JSON.stringify(value)); } catch { sessionStorage.removeItem(name); /* too long */ }
}

function takeStored(name) {
  const text = sessionStorage.getItem(name);
  sessionStorage.removeItem(name); // what cannot be put back is not tried again
  return JSON.parse(text);
}

function start() {
  const given = JSON.parse(document.getElementById("given").textContent);
  const kept = takeStored(KEPT), answers = takeStored(ANSWERS), last = JSON.parse(localStorage.getItem(KEPT));
  const [visit] = performance.getEntriesByType("navigation");
  const isAgain = ["reload", "back_forward"].includes(visit?.type);
  wantedKey = last?.key ?? "";
  if ([...fields.model.options].some((option) => option.value === last?.model)) fields.model.value = last.model;
  messages.add({ content: "Name three colours." });
  fields.max_tokens.value = "200";
  const draft = given && !isAgain ? given : kept ?? given;
  if (draft) put(draft);
  else setMode("messages");
  if (draft && draft === kept) (answers ?? []).forEach((answer, index) => { if (answer.events.length) sides[index].answer.restore(answer); });
  keep();
  keepAnswers();
}

// Keys, modes and sides -------------------------------------------------------------------------

let wantedKey = "";
const keys = [...fields.key.options];

// Offer the keys that may run every chosen model, and keep the one that was chosen.
function offerKeys() {
  const usable = keys.filter((option) => shownSides().every((side) => {
    const allowed = JSON.parse(option.dataset.models);
    return !allowed.length || allowed.includes(side.model.value) || allowed.includes(side.chosen.base);
  }));
  fields.key.replaceChildren(...usable);
  const isHere = usable.some((option) => option.value === wantedKey);
  if (usable.length) fields.key.value = isHere ? wantedKey : usable[0].value;
  show(find("#no-key"), keys.length > 0 && !usable.length);
  if (find("#run")) find("#run").disabled = !usable.length;
  for (const side of sides) side.editor.changed();
}

function setMode(wanted) {
  const is = (ability) => shownSides().every((side) => Boolean(side.chosen[ability]));
  const possible = { messages: is("chat"), tokens: true, text: is("text") };
  mode = possible[wanted] ? wanted : "tokens";
  for (const button of form.querySelectorAll("[data-mode]")) {
    button.disabled = !possible[button.dataset.mode];
    button.setAttribute("aria-pressed", button.dataset.mode === mode);
  }
  for (const pane of form.querySelectorAll("[data-pane]")) show(pane, pane.dataset.pane === mode);
  parameters.show(route());
}

function compare(both) {
  show(sides[1].element, both);
  form.classList.toggle("q-two-sides", both);
  find("#compare").setAttribute("aria-pressed", both);
  offerKeys();
}

// Presets ---------------------------------------------------------------------------------------

async function post(address, document) {
  const headers = { "Content-Type": "application/json", "X-CSRFToken": form.dataset.csrf };
  const response = await fetch(address, { method: "POST", headers, body: JSON.stringify(document) });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error.message);
  return answer;
}

const linkOf = (id) => `${form.dataset.calls}?preset=${id}`;

async function savePreset() {
  const name = prompt("Name of the preset", fields.preset.selectedOptions[0]?.dataset.name ?? "");
  if (!name?.trim()) return;
  try {
    const made = await post(`${form.dataset.presets}?name=${encodeURIComponent(name)}`, draftNow());
    keep();
    history.replaceState(null, "", linkOf(made.id));
    const option = [...fields.preset.options].find((each) => each.value === made.id) ?? new Option(made.name, made.id);
    option.dataset.name = made.name;
    fields.preset.append(option);
    fields.preset.value = made.id;
    sayPreset(`Saved. Its link is the address of this page.`);
  } catch (error) { sayPreset(error.message); }
}

async function deletePreset() {
  const id = fields.preset.value;
  if (!id || !confirm("Delete this preset? Its link stops working.")) return;
  try {
    await post(`${form.dataset.presets}${id}/delete/`, {});
    fields.preset.selectedOptions[0].remove();
    fields.preset.value = "";
    history.replaceState(null, "", form.dataset.calls);
    sayPreset("Deleted.");
  } catch (error) { sayPreset(error.message); }
}

const sayPreset = (words) => { find("#preset-said").textContent = words; };

// Wiring ----------------------------------------------------------------------------------------

function on(selector, action, kind = "click") {
  for (const element of form.querySelectorAll(selector)) element.addEventListener(kind, () => action(element.dataset));
}

form.addEventListener("submit", (event) => { event.preventDefault(); run(); });
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
});
form.addEventListener("input", () => { parameters.count(route()); keep(); });
form.addEventListener("click", () => setTimeout(keep));
on("#add", () => messages.add());
on("#stop", () => { for (const side of sides) side.stop(); });
on("[data-mode]", (data) => setMode(data.mode));
on("[data-copy]", (data) => copy(data.copy));
on("#compare", () => {
  if (!sides[1].isShown) sides[1].draft = sides[0].draft;
  compare(!sides[1].isShown);
  setMode(mode);
});
on("#continue", () => {
  const sample = sides[0].answer.samples.find(Boolean);
  if (sample && mode === "messages") messages.continueWith(sample);
});
on("#add-tool", () => {
  const known = fields["chat:tools"].value.trim();
  const tool = '{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"], "additionalProperties": false}}}';
  fields["chat:tools"].value = known.endsWith("]") && known !== "[]" ? `${known.slice(0, -1)}, ${tool}]` : `[${tool}]`;
  form.dispatchEvent(new Event("input"));
});
on("#save", savePreset);
on("#delete", deletePreset);
on("[name=preset]", () => { if (fields.preset.value) location.href = linkOf(fields.preset.value); }, "change");
on("[name=key]", () => { wantedKey = fields.key.value; }, "change");
for (const side of sides) side.model.addEventListener("change", () => { offerKeys(); setMode(mode); });

start();
offerKeys();
