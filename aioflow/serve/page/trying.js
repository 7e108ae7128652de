// The form for requests by hand: an example request, and the layout of the response.

const MOST_ELEMENTS = 200_000;
const MOST_SHOWN = 30_000; // characters
const OPEN_SIZE = 1;

const VALUES = {
  BOOL: (at) => String(at % 2 === 0),
  BYTES: (at) => JSON.stringify(at % 2 ? "again" : "text"),
  FP16: fraction,
  BF16: fraction,
  FP32: fraction,
  FP64: fraction,
};

function fraction(at) {
  return String((at % 10) / 10);
}

// Whole numbers are often indices: 0 is valid in every table.
function whole() {
  return "0";
}

// Return an example element as JSON; `at` is its index.
export function valueOf(datatype, at) {
  return (VALUES[datatype] ?? whole)(at);
}

// Return an example request as text, and a note on it.
export function example(signature) {
  let note = "";
  const inputs = signature.inputs.map((tensor) => {
    const sizes = tensor.shape.map((size) => (size < 0 ? OPEN_SIZE : size));
    const elements = sizes.reduce((product, size) => product * size, 1);
    let data = [];
    if (elements <= MOST_ELEMENTS) data = Array.from({ length: elements }, (_, at) => valueOf(tensor.datatype, at));
    else note = `Input ${tensor.name} has ${elements.toLocaleString("en")} elements, too many for this form. `;
    const head = `"name": ${JSON.stringify(tensor.name)}, "datatype": "${tensor.datatype}", "shape": [${sizes.join(", ")}]`;
    return `    {${head}, "data": [${data.join(", ")}]}`;
  });
  if (signature.inputs.some((tensor) => tensor.shape.includes(-1)))
    note += "Open sizes are 1 in the example; other sizes are possible.";
  const more = signature.is_default ? "" : `,\n  "parameters": {"signature": ${JSON.stringify(signature.name)}}`;
  return { text: `{\n  "inputs": [\n${inputs.join(",\n")}\n  ]${more}\n}`, note };
}

// JSON with a line for each member. It is formatted as text, so that large numbers stay exact.
export function laidOut(text) {
  let made = "";
  let depth = 0;
  const flat = []; // for each open bracket, whether its content stays on one line
  for (let at = 0; at < text.length && made.length <= MOST_SHOWN; at++) {
    const sign = text[at];
    const line = `\n${"  ".repeat(depth)}`;
    if (sign === '"') {
      const end = endOfString(text, at);
      made += text.slice(at, end);
      at = end - 1;
    } else if (sign === "[" || sign === "{") {
      flat.push(sign === "[" && !/^\s*[[{]/.test(text.slice(at + 1, at + 20)));
      depth += flat.at(-1) ? 0 : 1;
      made += flat.at(-1) ? sign : `${sign}\n${"  ".repeat(depth)}`;
    } else if (sign === "]" || sign === "}") {
      const was = flat.pop();
      depth -= was ? 0 : 1;
      made += was ? sign : `\n${"  ".repeat(Math.max(depth, 0))}${sign}`;
    } else if (sign === ",") made += flat.at(-1) ? ", " : `,${line}`;
    else if (sign === ":") made += ": ";
    else if (!/\s/.test(sign)) made += sign;
  }
  return made.length > MOST_SHOWN ? `${made.slice(0, MOST_SHOWN)} …\n(${text.length.toLocaleString("en")} characters in total)` : made;
}

function endOfString(text, begin) {
  let at = begin + 1;
  while (at < text.length && text[at] !== '"') at += text[at] === "\\" ? 2 : 1;
  return at + 1;
}
