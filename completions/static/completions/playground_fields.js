// The inputs of a request's parameters, whose table the server has.

export class Parameters {
  constructor(form) {
    this.inputs = [...form.querySelectorAll("[data-parameter]")];
    this.groups = [...form.querySelectorAll("details[data-group]")];
    form.querySelector("#find").addEventListener("input", ({ target }) => this.find(target.value.trim().toLowerCase()));
  }

  // The parameters that are set and that the route has, as [name, value in JSON].
  entries(route) {
    return this.inputs.filter((input) => isSet(input) && isFor(input, route)).map((input) => [input.dataset.parameter, read(input)]);
  }

  get texts() {
    return Object.fromEntries(this.inputs.filter((input) => input.value !== "").map((input) => [input.name, input.value]));
  }

  set texts(texts) {
    for (const input of this.inputs) input.value = texts[input.name] ?? "";
  }

  show(route) {
    for (const input of this.inputs) input.closest("label").hidden = !isFor(input, route);
    this.count(route);
  }

  count(route) {
    for (const group of this.groups) {
      const own = this.inputs.filter((input) => group.contains(input) && isFor(input, route));
      const set = own.filter(isSet).length;
      group.hidden = !own.length;
      group.querySelector("[data-count]").textContent = set ? `${set} set` : "";
    }
  }

  find(words) {
    for (const group of this.groups) {
      let some = false;
      for (const label of group.querySelectorAll("label")) {
        const fits = label.textContent.toLowerCase().includes(words);
        label.classList.toggle("q-other", !fits);
        some ||= fits && !label.hidden;
      }
      group.open = Boolean(words) && some;
    }
  }
}

const isSet = (input) => input.value !== "" || Boolean(input.validity.badInput);
const isFor = (input, route) => input.dataset.routes.split(" ").includes(route);

function read(input) {
  const { parameter, reads } = input.dataset;
  if (!input.checkValidity()) throw new Error(`${parameter}: ${input.validationMessage}`);
  if (reads === "text") return JSON.stringify(input.value);
  try {
    JSON.parse(input.value);
    return input.value.trim();
  } catch {
    if (reads === "either") return JSON.stringify(input.value);
    if (input.type === "number") return String(Number(input.value)); // such as .5
    throw new Error(`${parameter}: this is not JSON.`);
  }
}
