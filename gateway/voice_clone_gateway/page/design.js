// The card that designs a voice: describe it, hear three candidates, keep one. Shown if a model of the server can.

import * as api from "./api.js";
import { busy, element, find, icon, showError } from "./dom.js";
import { clearErrors, fieldsAreValid, placeError, watchFields } from "./fields.js";
import { listen, markListening, stopListening } from "./listening.js";
import { registerVoice, showRegistered } from "./voices.js";

let made = null; // { model, description, input, candidates: [{ seed, audio: Blob }] }

export function setUpDesign() {
  find("design").addEventListener("submit", design);
  find("keep").addEventListener("submit", keep);
  for (const id of ["design", "keep"]) watchFields(find(id));
}

async function design(event) {
  event.preventDefault();
  const form = find("design");
  clearErrors(form);
  if (!fieldsAreValid(form)) return;
  show(null);
  busy("design-button", "Making voices");
  try {
    const answer = await api.designVoices(find("wanted").value.trim(), find("sample-text").value.trim());
    const candidates = answer.candidates.filter((each) => each.audio_data);
    if (!candidates.length) throw new api.ApiError(api.sentence(answer.candidates[0].error.message));
    show({ ...answer, candidates: candidates.map(({ seed, audio_data }) => ({ seed, audio: api.wavOf(audio_data) })) });
  } catch (error) {
    placeError(form, error);
  } finally {
    busy("design-button", "Make three voices", false);
  }
}

function show(answer) {
  stopListening();
  made = answer;
  clearErrors(find("keep"));
  find("keep").hidden = !made;
  find("candidates").replaceChildren(...(made?.candidates ?? []).map(row));
  markListening();
}

function row({ seed, audio }, index) {
  const radio = element("input", { type: "radio", name: "candidate", value: index, id: `candidate-${index}`, checked: !index });
  const who = element("span", { className: "who", textContent: `Voice ${index + 1}` });
  const about = element("span", { className: "about", textContent: `seed ${seed}` });
  const play = element("button", { type: "button", className: "plain", title: `Play voice ${index + 1}` }, icon("play"));
  play.setAttribute("aria-label", play.title);
  Object.assign(play.dataset, { listen: `candidate ${index}`, play: play.title, stop: "Stop" });
  play.addEventListener("click", () => {
    radio.checked = true;
    listen(`candidate ${index}`, async () => audio).catch((error) => showError("keep", error));
  });
  return element("li", { className: "voice" }, element("label", { htmlFor: radio.id }, radio, who, " ", about), play);
}

async function keep(event) {
  event.preventDefault();
  const form = find("keep");
  clearErrors(form);
  if (!fieldsAreValid(form)) return;
  const { seed, audio } = made.candidates[find("candidates").querySelector("input:checked").value];
  busy("keep-button", "Keeping it");
  try {
    const voice = await registerVoice({
      name: find("design-name").value,
      consent: "Designed from a description; no person's voice",
      transcript: made.input,
      audio,
      fileName: `${seed}.wav`,
      design: { design: made.description, design_model: made.model, design_seed: seed },
    });
    if (!voice) return;
    for (const each of [find("design"), form]) each.reset();
    show(null);
    find("design-voice").open = false;
    await showRegistered(voice);
  } catch (error) {
    placeError(form, error);
  } finally {
    busy("keep-button", "Keep this voice", false);
  }
}
