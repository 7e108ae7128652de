// The page: polls the status of the service while it is visible, and shows it.

import { ask, askPicture, said, TokenNeeded } from "./asking.js";
import { element, put } from "./drawing.js";
import { askForToken, onToken } from "./entry.js";
import { seconds } from "./formats.js";
import { keyOf, showHistory, showModel, showModels, showService } from "./models.js";
import { showPicture } from "./picture.js";
import { example, laidOut } from "./trying.js";

const INTERVAL = 2000; // milliseconds
const at = (id) => document.getElementById(id);
const drafts = new Map(); // edited requests of the form, by model and signature
const opened = new Map(); // opened scopes, by model and signature
let status = null;
let shown = ""; // the model and signature of the form and the picture
let timer = 0;

// -- the chosen model --------------------------------------------------------------------------------------------------

function chosenModel() {
  const wanted = location.hash.slice(1);
  const { models } = status;
  return models.find((model) => keyOf(model) === wanted) ?? models.find((model) => model.served) ?? models[0];
}

function chosenSignature(model) {
  const { signatures } = model.served;
  const names = signatures.map(({ name }) => name);
  const select = at("signature");
  if (select.dataset.of !== keyOf(model) || names.join("\n") !== [...select.options].map(({ value }) => value).join("\n")) {
    select.replaceChildren(...names.map((name) => element("option", name, { value: name })));
    select.value = signatures.find(({ is_default }) => is_default)?.name ?? names[0];
    select.dataset.of = keyOf(model);
  }
  at("choice").hidden = names.length < 2;
  return signatures.find(({ name }) => name === select.value);
}

// -- showing ----------------------------------------------------------------------------------------------------------

function show() {
  const model = chosenModel();
  at("content").hidden = false;
  at("entry").hidden = true;
  showService(status);
  showModels(status, model && keyOf(model));
  at("detail").hidden = !model;
  if (!model) return;
  const signature = model.served && chosenSignature(model);
  showModel(status, model, signature);
  showHistory(status.history, Boolean(signature), status.historyOf === keyOf(model));
  if (!signature) return;
  const key = `${keyOf(model)}\n${signature.name}`;
  if (key === shown) return;
  shown = key;
  prefill(signature, drafts.get(key));
  at("answer").hidden = true;
  put("answer-title", "");
  at("picture").replaceChildren();
  if (at("graph").open) draw();
}

function prefill(signature, draft) {
  const { text, note } = example(signature);
  at("request").value = draft ?? text;
  put("request-note", note);
}

async function look() {
  clearTimeout(timer);
  try {
    const model = status && chosenModel();
    const query = model ? `?${new URLSearchParams({ model: model.name, version: model.version })}` : "";
    const answer = await ask(`status${query}`);
    if (answer.status !== 200) throw new Error(said(answer));
    status = { ...JSON.parse(answer.text), historyOf: model && keyOf(model) };
    problem("");
    show();
  } catch (error) {
    if (error instanceof TokenNeeded) return askForToken();
    problem(`The service does not answer (${error.message}). Trying again; the data below is out of date.`);
  }
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(look, INTERVAL);
}

function problem(text) {
  put("problem", text).hidden = !text;
}

// -- the form ---------------------------------------------------------------------------------------------------------

async function send() {
  const model = chosenModel();
  const button = at("trying").querySelector("button");
  const path = `v2/models/${encodeURIComponent(model.name)}/versions/${encodeURIComponent(model.version)}/infer`;
  const key = shown;
  button.disabled = true;
  put("answer-title", "Waiting …");
  const begun = performance.now();
  try {
    const answer = await ask(path, at("request").value);
    if (key !== shown) return; // another model has been chosen
    const ok = answer.status === 200;
    put("answer-title", `${ok ? "Answered" : `Refused with status ${answer.status}`} after ${seconds((performance.now() - begun) / 1000)}`);
    put("answer", ok ? laidOut(answer.text) : said(answer)).hidden = false;
    at("answer").className = ok ? "" : "bad";
  } catch (error) {
    if (error instanceof TokenNeeded) return askForToken();
    put("answer-title", `The service did not answer: ${error.message}`);
    at("answer").hidden = true;
  } finally {
    button.disabled = false;
  }
}

at("trying").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
at("request").addEventListener("input", () => drafts.set(shown, at("request").value));
at("request").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("trying").requestSubmit();
});
at("example").addEventListener("click", () => {
  drafts.delete(shown);
  prefill(chosenSignature(chosenModel()));
});
at("signature").addEventListener("change", show);

// -- the graph --------------------------------------------------------------------------------------------------------

async function draw() {
  const model = chosenModel();
  const key = shown;
  const scopes = opened.get(key) ?? [];
  const query = new URLSearchParams([["signature", chosenSignature(model).name], ...scopes.map((scope) => ["open", scope])]);
  const path = `status/models/${encodeURIComponent(model.name)}/versions/${encodeURIComponent(model.version)}/graph?${query}`;
  showOpened(scopes);
  at("picture").classList.add("busy");
  put("graph-problem", "");
  try {
    const picture = await askPicture(path);
    if (key !== shown) return;
    for (const scope of picture.querySelectorAll("[data-scope]")) makeButton(scope);
    showPicture(picture);
  } catch (error) {
    if (error instanceof TokenNeeded) return askForToken();
    if (key === shown) put("graph-problem", `The graph cannot be drawn: ${error.message}`);
  } finally {
    at("picture").classList.remove("busy");
  }
}

function makeButton(scope) {
  scope.setAttribute("tabindex", "0");
  scope.setAttribute("role", "button");
  scope.setAttribute("aria-label", `Open the scope ${scope.dataset.scope}`);
  const open = () => change((scopes) => [...scopes, scope.dataset.scope]);
  scope.addEventListener("click", open);
  scope.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    open();
  });
}

function change(how) {
  opened.set(shown, how(opened.get(shown) ?? []));
  at("picture").focus({ preventScroll: true });
  draw();
}

function showOpened(scopes) {
  at("opened").hidden = !scopes.length;
  const buttons = scopes.map((scope) => {
    const button = element("button", `${scope} ×`, { type: "button", className: "plain", ariaLabel: `Close the scope ${scope}` });
    button.addEventListener("click", () => change((all) => all.filter((each) => each !== scope && !each.startsWith(`${scope}/`))));
    return button;
  });
  at("opened").replaceChildren("Open scopes: ", ...buttons);
}

at("graph").addEventListener("toggle", () => {
  if (at("graph").open && !at("picture").childElementCount) draw();
});

// -- start ------------------------------------------------------------------------------------------------------------

addEventListener("hashchange", () => {
  if (!status) return;
  show();
  look(); // for the history of the chosen model
  at("detail").focus({ preventScroll: true });
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && at("entry").hidden) look();
});
onToken(look);
look();
