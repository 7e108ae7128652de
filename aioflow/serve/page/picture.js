// The picture of a graph: zoom, panning, and a search among its boxes.

import { put } from "./drawing.js";

const STEP = 1.25;
const LEAST = 0.1;
const MOST = 4;
const MOVED = 5; // pixels after which a press is a drag and no click

const at = (id) => document.getElementById(id);
let scale = 1;
let size = [0, 0]; // of the picture at scale 1
let found = [];
let current = -1;

export function showPicture(picture) {
  size = ["width", "height"].map((name) => Number(picture.getAttribute(name)));
  at("picture").replaceChildren(picture);
  zoomTo(scale);
  search();
}

// Zoom so that the point of the picture at (x, y), relative to its frame, stays where it is.
function zoomTo(wanted, x = 0, y = 0) {
  const frame = at("picture");
  const picture = frame.firstElementChild;
  if (!picture) return;
  const before = scale;
  scale = Math.min(MOST, Math.max(LEAST, wanted));
  picture.setAttribute("width", size[0] * scale);
  picture.setAttribute("height", size[1] * scale);
  frame.scrollLeft = (frame.scrollLeft + x) * (scale / before) - x;
  frame.scrollTop = (frame.scrollTop + y) * (scale / before) - y;
  put("zoom", `${Math.round(scale * 100)} %`);
}

function zoomAtMiddle(factor) {
  zoomTo(scale * factor, at("picture").clientWidth / 2, at("picture").clientHeight / 2);
}

function zoomAt(factor, clientX, clientY) {
  const frame = at("picture").getBoundingClientRect();
  zoomTo(scale * factor, clientX - frame.left, clientY - frame.top);
}

at("zoom-in").addEventListener("click", () => zoomAtMiddle(STEP));
at("zoom-out").addEventListener("click", () => zoomAtMiddle(1 / STEP));
at("zoom-fit").addEventListener("click", () => {
  zoomTo(Math.min(1, at("picture").clientWidth / size[0], at("picture").clientHeight / size[1]));
});

// A pinch on a touchpad arrives as a wheel with Ctrl. The wheel alone scrolls.
at("picture").addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  zoomAt(Math.exp(-event.deltaY / 300), event.clientX, event.clientY);
}, { passive: false });

// -- dragging, and pinching with two fingers --------------------------------------------------------------------------

const pressed = new Map(); // positions of the pointers
let dragged = false;

at("picture").addEventListener("pointerdown", (event) => {
  if (event.button) return;
  if (!pressed.size) dragged = false;
  pressed.set(event.pointerId, [event.clientX, event.clientY]);
});
addEventListener("pointermove", (event) => {
  const last = pressed.get(event.pointerId);
  if (!last) return;
  const next = [event.clientX, event.clientY];
  if (pressed.size === 2) {
    const other = [...pressed].find(([id]) => id !== event.pointerId)[1];
    const distance = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
    dragged = true;
    zoomAt(distance(next) / distance(last), (next[0] + other[0]) / 2, (next[1] + other[1]) / 2);
  } else if (event.pointerType === "mouse") { // fingers scroll by themselves
    if (!dragged && Math.hypot(next[0] - last[0], next[1] - last[1]) < MOVED) return;
    dragged = true;
    at("picture").scrollLeft -= next[0] - last[0];
    at("picture").scrollTop -= next[1] - last[1];
  }
  pressed.set(event.pointerId, next);
});
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, (event) => pressed.delete(event.pointerId));
// The click at the end of a drag opens nothing.
at("picture").addEventListener("click", (event) => {
  if (dragged && event.detail) event.stopPropagation();
  dragged = false;
}, { capture: true });

// -- the search -------------------------------------------------------------------------------------------------------

function search() {
  const wanted = at("find").value.trim().toLowerCase();
  for (const box of found) box.classList.remove("found", "current");
  const boxes = [...at("picture").querySelectorAll(".box, .scope")];
  // The title of a box has its full name, and the ops of a scope.
  found = wanted ? boxes.filter((box) => `${box.textContent}\n${box.dataset.nodes ?? ""}`.toLowerCase().includes(wanted)) : [];
  for (const box of found) box.classList.add("found");
  current = -1;
  put("matches", wanted && !found.length ? "no match" : "");
}

function next(step) {
  if (!found.length) return;
  found[current]?.classList.remove("current");
  current = current < 0 ? 0 : (current + step + found.length) % found.length;
  found[current].classList.add("current");
  found[current].scrollIntoView({ block: "center", inline: "center" });
  const { nodes = "" } = found[current].dataset;
  const wanted = at("find").value.trim().toLowerCase();
  const inside = nodes.split("\n").filter((name) => name.toLowerCase().includes(wanted)).length;
  put("matches", `${current + 1} of ${found.length}${nodes && inside ? ` (${inside} inside: click the box to open it)` : ""}`);
}

at("find").addEventListener("input", () => {
  search();
  next(1);
});
at("find").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  next(event.shiftKey ? -1 : 1);
});
