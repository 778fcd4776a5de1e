// Unfold writes icons as words in a font of ligatures, and a screen reader would read them aloud.
// A button or link that shows nothing but an icon gets its word as a name.

const NAMES = { more_vert: "more actions" };
const ICON = ".material-symbols-outlined:not([aria-hidden])";

function hideIcon(icon) {
  icon.setAttribute("aria-hidden", "true");
  const control = icon.closest("a, button");
  if (!control || control.ariaLabel || control.title) return;
  const copy = control.cloneNode(true);
  copy.querySelectorAll(".material-symbols-outlined").forEach((each) => each.remove());
  const word = icon.textContent.trim();
  if (!copy.textContent.trim()) control.ariaLabel = NAMES[word] ?? word.replaceAll("_", " ");
}

// On a phone each cell has its column's name beside it; unfold names the first one after the checkbox of other lists.
function nameFirstCells() {
  const title = document.querySelector("#result_list thead th")?.textContent.trim();
  for (const cell of document.querySelectorAll("#result_list tbody tr > :first-child[data-label]:not(:has(input))")) cell.dataset.label = title;
}

document.addEventListener("DOMContentLoaded", () => {
  nameFirstCells();
  const hideAll = () => {
    document.querySelectorAll(ICON).forEach(hideIcon);
    // Django names these, which only an element with a role may be.
    document.querySelectorAll(".help-tooltip:not([role])").forEach((each) => each.setAttribute("role", "img"));
  };
  hideAll();
  new MutationObserver(hideAll).observe(document.body, { childList: true, subtree: true });
});
