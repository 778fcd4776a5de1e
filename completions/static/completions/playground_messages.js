// The messages of a conversation, as rows of a form.

const ROLES = ["system", "developer", "user", "assistant", "tool"];
const EXAMPLES = { assistant: '{"tool_calls": […]}', tool: '{"tool_call_id": "call_1"}' };

export class Messages {
  constructor(list) { this.list = list; }

  add({ role = "user", content = "", more = "" } = {}) {
    const row = document.createElement("div");
    row.className = "q-message";
    const select = make("select", { className: "q-input", ariaLabel: "Role" });
    select.append(...ROLES.map((each) => new Option(each, each, false, each === role)));
    const remove = make("button", { type: "button", className: "q-button", textContent: "Remove" });
    const area = make("textarea", { className: "q-input", rows: 3, value: content, ariaLabel: "Content" });
    const fields = make("textarea", { className: "q-input q-code", rows: 1, value: more, ariaLabel: "Further fields, as JSON" });
    const showFields = () => {
      fields.placeholder = EXAMPLES[select.value] ?? "";
      fields.hidden = !EXAMPLES[select.value] && !fields.value;
    };
    select.addEventListener("change", showFields);
    remove.addEventListener("click", () => {
      row.remove();
      this.list.dispatchEvent(new Event("input", { bubbles: true }));
    });
    showFields();
    row.append(select, remove, area, fields);
    this.list.append(row);
  }

  get drafts() {
    return [...this.list.children].map((row) => {
      const [content, more] = row.querySelectorAll("textarea");
      return { role: row.querySelector("select").value, content: content.value, more: more.value };
    });
  }

  set drafts(drafts) {
    this.list.replaceChildren();
    for (const draft of drafts) this.add(draft);
  }

  // The messages in JSON. Throws an Error that says what to change.
  get json() {
    const parts = this.drafts.map(({ role, content, more }, index) => {
      const fields = [`"role": ${JSON.stringify(role)}`];
      if (content || !more.includes("tool_calls")) fields.push(`"content": ${JSON.stringify(content)}`);
      if (more.trim()) {
        if (!isObject(more)) throw new Error(`messages[${index}]: the further fields are no JSON object.`);
        fields.push(more.trim().slice(1, -1).trim());
      }
      return `{${fields.filter(Boolean).join(", ")}}`;
    });
    return `[${parts.join(", ")}]`;
  }

  // Go on from an answer: it is the next message, and results of its calls or a question follow.
  continueWith({ content, calls }) {
    this.add({ role: "assistant", content, more: calls.length ? JSON.stringify({ tool_calls: calls }) : "" });
    for (const call of calls) this.add({ role: "tool", more: JSON.stringify({ tool_call_id: call.id }) });
    if (!calls.length) this.add();
    this.list.dispatchEvent(new Event("input", { bubbles: true }));
  }
}

const make = (name, properties) => Object.assign(document.createElement(name), properties);

function isObject(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value);
  } catch {
    return false;
  }
}
