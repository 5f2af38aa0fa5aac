// The choice of a model; it is shown if the server has several.

import * as api from "./api.js";
import { element, find } from "./dom.js";

let models = []; // the default first; each with whether it follows instructions, and whether it needs no voice

// The model to speak with; null for the server's default.
export const chosenModel = () => (find("model-field").hidden ? null : find("model").value);

const model = () => models.find(({ id }) => id === chosenModel()) ?? models[0];

// The family that speaks; null if the models are not known.
export const chosenFamily = () => model()?.root ?? null;

// Shows the fields that not every model has.
export function showTraits() {
  find("instructions-field").hidden = !model()?.instructions;
  find("voiceless-field").hidden = !model()?.voiceless;
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
