// The choice of a model; it is shown if the server has several.

import * as api from "./api.js";
import { element, find } from "./dom.js";

// Suggestions for a model that says none.
const USUAL_LANGUAGES = [
  ...["Chinese", "English", "French", "German", "Italian"],
  ...["Japanese", "Korean", "Portuguese", "Russian", "Spanish"],
];

let models = []; // the default first, as GET /v1/models lists them

// The model to speak with; null for the server's default.
export const chosenModel = () => (find("model-field").hidden ? null : find("model").value);

const model = () => models.find(({ id }) => id === chosenModel()) ?? models[0];

// The family that speaks; null if the models are not known.
export const chosenFamily = () => model()?.root ?? null;

// Shows the fields that not every model has.
export function showTraits() {
  find("instructions-field").hidden = !model()?.instructions;
  find("voiceless-field").hidden = !model()?.voiceless;
  const languages = model()?.languages.length ? model().languages : USUAL_LANGUAGES;
  find("languages").replaceChildren(...languages.map((textContent) => element("option", { textContent })));
  const options = Object.entries(model()?.options ?? {}).filter(([name]) => name !== model().instructions_option);
  find("own-options").replaceChildren(...options.map(([name, meaning]) => optionField(name, meaning)));
}

// An input for an option that only this model has; empty: the model's default.
function optionField(name, meaning) {
  const id = `option-${name}`;
  const input = element("input", { id, title: meaning, placeholder: "default", autocomplete: "off" });
  const error = element("p", { id: `${id}-error`, className: "error", role: "alert", hidden: true });
  input.setAttribute("aria-describedby", error.id);
  return element("div", {}, element("label", { htmlFor: id, textContent: name }), input, error);
}

// The options that are filled in. A value is JSON, or else a text, as that of the command `voice-clone`.
export function chosenOptions() {
  const filled = [...find("own-options").querySelectorAll("input")].filter(({ value }) => value.trim());
  return Object.fromEntries(filled.map(({ id, value }) => [id.replace("option-", ""), parsed(value.trim())]));
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

// Shows the models of the server, and returns them. An alias is none of its own.
export async function refreshModels() {
  models = (await api.listModels()).filter((model) => model.id === model.root);
  const chosen = chosenModel();
  find("model").replaceChildren(...models.map(({ id }) => element("option", { value: id, textContent: id })));
  if (models.some(({ id }) => id === chosen)) find("model").value = chosen;
  find("model-field").hidden = models.length < 2;
  find("design-voice").hidden = !models.some(({ voiceless, instructions }) => voiceless && instructions);
  showTraits();
  return models;
}
