// Numbers for people.

const NONE = "–";

export function count(value) {
  return value.toLocaleString("en");
}

export function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  const [factor, unit] = value >= 1 ? [1, "s"] : value >= 0.001 ? [1e3, "ms"] : [1e6, "µs"];
  const scaled = value * factor;
  return `${scaled >= 100 ? Math.round(scaled) : Number(scaled.toPrecision(3))} ${unit}`;
}

export function span(value) {
  if (value < 90) return `${Math.round(value)} s`;
  if (value < 90 * 60) return `${Math.round(value / 60)} min`;
  if (value < 36 * 3600) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} days`;
}

export function bytes(value) {
  if (value === null) return NONE;
  for (const [factor, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (value >= factor) return `${Number((value / factor).toPrecision(3))} ${unit}`;
  return `${value} B`;
}

export function rate(events, duration) {
  if (!(duration > 0)) return NONE;
  const found = events / duration;
  return found >= 100 ? count(Math.round(found)) : String(Number(found.toPrecision(2)));
}

export function shape(sizes) {
  return `[${sizes.map((size) => (size < 0 ? "any" : size)).join(", ")}]`;
}
