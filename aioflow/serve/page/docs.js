// The page of the HTTP API: the operations of the OpenAPI document, with a form to call each.

import { ask, said, TokenNeeded } from "./asking.js";
import { element, fill, plainRow, put } from "./drawing.js";
import { askForToken, onToken } from "./entry.js";
import { example as inferExample, laidOut, valueOf } from "./trying.js";

const MOST_DEPTH = 5; // of nested schemas
const MOST_ELEMENTS = 10_000; // of an example
const at = (id) => document.getElementById(id);
let schemas = {};
let models = []; // that are ready

async function load() {
  try {
    const answer = await ask("openapi.json");
    if (answer.status !== 200) throw new Error(said(answer));
    const status = await ask("status");
    models = status.status === 200 ? JSON.parse(status.text).models.filter(({ served }) => served) : [];
    show(JSON.parse(answer.text));
  } catch (error) {
    if (error instanceof TokenNeeded) return askForToken();
    put("problem", `The document cannot be loaded: ${error.message}`).hidden = false;
  }
}

function show(found) {
  schemas = found.components.schemas;
  at("entry").hidden = true;
  at("content").hidden = false;
  put("version", `${found.info.version}, HTTP API`);
  put("about", found.info.description);
  const names = element("datalist", "", { id: "models" });
  names.append(...[...new Set(models.map(({ name }) => name))].map((name) => element("option", "", { value: name })));
  const sections = found.tags.map(({ name, description }) => {
    const section = element("section");
    section.append(element("h2", name), element("p", description, { className: "note" }));
    for (const [path, methods] of Object.entries(found.paths))
      for (const [method, operation] of Object.entries(methods))
        if (operation.tags.includes(name) && !path.startsWith("/page/")) section.append(entry(method.toUpperCase(), path, operation));
    return section;
  });
  at("content").replaceChildren(names, ...sections);
}

function entry(method, path, operation) {
  const made = element("details", "", { className: "operation", id: operation.operationId });
  const head = element("summary");
  const address = element("code");
  address.append(...path.split("/").flatMap((part, index) => (index ? ["/", element("wbr"), part] : [part])));
  head.append(element("code", method, { className: "method" }), " ", address, " ", element("span", operation.summary));
  made.append(head);
  made.addEventListener("toggle", () => {
    if (made.open && made.childElementCount === 1) made.append(...details(method, path, operation));
  });
  return made;
}

function details(method, path, operation) {
  const kinds = operation.requestBody?.content ?? {};
  const schema = kinds["application/json"]?.schema;
  const results = operation.responses["200"]?.content ?? {};
  const found = [form(method, path, operation, schema)];
  if (schema) found.push(element("h3", "Request, as JSON"), members(schema));
  const result = results["application/json"]?.schema;
  if (result) found.push(element("h3", "Response, as JSON"), members(result));
  const others = [["Request", kinds], ["Response", results]].flatMap(([name, all]) =>
    Object.keys(all).filter((kind) => kind !== "application/json").map((kind) => `${name} as ${kind}`));
  if (others.length) found.push(element("p", `Also: ${others.join("; ")}.`, { className: "note" }));
  const statuses = Object.entries(operation.responses).map(([status, { description }]) => [status, description]);
  found.push(element("h3", "Status"), table(["Status", "Meaning"], statuses));
  return found;
}

// -- schemas ----------------------------------------------------------------------------------------------------------

function resolved(schema) {
  return schema.$ref ? schemas[schema.$ref.split("/").at(-1)] : schema;
}

function kindOf(schema) {
  const found = resolved(schema);
  if (found.oneOf || found.anyOf) return (found.oneOf ?? found.anyOf).map(kindOf).join(" or ");
  if (found.enum) return found.enum.map((value) => JSON.stringify(value)).join(" or ");
  const kinds = [found.type ?? "any"].flat();
  return kinds.map((kind) => (kind === "array" && found.items ? `array of ${kindOf(found.items)}` : kind)).join(" or ");
}

// Rows of the members: path, type, description.
function* rowsOf(schema, prefix = "", depth = 0) {
  const found = resolved(schema);
  if (depth > MOST_DEPTH) return;
  for (const each of found.oneOf ?? found.anyOf ?? []) yield* rowsOf(each, prefix, depth + 1);
  if (found.items) yield* rowsOf(found.items, `${prefix}[]`, depth + 1);
  for (const [name, member] of Object.entries(found.properties ?? {})) {
    const path = prefix ? `${prefix}.${name}` : name;
    const needed = found.required?.includes(name) ? "required" : "";
    const about = member.description ?? resolved(member).description ?? "";
    yield [path, kindOf(member), [needed, about].filter(Boolean).join(": ")];
    yield* rowsOf(member, path, depth + 1);
  }
}

function members(schema) {
  const found = [...rowsOf(schema)];
  return found.length ? table(["Member", "Type", ""], found) : element("p", kindOf(schema), { className: "note" });
}

