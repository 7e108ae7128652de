// A request that somebody writes by hand: an example to begin with, and what came of it.

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

// Whole numbers are often places in something: 0 is one of every table.
function whole() {
  return "0";
}

// A request of the right form, as text; and what is to be said of it.
export function example(signature) {
  let note = "";
  const inputs = signature.inputs.map((tensor) => {
    const sizes = tensor.shape.map((size) => (size < 0 ? OPEN_SIZE : size));
    const elements = sizes.reduce((product, size) => product * size, 1);
    let data = [];
    if (elements <= MOST_ELEMENTS) data = Array.from({ length: elements }, (_, at) => (VALUES[tensor.datatype] ?? whole)(at));
    else note = `Input ${tensor.name} has ${elements.toLocaleString("en")} elements: too many to be written here. `;
    const head = `"name": ${JSON.stringify(tensor.name)}, "datatype": "${tensor.datatype}", "shape": [${sizes.join(", ")}]`;
    return `    {${head}, "data": [${data.join(", ")}]}`;
  });
  if (signature.inputs.some((tensor) => tensor.shape.includes(-1)))
    note += "Sizes that are open are 1 in the example; others do as well.";
  const more = signature.is_default ? "" : `,\n  "parameters": {"signature": ${JSON.stringify(signature.name)}}`;
  return { text: `{\n  "inputs": [\n${inputs.join(",\n")}\n  ]${more}\n}`, note };
}

// JSON with a line for each member. It is laid out as text: its numbers stay as they were sent, large ones and NaN too.
export function laidOut(text) {
  let made = "";
  let depth = 0;
  const flat = []; // of each bracket that is open, whether what is in it stays on its line
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
  return made.length > MOST_SHOWN ? `${made.slice(0, MOST_SHOWN)} …\n(${text.length.toLocaleString("en")} characters in all)` : made;
}

function endOfString(text, begin) {
  let at = begin + 1;
  while (at < text.length && text[at] !== '"') at += text[at] === "\\" ? 2 : 1;
  return at + 1;
}
