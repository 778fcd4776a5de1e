// An answer as it streams: its tokens by probability, its text, and what came as JSON. Each of several samples has a
// part of its own, and is checked against the constraint.

const share = (part) => (part === null ? "no choice was left" : `${Math.round(100 * part)} % of the likeliest tokens were not allowed`);
const percent = (logprob) => (logprob === null ? "unknown" : `${(100 * Math.exp(logprob)).toPrecision(3)} %`);
const show = (element, visible) => { element.hidden = !visible; };

export class Answer {
  constructor(card, jobAddress) {
    this.find = (part) => card.querySelector(`[data-part=${part}]`);
    this.jobAddress = jobAddress;
    for (const button of card.querySelectorAll("[data-shown]")) {
      button.addEventListener("click", () => this.choose(card, button.dataset.shown));
    }
    for (const kind of ["focusin", "pointerover", "click"]) {
      this.find("tokens").addEventListener(kind, ({ target }) => { if (target.dataset.details) this.find("token").textContent = target.dataset.details; });
    }
    this.clear();
  }

  choose(card, shown) {
    for (const button of card.querySelectorAll("[data-shown]")) button.setAttribute("aria-pressed", button.dataset.shown === shown);
    for (const name of ["tokens", "text", "json"]) show(this.find(name), name === shown);
  }

  clear() {
    Object.assign(this, { job: "", events: [], samples: [], began: 0, first: 0, count: 0, finish: "", stopped: false, seconds: 0 });
    for (const name of ["tokens", "text", "json", "facts"]) this.find(name).replaceChildren();
    this.find("token").textContent = "\u00a0";
    show(this.find("facts"), false);
    this.say("");
    this.fault("");
  }

  begin() {
    this.clear();
    this.began = performance.now();
    this.say("Waiting …");
  }

  say(words) { this.find("state").textContent = words; }

  fault(message) {
    this.find("fault").textContent = message;
    show(this.find("fault"), Boolean(message));
  }

  // Take one object of the stream, or the whole response.
  take(event) {
    this.events.push(event);
    this.find("json").append(`${JSON.stringify(event, null, 2)}\n`);
    if (event.error) {
      if (!this.stopped) this.fault(event.error.message);
      return;
    }
    this.job ||= event.id;
    for (const choice of event.choices ?? []) this.takeChoice(choice);
    if (event.status && !event.choices?.length) this.finish ||= event.status;
    if (this.count) this.say(`${this.count} tokens`);
  }

  takeChoice(choice) {
    const sample = (this.samples[choice.index ?? 0] ??= this.addSample(choice.index ?? 0));
    const message = choice.delta ?? choice.message ?? {};
    const content = choice.text ?? message.content ?? "";
    for (const call of message.tool_calls ?? []) addCall(sample.calls, call);
    const calls = (message.tool_calls ?? []).map((each) => each.function?.arguments ?? each.custom?.input ?? "").join("");
    sample.content += content;
    sample.text.append((message.reasoning ?? message.reasoning_content ?? "") + content + calls);
    for (const token of scored(choice.logprobs)) this.addToken(sample.tokens, token);
    if (choice.finish_reason) sample.finish = this.finish = choice.finish_reason;
    sample.effect = choice.meta_info?.constraint ?? sample.effect;
  }

  // Return the parts of a sample; with several, each has a title.
  addSample(index) {
    const sample = { content: "", finish: "", calls: [], valid: null, titles: [] };
    for (const name of ["tokens", "text"]) {
      const block = document.createElement("div"), title = document.createElement("p");
      title.className = "q-faint";
      sample[name] = document.createElement("div");
      sample.titles.push(title);
      block.append(title, sample[name]);
      this.find(name).append(block);
    }
    this.samples[index] = sample;
    return sample;
  }

  addToken(place, { text, logprob, likeliest, forced }) {
    const span = document.createElement("span");
    span.textContent = text;
    span.className = forced ? "q-token q-forced" : "q-token";
    span.tabIndex = 0;
    span.style.setProperty("--p", (logprob === null ? 0 : Math.exp(logprob)).toFixed(3));
    const others = likeliest.map(([other, score]) => `${JSON.stringify(other)} ${percent(score)}`).join(", ");
    const cause = forced ? " Forced: the constraint allowed no other token." : "";
    span.dataset.details = `${JSON.stringify(text)} ${percent(logprob)}.${cause} Likeliest here: ${others || "unknown"}`;
    span.title = span.dataset.details;
    const output = this.find("tokens");
    const follows = output.scrollTop + output.clientHeight >= output.scrollHeight - 20;
    place.append(span);
    if (follows) output.scrollTop = output.scrollHeight;
    if (!this.count) this.first = performance.now();
    this.count++;
  }

