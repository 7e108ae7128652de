// Line charts of the last minutes.

import { element } from "./drawing.js";
import { span } from "./formats.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 70;

function svg(kind, attributes) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// The paths of a line and of its dots: values between unknown ones (null), which interrupt the line.
function pathsOf(values, x, y) {
  let [line, dots] = ["", ""];
  const isKnown = (at) => values[at] !== null && values[at] !== undefined;
  values.forEach((value, at) => {
    if (!isKnown(at)) return;
    const point = `${x[at].toFixed(1)} ${y(value).toFixed(1)}`;
    line += isKnown(at - 1) ? `L${point}` : `M${point}`;
    if (!isKnown(at - 1) && !isKnown(at + 1)) dots += `M${point}h0`;
  });
  return [line, dots];
}

// Draw a chart into a figure: the title, the values under the pointer or the latest ones, and the lines.
// `lines` has pairs [label, values]; `ages` the age of each value in seconds, the oldest first.
export function chart(figure, title, format, ages, lines) {
  if (!figure.firstChild) {
    const head = element("figcaption");
    head.append(element("span", title), element("strong"));
    const foot = element("p");
    foot.append(element("span"), element("span"), element("span", "now"));
    figure.append(head, svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }), foot);
    figure.addEventListener("pointermove", (event) => point(figure, event));
    figure.addEventListener("pointerleave", () => point(figure, null));
  }
  const oldest = Math.max(ages[0] ?? 0, 1);
  const known = lines.flatMap(([, values]) => values.filter((value) => value !== null));
  const highest = Math.max(...known, 0);
  const x = ages.map((age) => WIDTH * (1 - age / oldest));
  const y = (value) => HEIGHT - 2 - (HEIGHT - 6) * (highest ? value / highest : 0);
  const picture = figure.querySelector("svg");
  picture.replaceChildren(
    svg("path", { class: "axis", d: `M0 ${HEIGHT - 1}H${WIDTH}` }),
    ...lines.flatMap(([, values], at) => {
      const [line, dots] = pathsOf(values, x, y);
      return [svg("path", { class: `line line-${at}`, d: line }), svg("path", { class: `line line-${at} dots`, d: dots })];
    }),
  );
  figure.chart = { ages, lines, format, x: x.map((each) => each / WIDTH) };
  const [from, most] = figure.querySelectorAll("p span");
  from.textContent = ages.length ? `${span(oldest)} ago` : "no values yet";
  most.textContent = known.length ? `highest: ${format(highest)}` : "";
  point(figure, null);
  picture.setAttribute("aria-label", `${title}: ${figure.querySelector("strong").textContent}. ${most.textContent}`);
}

// Show the values at the pointer; without one, the latest.
function point(figure, event) {
  const { ages, lines, format, x } = figure.chart;
  let at = ages.length - 1;
  if (event && ages.length) {
    const { left, width } = figure.querySelector("svg").getBoundingClientRect();
    const place = (event.clientX - left) / width;
    x.forEach((each, index) => {
      if (Math.abs(each - place) < Math.abs(x[at] - place)) at = index;
    });
  }
  const parts = lines.flatMap(([label, each], index) => [
    index ? ", " : "",
    element("span", label, { className: `label-${index}` }),
    `${label && " "}${format(each[at])}`,
  ]);
  const when = event && ages[at] > 0 ? `, ${span(ages[at])} ago` : "";
  figure.querySelector("strong").replaceChildren(...parts, when);
}
