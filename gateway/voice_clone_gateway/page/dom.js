// Helpers of all parts of the page.

export const find = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// An icon of the sprite in the page.
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

// Shows an error in the box `${id}-error`, which stands beside the element `id`; without an error it hides the box.
export function showError(id, error) {
  const box = find(`${id}-error`);
  box.hidden = !error;
  box.textContent = error?.message ?? "";
  const field = find(id);
  if (!field || !("validity" in field)) return;
  if (error) field.setAttribute("aria-invalid", "true");
  else field.removeAttribute("aria-invalid");
}

// Disables a button while it works, and says on it what it does.
export function busy(id, text, on = true) {
  find(id).disabled = on;
  find(id).textContent = text;
}

// Opens a dialog; returns the value of the button that closed it.
export function ask(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
  });
}

// Asks before something that cannot be undone; returns whether to do it. `action` is the button that does it.
export async function confirmed({ title, text, action }) {
  find("question-title").textContent = title;
  find("question-text").textContent = text;
  find("question-do").textContent = action;
  return (await ask(find("question"))) === "do";
}
