// The lines of a batch: each is fetched when it is opened, and shown as trees of JSON.

const OPEN_DEPTH = 6; // levels of a tree that are open at first
const lines = document.getElementById("lines");

function tree(value, name = null, depth = 0) {
  const title = name === null ? "" : `${name}: `;
  if (value === null || typeof value !== "object" || !Object.keys(value).length) {
    const row = document.createElement("div"), shown = document.createElement("span");
    row.className = "q-leaf";
    shown.className = `q-json-${value === null ? "null" : typeof value}`;
    shown.textContent = typeof value === "string" ? value : JSON.stringify(value);
    row.append(named(title), shown);
    return row;
  }
  const node = document.createElement("details"), summary = document.createElement("summary");
  const count = Object.keys(value).length;
  node.open = depth < OPEN_DEPTH;
  summary.append(named(title), Array.isArray(value) ? `[${count}]` : `{${count}}`);
  node.append(summary, ...Object.entries(value).map(([key, each]) => tree(each, key, depth + 1)));
  return node;
}

function named(title) {
  const span = document.createElement("span");
  span.className = "q-name";
  span.textContent = title;
  return span;
}

async function open(line) {
  if (line.dataset.loaded || line.classList.contains("q-closed")) return;
  line.dataset.loaded = "yes";
  const parts = [...line.querySelectorAll("[data-part]")];
  try {
    const response = await fetch(`${lines.dataset.lines}${line.dataset.number}/`);
    if (!response.ok) throw new Error(`The service answered ${response.status}.`);
    const found = await response.json();
    for (const part of parts) {
      const value = found[part.dataset.part];
      part.replaceChildren(value === null ? "No longer there." : tree(part.dataset.part === "request" ? value.body ?? value : value));
    }
  } catch (error) {
    delete line.dataset.loaded;
    for (const part of parts) part.textContent = error.message;
  }
}

lines?.addEventListener("toggle", ({ target }) => { if (target.open && target.dataset.number) open(target); }, true);
