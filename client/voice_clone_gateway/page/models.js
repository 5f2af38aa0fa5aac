// The choice of a model; it is shown if the server has several.

import * as api from "./api.js";
import { element, find } from "./dom.js";

// The model to speak with; null for the server's default.
export const chosenModel = () => (find("model-field").hidden ? null : find("model").value);

// Shows the models of the server. An alias is none of its own.
export async function refreshModels() {
  const models = (await api.listModels()).filter((model) => model.id === model.root);
  const chosen = chosenModel();
  find("model").replaceChildren(...models.map(({ id }) => element("option", { value: id, textContent: id })));
  if (models.some(({ id }) => id === chosen)) find("model").value = chosen;
  find("model-field").hidden = models.length < 2;
}
