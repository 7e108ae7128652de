// Questions to the service, with the token, if it wants one. Addresses are relative: it may be mounted anywhere.

const KEPT = "aioflow-token";
let token = sessionStorage.getItem(KEPT);

export class TokenNeeded extends Error {}

export function setToken(text) {
  token = text;
  if (text === null) sessionStorage.removeItem(KEPT);
  else sessionStorage.setItem(KEPT, text);
}

// A header holds Latin letters only: what has others is no token of any service.
function headers() {
  return token && /^[\x21-\x7e]+$/.test(token) ? { Authorization: `Bearer ${token}` } : {};
}

// The text of an answer, whatever its status.
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

// What an answer says was wrong; for people.
export function said(answer) {
  try {
    const { error } = JSON.parse(answer.text);
    if (typeof error === "string") return error;
  } catch { /* it is no JSON, then it is shown as it is */ }
  return answer.text || `status ${answer.status}`;
}

// A picture, as an element. An XMLHttpRequest reads it without its text ever becoming markup of this page.
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
  throw new Error(said(await ask(path))); // once more, for what it says
}