  // Show how it ended. `check` returns whether a text matches the constraint; null if nobody knows.
  async end(check) {
    this.seconds ||= (performance.now() - this.began) / 1000;
    this.say(this.stopped ? "Stopped" : this.finish ? `Ended: ${this.finish}` : "");
    if (!this.events.length) return;
    this.tell();
    const samples = this.samples.filter(Boolean);
    for (const sample of check ? samples : []) sample.valid ??= await check(sample.content);
    if (check) this.tell();
  }

  tell() {
    const samples = this.samples.filter(Boolean);
    const decode = this.seconds - (this.first ? (this.first - this.began) / 1000 : 0);
    const facts = [["Tokens", String(this.count)], ["Time", `${this.seconds.toFixed(2)} s`]];
    if (this.count > 1 && this.first && decode > 0) facts.push(["Speed", `${((this.count - 1) / decode).toFixed(1)} tokens/s`]);
    const effects = samples.map((sample) => sample.effect).filter(Boolean);
    if (effects.length) {
      const forced = effects.reduce((sum, effect) => sum + effect.forced_tokens, 0);
      facts.push(["Forced", `${forced} tokens: the only ones that the constraint allowed`]);
      const shares = effects.map((effect) => share(effect.overruled_share)).join(", ");
      facts.push(["Overruled", shares]);
    }
    const checked = samples.filter((sample) => sample.valid !== null);
    if (checked.length) {
      const valid = checked.filter((sample) => sample.valid).length;
      facts.push(["Valid", `${valid} of ${checked.length} (${Math.round((100 * valid) / checked.length)} %) match the constraint`]);
    }
    samples.forEach((sample, index) => {
      const words = [`Sample ${index + 1}`, sample.finish, { true: "valid", false: "not valid" }[sample.valid] ?? ""];
      for (const title of sample.titles) title.textContent = samples.length > 1 ? words.filter(Boolean).join(" · ") : "";
    });
    this.find("facts").replaceChildren(...facts.flatMap(([name, value]) => fact(name, value)));
    if (this.job) {
      const link = Object.assign(document.createElement("a"), { className: "q-link", textContent: this.job });
      link.href = this.jobAddress.replace("JOB", encodeURIComponent(this.job));
      this.find("facts").append(...fact("Job", link));
    }
    show(this.find("facts"), true);
  }

  // What a reload keeps.
  get kept() { return { events: this.events, seconds: this.seconds, stopped: this.stopped, valid: this.samples.map((sample) => sample?.valid ?? null) }; }

  restore({ events, seconds, stopped, valid }) {
    this.clear();
    for (const event of events) this.take(event);
    this.samples.forEach((sample, index) => { sample.valid = valid[index]; });
    Object.assign(this, { seconds, stopped, first: 0 });
    this.end(null);
  }
}

function fact(name, value) {
  const title = document.createElement("dt"), text = document.createElement("dd");
  title.textContent = name;
  text.append(value);
  return [title, text];
}

// Put a piece of a tool call to those before it.
function addCall(calls, { index = calls.length, ...piece }) {
  const call = (calls[index] ??= { id: piece.id, type: piece.type ?? "function" });
  const body = (call[call.type] ??= {});
  for (const [name, text] of Object.entries(piece[call.type] ?? {})) body[name] = name === "name" ? text : (body[name] ?? "") + text;
}

// {text, logprob, likeliest, forced} of each token, from the form of either route.
function scored(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content) {
    return logprobs.content.map((each) => ({
      text: each.token, logprob: each.logprob, forced: each.forced, likeliest: each.top_logprobs.map((top) => [top.token, top.logprob]),
    }));
  }
  return (logprobs.tokens ?? []).map((text, index) => ({
    text, logprob: logprobs.token_logprobs[index], forced: logprobs.forced?.[index],
    likeliest: Object.entries(logprobs.top_logprobs?.[index] ?? {}).sort((a, b) => b[1] - a[1]).slice(0, 5),
  }));
}
