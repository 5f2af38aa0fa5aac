// The errors of a form, each beside its field. A form's own error, `${form.id}-error`, is for those that have no field.

import { find, showError } from "./dom.js";

// The fields that the API's errors are about, by `param` or `code` of the error.
const NAMED = {
  name: "name",
  consent: "consent",
  style: "new-style",
  audio_sample: "sample",
  reference_text: "transcript",
  voice_exists: "name",
  input: "text",
  voice: "voice",
  voice_not_found: "voice",
  language: "language",
  instructions: "instructions",
  description: "wanted",
  seed: "seed",
  model: "model",
  model_not_found: "model",
};

// The same by the first words of messages that name nothing else: those of the speech server.
const BEGUN = [
  [/^the name\b/i, "name"],
  [/^consent\b/i, "consent"],
  [/^the (reference )?audio\b/i, "sample"],
  [/^reference_text\b/i, "transcript"],
  [/^(the )?text\b/i, "text"],
  [/^language\b/i, "language"],
  [/^(description|instruct)\b/i, "wanted"],
  [/^(style|instruct)\b/i, "instructions"],
];

// An error goes when its field changes.
export function watchFields(form) {
  form.addEventListener("input", ({ target }) => {
    if (target.id && find(`${target.id}-error`)) showError(target.id, null);
  });
}

export function clearErrors(form) {
  for (const box of form.querySelectorAll(".error")) showError(box.id.replace(/-error$/, ""), null);
}

// Whether every field is valid. Otherwise each error is shown: the field's `data-missing` or `data-wrong`.
export function fieldsAreValid(form) {
  const wrong = [...form.elements].filter((field) => field.willValidate && !field.validity.valid);
  for (const field of wrong) {
    showError(field.id, new Error(field.validity.valueMissing ? field.dataset.missing : field.dataset.wrong));
  }
  if (wrong.length) focusOn(wrong[0]);
  return !wrong.length;
}

// Shows an error of the API beside the field that it is about, if the form shows this field.
export function placeError(form, error) {
  const begun = BEGUN.filter(([words]) => words.test(error.message)).map(([, field]) => field);
  const option = error.param?.startsWith("options.") && error.param.replace("options.", "option-");
  const named = [option, NAMED[error.param], NAMED[error.code], ...begun];
  const id = named.find((each) => each && form.contains(find(`${each}-error`)));
  const box = id && find(`${id}-error`);
  if (!box || box.parentElement.hidden) {
    showError(form.id, error);
    return;
  }
  showError(id, error);
  const field = find(id);
  if (field && "validity" in field) focusOn(field);
  else box.scrollIntoView({ block: "nearest" });
}

function focusOn(field) {
  const folded = field.closest("details:not([open])");
  if (folded) folded.open = true;
  field.focus();
}
