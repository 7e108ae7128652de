// Requests to the service, with the token if there is one. URLs are relative, since the service may be mounted anywhere.

const KEPT = "aioflow-token";
let token = sessionStorage.getItem(KEPT);

export class TokenNeeded extends Error {}

export function setToken(text) {
  token = text;
  if (text === null) sessionStorage.removeItem(KEPT);
  else sessionStorage.setItem(KEPT, text);
}

// A header can have ASCII only, and so do all tokens.
function headers() {
  return token && /^[\x21-\x7e]+$/.test(token) ? { Authorization: `Bearer ${token}` } : {};
}

// Return the status and text of a response, whatever the status.
export async function ask(path, body) {
  const options = { headers: headers(), cache: "no-store", credentials: "omit" };
  if (body !== undefined) {
    Object.assign(options, { method: "POST", body });
    options.headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, options);
  if (answer.status === 401) throw new TokenNeeded();
  return { status: answer.status, text: await answer.text() };
}

// The error message in a response.
export function said(answer) {
  try {
    const { error } = JSON.parse(answer.text);
    if (typeof error === "string") return error;
  } catch { /* not JSON: shown unchanged */ }
  return answer.text || `status ${answer.status}`;
}

// Return a picture as an element. XMLHttpRequest parses it as a separate document, never as markup of this page.
export async function askPicture(path) {
  const request = new XMLHttpRequest();
  await new Promise((resolve, reject) => {
    request.open("GET", path);
    for (const [name, value] of Object.entries(headers())) request.setRequestHeader(name, value);
    request.onload = resolve;
    request.onerror = () => reject(new TypeError("the service does not answer"));
    request.responseType = "document";
    request.send();
  });
  if (request.status === 200 && request.response) return document.adoptNode(request.response.documentElement);
  throw new Error(said(await ask(path))); // once more, for the message
}
