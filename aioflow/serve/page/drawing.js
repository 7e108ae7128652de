// Content of the page. It is always inserted as elements and text, never as markup.

export function element(kind, text = "", properties = {}) {
  const made = document.createElement(kind);
  made.textContent = text;
  Object.assign(made, properties);
  return made;
}

export function put(id, text) {
  const found = document.getElementById(id);
  if (found.textContent !== text) found.textContent = text; // screen readers read out every change, even to an equal text
  return found;
}

export function badge(where, text, kind) {
  where.className = `badge ${kind}`;
  if (where.textContent !== text) where.textContent = text;
}

// Update the rows of a table. Rows with the same key keep their elements, and so the focus.
export function rows(body, items, key, make, update) {
  const old = new Map([...body.children].map((row) => [row.dataset.key, row]));
  const found = items.map((item) => {
    const name = key(item);
    const row = old.get(name) ?? make(item);
    row.dataset.key = name;
    update(row, item);
    return row;
  });
  if (found.length !== body.children.length || found.some((row, at) => row !== body.children[at]))
    body.replaceChildren(...found);
}

// A row of text cells; the first is its header.
export function plainRow(classes) {
  const row = document.createElement("tr");
  classes.forEach((name, at) => row.append(element(at ? "td" : "th", "", { className: name })));
  row.firstChild.scope = "row";
  return row;
}

export function fill(row, texts) {
  texts.forEach((text, at) => {
    if (row.children[at].textContent !== text) row.children[at].textContent = text;
  });
}

// A histogram: a table of labels, bars and counts.
export function bars(table, entries, caption) {
  const most = Math.max(1, ...entries.map(([, value]) => value));
  table.setAttribute("aria-label", caption);
  const body = table.tBodies[0] ?? table.createTBody();
  rows(
    body,
    entries,
    ([label]) => label,
    () => {
      const row = plainRow(["", "", "number"]);
      row.children[1].append(document.createElement("div"));
      row.children[1].ariaHidden = "true";
      return row;
    },
    (row, [label, value]) => {
      row.children[0].textContent = label;
      row.children[1].firstChild.style.width = `${(100 * value) / most}%`;
      row.children[2].textContent = value.toLocaleString("en");
    },
  );
}
