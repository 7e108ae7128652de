// The form for the token.

import { setToken } from "./asking.js";
import { put } from "./drawing.js";

const at = (id) => document.getElementById(id);

// Ask for the token instead of showing the content.
export function askForToken() {
  const was = at("token").value;
  put("entry-problem", was ? "This is not the token of the service." : "");
  setToken(null);
  at("content").hidden = true;
  at("entry").hidden = false;
  at("token").value = "";
  at("token").focus();
}

// Call `enter` after a token has been entered.
export function onToken(enter) {
  at("entry").addEventListener("submit", (event) => {
    event.preventDefault();
    setToken(at("token").value.trim());
    enter();
  });
}
