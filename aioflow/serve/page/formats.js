// Numbers as text.

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
  return `${decimal(scaled)} ${unit}`;
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

export function decimal(value) {
  return value >= 100 ? Math.round(value) : Number(value.toPrecision(3));
}

export function rate(events, duration) {
  return duration > 0 ? count(decimal(events / duration)) : NONE;
}

export function shape(sizes) {
  return `[${sizes.map((size) => (size < 0 ? "any" : size)).join(", ")}]`;
}
