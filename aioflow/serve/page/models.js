// The table of models, and the details of the chosen one.

import { chart } from "./charts.js";
import { badge, bars, element, fill, plainRow, put, rows } from "./drawing.js";
import { bytes, count, decimal, plural, rate, seconds, shape, span } from "./formats.js";

const KINDS = { READY: "good", UNAVAILABLE: "bad" };
const OUTCOMES = {
  ok: "answered",
  refused: "invalid request",
  overloaded: "rejected: queue full, or not ready",
  late: "timed out",
  gone: "client disconnected",
  failed: "failed",
};
const MOST_BARS = 12;

export function keyOf(model) {
  return `${encodeURIComponent(model.name)}/${encodeURIComponent(model.version)}`;
}

export function showService(status) {
  const { server, loop_lag: lag, memory } = status;
  badge(document.getElementById("readiness"), server.ready ? "ready" : "not ready", server.ready ? "good" : "");
  put("version", server.version);
  put("process", `process ${server.process}, up ${span(server.uptime_seconds)}`);
  put("lag", `p50 ${seconds(lag.p50_seconds)}, p99 ${seconds(lag.p99_seconds)}, worst ${seconds(lag.worst_seconds)}`);
  put("resident", bytes(memory.resident_bytes));
  const limit = memory.weight_limit === null ? "no limit set" : `${bytes(memory.weight_bytes)} of ${bytes(memory.weight_limit)}`;
  put("weights", limit);
  const pending = status.models.reduce((sum, { served }) => sum + (served ? served.pending_requests : 0), 0);
  put("requests", `${count(pending)} (${bytes(memory.request_bytes)})`);
  put(
    "window",
    `Requests/s (answered ones), p50, p99 and errors of the last ${span(server.window_seconds)}. Latency is from the end of reading a request ` +
      "until its response is ready; quantiles are estimated from the buckets of aioflow_request_seconds.",
  );
}

function unanswered(outcomes) {
  return Object.entries(outcomes).reduce((sum, [name, value]) => sum + (name === "ok" ? 0 : value), 0);
}

export function showModels(status, chosen) {
  const window = status.server.window_seconds;
  rows(document.getElementById("models"), status.models, keyOf, modelRow, (row, model) => {
    const { served } = model;
    row.className = keyOf(model) === chosen ? "chosen" : "";
    row.querySelector("a").ariaCurrent = keyOf(model) === chosen ? "true" : null;
    badge(row.querySelector(".badge"), model.state.toLowerCase(), KINDS[model.state] ?? "");
    const texts = served
      ? [
          rate(served.recent.outcomes.ok, window),
          seconds(served.recent.p50_seconds),
          seconds(served.recent.p99_seconds),
          count(served.waiting_requests),
          count(unanswered(served.recent.outcomes)),
        ]
      : ["–", "–", "–", "–", "–"];
    texts.forEach((text, at) => (row.children[at + 3].textContent = text));
  });
}

function modelRow(model) {
  const heads = [...document.querySelectorAll("#models-table thead th")];
  const row = plainRow(["", "", "", "number", "number", "number", "number", "number"]);
  // On phones, a row is a card, whose values have the heads of the columns as labels.
  heads.forEach((head, at) => (row.children[at].dataset.label = head.textContent));
  row.children[0].append(element("a", model.name, { href: `#${keyOf(model)}` }));
  row.children[1].textContent = model.version || "–";
  row.children[2].append(element("span"));
  row.children[2].firstChild.className = "badge";
  return row;
}

export function showModel(status, model, signature) {
  put("detail-title", `${model.name}${model.version && `, version ${model.version}`}`);
  put("reason", model.reason).hidden = !model.reason;
  document.getElementById("served").hidden = !model.served;
  if (!model.served) return;
  showTensors(signature);
  showOutcomes(model.served, status.server.window_seconds);
  showLatency(model.served, status);
  showSteps(model.served.steps);
}

function showTensors(signature) {
  const tensors = [
    ...signature.inputs.map((tensor) => ["input", tensor]),
    ...signature.outputs.map((tensor) => ["output", tensor]),
  ];
  rows(
    document.getElementById("tensors"),
    tensors,
    ([kind, tensor]) => `${kind} ${tensor.name}`,
    () => plainRow(["", "", "", ""]),
    (row, [kind, tensor]) => fill(row, [kind, tensor.name, tensor.datatype, shape(tensor.shape)]),
  );
  put(
    "batched",
    signature.is_batched
      ? "Concurrent requests share a step: their rows are joined along the first axis."
      : "Requests are not batched: each is a step of its own.",
  );
}

