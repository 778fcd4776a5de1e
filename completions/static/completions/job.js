// The page of a job: its request once more, as a background job or as a command to copy.

import { asCurl, asJson, copyFrom } from "./requests.js";

const frame = document.getElementById("again");
const find = (selector) => frame.querySelector(selector);
const entries = Object.entries(JSON.parse(document.getElementById("body").textContent));

find("#curl").addEventListener("click", async () => {
  const area = document.getElementById("copy");
  find("#said").textContent = await copyFrom(area, asCurl(location.origin, "/v1/completions", entries));
});

find("#run")?.addEventListener("click", async ({ target }) => {
  target.disabled = true;
  const headers = { "Content-Type": "application/json", "X-Quire-Key": frame.dataset.key, "X-CSRFToken": find("[name=csrfmiddlewaretoken]").value };
  try {
    const body = asJson([...entries.filter(([name]) => name !== "rid"), ["background", "true"]]);
    const response = await fetch(frame.dataset.path, { method: "POST", headers, body });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error.message);
    location.href = frame.dataset.job.replace("JOB", encodeURIComponent(answer.id));
  } catch (error) {
    target.disabled = false;
    find("#said").textContent = error.message;
  }
});
