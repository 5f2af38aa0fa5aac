// Shows what would be spoken of a text, before it is.

import * as api from "./api.js";
import { element, find } from "./dom.js";
import { clearErrors, fieldsAreValid, placeError } from "./fields.js";

// `fields`: gives those of the text that is in the form.
export function setUpPreview(fields) {
  find("preview-text").addEventListener("click", () => preview(fields));
  find("speak").addEventListener("input", hide);
}

function hide() {
  find("plan").hidden = true;
}

async function preview(fields) {
  clearErrors(find("speak"));
  hide();
  if (!fieldsAreValid(find("speak"))) return;
  try {
    const { items, warnings } = await api.planText(fields());
    find("plan-items").replaceChildren(...items.map(line));
    find("plan-warnings").replaceChildren(...warnings.map((text) => element("p", { textContent: api.sentence(text) })));
    find("plan").hidden = false;
  } catch (error) {
    placeError(find("speak"), error);
  }
}

function line(item) {
  if (item.type === "silence") return element("li", { className: "hint" }, `${item.seconds} s of silence`);
  const traits = [item.voice, item.language === "Auto" ? null : item.language, factor("tempo", item.rate), factor("volume", item.gain)];
  const how = traits.filter(Boolean).join(", ");
  return element("li", {}, item.text.trim() || "–", ...(how ? [element("span", { className: "hint" }, how)] : []));
}

const factor = (name, value) => (value === 1 ? null : `${name} ${value}`);