function showOutcomes(served, window) {
  put("recently", `Last ${span(window)}`);
  rows(
    document.getElementById("outcomes"),
    Object.keys(served.outcomes),
    (name) => name,
    () => plainRow(["", "number", "number"]),
    (row, name) =>
      fill(row, [OUTCOMES[name] ?? name, count(served.recent.outcomes[name]), count(served.outcomes[name])]),
  );
  put(
    "queue",
    `Now: ${count(served.pending_requests)} in progress; ${count(served.waiting_requests)} of them ` +
      `(${plural(served.waiting_rows, "row")}) wait for a step; ${plural(served.running_steps, "step")} running.` +
      streamsOf(served.streams),
  );
}

function streamsOf(streams) {
  if (!streams) return "";
  const used = streams.writing + streams.reading;
  return (
    ` Streams of tokens: ${count(used)} of ${count(used + streams.free)} at once, ${count(streams.waiting)} waiting; ` +
    `${plural(streams.made, "token")} generated.`
  );
}

function showLatency(served, status) {
  const { recent } = served;
  const total = recent.latency.reduce((sum, each) => sum + each, 0);
  put(
    "quantiles",
    total ? `p50 ${seconds(recent.p50_seconds)}, p99 ${seconds(recent.p99_seconds)}` : "No request was answered recently.",
  );
  const bounds = status.latency_bounds;
  const labels = recent.latency.map((_, at) =>
    at < bounds.length ? `≤ ${seconds(bounds[at])}` : `> ${seconds(bounds[at - 1])}`,
  );
  const used = recent.latency.flatMap((each, at) => (each ? [at] : []));
  const entries = labels.map((label, at) => [label, recent.latency[at]]).slice(used[0] ?? 0, (used.at(-1) ?? -1) + 1);
  bars(document.getElementById("latency"), entries, "Requests by latency");
  put("latency-note", `${plural(total, "answered request")} in the last ${span(status.server.window_seconds)}.`);
}

// All sizes if they are few, else powers of two.
function grouped(sizes) {
  if (sizes.length <= MOST_BARS) return sizes.map(([size, number]) => [rowsText(size, size), number]);
  const found = new Map();
  for (const [size, number] of sizes) {
    const power = Math.ceil(Math.log2(Math.max(size, 1)));
    found.set(power, (found.get(power) ?? 0) + number);
  }
  return [...found].map(([power, number]) => [rowsText(power ? 2 ** (power - 1) + 1 : 1, 2 ** power), number]);
}

function rowsText(first, last) {
  const text = first === last ? count(first) : `${count(first)}–${count(last)}`;
  return `${text} ${last === 1 ? "row" : "rows"}`;
}

function showSteps(steps) {
  const mean = (total, number) => (number ? total / number : null);
  put(
    "steps",
    steps.count
      ? `${plural(steps.count, "step")}. Average batch: ${plural(decimal(steps.rows / steps.count), "row")}. Average step: ` +
          `${seconds(mean(steps.compute_seconds, steps.count))}. Average wait for a step: ` +
          `${seconds(mean(steps.queue_seconds, steps.answered))}.`
      : "No step yet.",
  );
  put("engine", steps.engine ? `Engine: ${steps.engine}, and aioflow's kernels for what it does not support.` : "Engine: aioflow's kernels.");
  bars(document.getElementById("sizes"), grouped(steps.sizes), "Steps by rows");
}

// The charts. `isServed` is false if the chosen model is not ready. `isOwn` is false if the history is of another model, since
// that of a model that has just been chosen comes with the next status.
export function showHistory(history, isServed, isOwn) {
  const ages = history.age_seconds;
  const at = (id) => document.getElementById(id);
  const each = (value) => (value === null || value === undefined ? "–" : String(decimal(value)));
  chart(at("lag-chart"), "Event loop lag, p99", seconds, ages, [["", history.loop_lag_p99_seconds]]);
  if (!isServed) return;
  const own = (values) => (isOwn ? values : []);
  chart(at("rate-chart"), "Answered requests per second", each, own(ages), [["", own(history.requests_per_second)]]);
  const latency = [["p50", own(history.p50_seconds)], ["p99", own(history.p99_seconds)]];
  chart(at("latency-chart"), "Latency", seconds, own(ages), latency);
  chart(at("batch-chart"), "Average batch, rows", each, own(ages), [["", own(history.rows_per_batch)]]);
}