function table(heads, found) {
  const made = element("table");
  const row = made.createTHead().insertRow();
  for (const head of heads) row.append(element("th", head, { scope: "col" }));
  const body = made.createTBody();
  for (const texts of found) {
    const line = plainRow(heads.map(() => ""));
    fill(line, texts);
    body.append(line);
  }
  const frame = element("div", "", { className: "wide" });
  frame.append(made);
  return frame;
}

// An example request for a model.
function bodyOf(path, schema, name) {
  const model = models.find((each) => each.name === name);
  const signature = model?.served.signatures.find((each) => each.is_default);
  if (signature && path.endsWith("/infer")) return inferExample(signature).text;
  if (signature && path.endsWith(":predict")) return laidOut(JSON.stringify({ instances: [rowOf(signature.inputs)] }));
  if (/\/generate(_stream)?$/.test(path)) return laidOut('{"text_input": "Hello", "parameters": {"max_tokens": 16}}');
  return laidOut(JSON.stringify(example(schema)));
}

// A row of the inputs: a value, or an object of several.
function rowOf(inputs) {
  const rows = inputs.map(({ name, datatype, shape }) => [name, nested(shape.slice(1).map((size) => Math.max(size, 1)), datatype)]);
  return rows.length === 1 ? rows[0][1] : Object.fromEntries(rows);
}

function nested(shape, datatype, index = 0) {
  if (shape.reduce((product, size) => product * size, 1) > MOST_ELEMENTS) return [];
  if (!shape.length) return JSON.parse(valueOf(datatype, index));
  return Array.from({ length: shape[0] }, (_, each) => nested(shape.slice(1), datatype, each));
}

// An example value with the required members.
function example(schema, depth = 0) {
  const found = resolved(schema);
  if (depth > MOST_DEPTH) return null;
  if (found.oneOf || found.anyOf) return example((found.oneOf ?? found.anyOf)[0], depth + 1);
  if (found.enum) return found.enum[0];
  const kind = [found.type].flat()[0];
  if (kind === "object") {
    const required = Object.entries(found.properties ?? {}).filter(([name]) => found.required?.includes(name));
    return Object.fromEntries(required.map(([name, member]) => [name, example(member, depth + 1)]));
  }
  if (kind === "array") return resolved(found.items ?? {}).type === "object" ? [example(found.items, depth + 1)] : [];
  return { string: "", integer: 0, number: 0, boolean: false }[kind] ?? null;
}

// -- calls ------------------------------------------------------------------------------------------------------------

function form(method, path, operation, schema) {
  const made = element("form", "", { className: "call" });
  const fields = (operation.parameters ?? []).filter((each) => each.in !== "header").map((parameter) => {
    const label = element("label", `${parameter.name} `, { title: parameter.description ?? "" });
    const input = element("input", "", { name: parameter.name, required: Boolean(parameter.required), placeholder: parameter.description ?? "" });
    if (parameter.in === "path") input.value = models[0]?.[parameter.name === "model" ? "name" : parameter.name] ?? "";
    if (parameter.name === "model") input.setAttribute("list", "models");
    label.append(input);
    return { parameter, label, input };
  });
  const body = schema && element("textarea", "", { rows: 6, spellcheck: false, ariaLabel: "Request, as JSON" });
  const model = fields.find(({ parameter }) => parameter.name === "model")?.input;
  let isEdited = false;
  const command = element("pre", "", { className: "command", ariaLabel: "As a command" });
  const title = element("p", "", { role: "status" });
  const answer = element("pre", "", { hidden: true, ariaLabel: "Response" });

  function target() {
    let found = path.slice(1); // relative, since the service may be mounted anywhere
    const query = new URLSearchParams();
    for (const { parameter, input } of fields) {
      if (parameter.in === "path") found = found.replace(`{${parameter.name}}`, encodeURIComponent(input.value) || parameter.name.toUpperCase());
      else if (input.value) query.append(parameter.name, input.value);
    }
    return query.size ? `${found}?${query}` : found;
  }

  function refresh() {
    if (body && !isEdited) body.value = bodyOf(path, schema, model?.value);
    const address = new URL(target(), document.baseURI).href;
    const data = body ? ` -d '${body.value.replace(/\s*\n\s*/g, " ").replaceAll("'", "'\\''")}'` : "";
    const token = operation.security ? ` -H "Authorization: Bearer $TOKEN"` : "";
    command.textContent = `curl${method === "POST" && !data ? " -X POST" : ""}${token} '${address}'${data}`;
  }

  made.addEventListener("input", (event) => {
    isEdited ||= event.target === body;
    refresh();
  });
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    title.textContent = "Waiting …";
    try {
      const found = await ask(target(), method === "POST" ? body?.value ?? "" : undefined);
      title.textContent = `Status ${found.status}`;
      answer.textContent = /^\s*[[{]/.test(found.text) ? laidOut(found.text) : found.text;
      answer.className = found.status < 400 ? "" : "bad";
      answer.hidden = !found.text;
    } catch (error) {
      if (error instanceof TokenNeeded) return askForToken();
      title.textContent = `The service did not answer: ${error.message}`;
    }
  });
  made.append(...fields.map(({ label }) => label), ...(body ? [body] : []), command, element("button", "Send"), title, answer);
  refresh();
  return made;
}

onToken(load);
load();
