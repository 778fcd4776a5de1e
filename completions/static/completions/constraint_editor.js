// The editor of a constraint, which marks in the text what the service says about it.

const WAIT = 300; // ms without a key press before the text is judged

export class ConstraintEditor {
  // `kind` chooses the field. `judge` takes it and its text, and returns the service's verdict.
  constructor(side, kind, judge) {
    this.kind = kind;
    this.judge = judge;
    this.frame = side.querySelector("[data-part=editor]");
    this.backdrop = this.frame.querySelector("pre");
    this.area = this.frame.querySelector("textarea");
    this.verdict = side.querySelector("[data-part=verdict]");
    this.texts = {};
    this.asked = 0;
    this.area.addEventListener("input", () => this.changed());
    this.area.addEventListener("scroll", () => this.follow());
    kind.addEventListener("change", () => this.switched());
    this.switched();
  }

  get field() { return this.kind.value; }
  get text() { return this.area.value; }
  get isSet() { return Boolean(this.field && this.text.trim()); }
  get option() { return this.kind.selectedOptions[0].dataset; }
  get kept() { return this.shown ? { ...this.texts, [this.shown]: this.text } : this.texts; }

  // Show a field with its text, of the texts by field.
  put(field, texts) {
    this.texts = texts;
    this.shown = null; // what is shown now is not kept as the text of its field
    this.kind.value = field;
    this.switched();
  }

  // The constraint as JSON. A JSON object is sent as an object; other text as it is, and the service says what is wrong.
  get json() {
    try {
      const value = this.option.object ? JSON.parse(this.text) : null;
      if (value !== null && typeof value === "object" && !Array.isArray(value)) return this.text.trim();
    } catch { /* sent as a text */ }
    return JSON.stringify(this.text);
  }

  switched() {
    if (this.shown) this.texts[this.shown] = this.text;
    this.shown = this.field;
    this.frame.hidden = !this.shown;
    if (this.shown) {
      this.area.value = this.texts[this.shown] ?? this.option.example;
    }
    this.changed();
  }

  changed() {
    this.say("");
    this.mark(null);
    clearTimeout(this.timer);
    const number = ++this.asked;
    if (!this.isSet) return;
    this.say("Judging …");
    this.timer = setTimeout(async () => {
      const verdict = await this.judge(this.field, this.text);
      if (number === this.asked) this.tell(verdict);
    }, WAIT);
  }

  tell(verdict) {
    if (verdict.valid) {
      const notes = verdict.warnings.map((each) => `${each.pointer}: ${each.message ?? each.keyword}`);
      this.say(["Valid.", ...notes].join(" "), "good");
      return;
    }
    const at = this.placeOf(verdict);
    const where = at === null ? "" : `Line ${lineOf(this.text, at)}, column ${columnOf(this.text, at)}: `;
    this.say(where + verdict.error, "bad");
    this.mark(at);
  }

  // The offset of what is wrong: a line and column, or the value at a JSON pointer.
  placeOf({ line, column, pointer, error }) {
    if (line) return offsetOf(this.text, line, column ?? 1);
    if (pointer !== null && pointer !== undefined) return offsetOfPointer(this.text, pointer);
    const place = /line (\d+)(?:,)? column (\d+)/.exec(error ?? "");
    return place ? offsetOf(this.text, Number(place[1]), Number(place[2])) : null;
  }

  say(words, tone = "") {
    this.verdict.textContent = words;
    this.verdict.dataset.tone = tone;
    this.area.setAttribute("aria-invalid", tone === "bad");
  }

  mark(at) {
    const text = this.text;
    this.backdrop.replaceChildren();
    if (at === null) return;
    const place = document.createElement("mark");
    const rest = text.slice(at);
    const length = Math.max(1, /^(?:[\w-]+|[^\n])?/u.exec(rest)[0].length);
    place.textContent = rest.slice(0, length).replace("\n", "") || " ";
    place.dataset.line = lineOf(text, at);
    place.dataset.column = columnOf(text, at);
    this.backdrop.append(text.slice(0, at), place, text.slice(at + length), "\n");
    this.follow();
  }

  follow() {
    this.backdrop.scrollTop = this.area.scrollTop;
    this.backdrop.scrollLeft = this.area.scrollLeft;
  }
}

// Columns count characters, not UTF-16 units.
function offsetOf(text, line, column) {
  const lines = text.split("\n");
  const above = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
  const before = [...(lines[line - 1] ?? "")].slice(0, column - 1).join("").length;
  return Math.min(text.length, above + before);
}

const lineOf = (text, at) => text.slice(0, at).split("\n").length;
const columnOf = (text, at) => [...text.slice(text.lastIndexOf("\n", at - 1) + 1, at)].length + 1;

// Where the value of a JSON pointer begins in a document; its name's place if it has one. Null if
// the document has no such value.
export function offsetOfPointer(text, pointer) {
  const wanted = pointer.split("/").slice(1).map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
  let at = 0;
  const blank = () => { while (/\s/.test(text[at] ?? "")) at++; };
  const string = () => {
    const begin = at++;
    while (at < text.length && text[at] !== '"') at += text[at] === "\\" ? 2 : 1;
    at++;
    return JSON.parse(text.slice(begin, at));
  };
  const skip = () => { // a whole value
    blank();
    if (text[at] === '"') { string(); return; }
    if (text[at] !== "{" && text[at] !== "[") { while (at < text.length && !/[,\]}\s]/.test(text[at])) at++; return; }
    let depth = 0;
    do {
      if (text[at] === '"') { string(); continue; }
      if ("{[".includes(text[at])) depth++;
      if ("}]".includes(text[at])) depth--;
      at++;
    } while (depth && at < text.length);
  };
  const find = (depth) => {
    blank();
    if (depth === wanted.length) return at;
    const open = text[at++];
    for (let index = 0; at < text.length; index++) {
      blank();
      if ("}]".includes(text[at])) return null;
      const begin = at;
      const name = open === "{" ? string() : String(index);
      if (open === "{") { blank(); at++; }
      if (name === wanted[depth]) return depth + 1 === wanted.length && open === "{" ? begin : find(depth + 1);
      skip();
      blank();
      if (text[at] === ",") at++;
    }
    return null;
  };
  try { return find(0); } catch { return null; }
}
