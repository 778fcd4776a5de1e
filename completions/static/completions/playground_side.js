// One of the two requests that are compared: its model, its constraint and its answer.

import { ConstraintEditor } from "./constraint_editor.js";
import { Answer } from "./playground_answer.js";
import { schemaOf } from "./schema_from_example.js";

export class Side {
  // `call` sends [name, value in JSON] entries to a route as the chosen key.
  constructor(element, form, call) {
    const suffix = element.dataset.side;
    Object.assign(this, { element, call, controller: null });
    this.model = form.elements[`model${suffix}`];
    this.onlyChecks = form.elements[`only_checks${suffix}`];
    this.answer = new Answer(element.querySelector(".q-answer"), form.dataset.job);
    this.editor = new ConstraintEditor(element, form.elements[`kind${suffix}`], (field, text) => this.judge(field, text));
    this.model.addEventListener("change", () => this.editor.changed());
    form.elements.key.addEventListener("change", () => this.editor.changed());
    this.wireExample(element.querySelector("[data-part=example]"));
  }

  wireExample(details) {
    const area = details.querySelector("textarea"), said = details.querySelector("[role=status]");
    details.querySelector("button").addEventListener("click", () => {
      let example;
      try { example = JSON.parse(area.value); } catch (error) { said.textContent = `The example is not JSON: ${error.message}`; return; }
      said.textContent = "";
      details.open = false;
      this.editor.put("json_schema", { ...this.editor.kept, json_schema: JSON.stringify(schemaOf(example), null, 2) });
      this.editor.area.dispatchEvent(new Event("input", { bubbles: true }));
    });
  }

  get isShown() { return !this.element.hidden; }
  get chosen() { return this.model.selectedOptions[0]?.dataset ?? {}; }

  get draft() {
    return { model: this.model.value, kind: this.editor.field, texts: this.editor.kept, only_checks: this.onlyChecks.checked };
  }

  set draft({ model, kind, texts, only_checks }) {
    const before = this.model.value;
    this.model.value = model;
    if (!this.model.value) this.model.value = before; // a model that is no longer served
    this.onlyChecks.checked = only_checks;
    this.editor.put(kind, texts);
  }

  get sendsConstraint() { return this.editor.isSet && !this.onlyChecks.checked; }

  // What was set here, as entries of the request.
  get entries() { return this.sendsConstraint ? [[this.editor.field, this.editor.json]] : []; }

  async judge(field, text) {
    // A schema is sent as its text, so that an error has a line and a column. A grammar is an object.
    const value = field === "grammar" ? this.editor.json : JSON.stringify(text);
    try {
      const response = await this.call("/v1/grammars/validate", [["model", JSON.stringify(this.model.value)], [field, value]]);
      if (response.ok) return await response.json();
      return { valid: false, error: await faultOf(response) };
    } catch {
      return { valid: false, error: "The service does not answer." };
    }
  }

  // Whether a text matches the constraint, whatever white space JSON has in it; null if that is not known.
  async check(text) {
    const loose = this.editor.option.json ? [["json_whitespace", '"flexible"']] : [];
    const asked = [["model", JSON.stringify(this.model.value)], [this.editor.field, this.editor.json], ["text", JSON.stringify(text)], ...loose];
    try {
      const response = await this.call("/v1/grammars/validate", asked);
      return response.ok ? ((await response.json()).accepts ?? null) : null;
    } catch {
      return null;
    }
  }

  // Send the request and show its answer. `several` says that each sample is checked.
  async run(path, entries, several) {
    const checks = this.editor.isSet && (several || this.onlyChecks.checked);
    this.path = path;
    this.controller = new AbortController();
    this.answer.begin();
    try {
      const response = await this.call(path, entries, this.controller.signal);
      if (!response.ok) { this.answer.fault(await faultOf(response)); return; }
      const streams = response.headers.get("Content-Type")?.startsWith("text/event-stream");
      if (streams) for await (const event of eventsOf(response.body)) this.answer.take(event);
      else this.answer.take(await response.json());
    } catch (error) {
      if (error.name !== "AbortError") this.answer.fault("The connection to the service was lost.");
    } finally {
      this.controller = null;
      await this.answer.end(checks && !this.answer.stopped ? (text) => this.check(text) : null);
    }
  }

  async stop() {
    if (!this.controller) return;
    this.answer.stopped = true;
    // The hang-up cancels the job too; a proxy may hide it for a while, so cancel it explicitly.
    if (this.answer.job) await this.call(`${this.path}/${this.answer.job}/cancel`, []).catch(() => {});
    this.controller?.abort();
  }
}

async function faultOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The service answered ${response.status}. Reload this page.`;
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
