// Keeps pages up to date, and adds keys. Every page also works without it.
"use strict";


// -- live updates: after an event about what the page shows, the page is fetched again and changed in place

const live = document.getElementById("live");
const REFRESH_PAUSE_MS = 1000 * Number(live?.dataset.pause ?? 0.7); // The shortest time between two updates of a page.
const CONNECT_PAUSE_MS = 100; // The page is painted first: starting the worker takes about as long.
const topics = (live?.dataset.topics ?? "").split(" ").filter(Boolean);
let isRefreshing = false;
let isOutdated = false;
let lastRefresh = Date.now();
let isSignedOut = false;
let shownIndex = Number(live?.dataset.index ?? 0); // The log index of the state that the page shows.
let newestIndex = 0; // The log index of the newest change that this page knows. Pages that know the same changes share an update.
const WORKER_RETRY_MS = 5000;
const SIGN_IN = "/ui/sign-in";

// A page is out of date after an event of one of its topics: `Job` for all jobs, `Job:web` for one object, `Allocation:*rows` for
// what belongs to the rows that it shows.
function concerns(change) {
  return topics.some((topic) => {
    const colon = topic.indexOf(":");
    if (colon < 0) return topic === change.Topic;
    const key = topic.slice(colon + 1);
    if (topic.slice(0, colon) !== change.Topic) return false;
    return change.All || (key === "*rows" ? change.Keys.some(isShown) : change.Keys.includes(key));
  });
}

function isShown(key) {
  return document.querySelector(`[data-row="${CSS.escape(key)}"]`) !== null;
}

// Nothing changes under the pointer or the keyboard: not while a person writes, holds a mouse button or has selected text.
function isBusy() {
  const focused = document.activeElement;
  const isWriting = focused && live.contains(focused) && focused.matches("input, textarea, select");
  const selection = document.getSelection();
  const hasSelected = selection && !selection.isCollapsed && live.contains(selection.anchorNode);
  return document.hidden || isWriting || hasSelected || document.querySelector("dialog[open]") !== null;
}

// Shows the content of a page in place of the present one. Returns false if it must wait.
async function show(html) {
  const freshPage = new DOMParser().parseFromString(html, "text/html");
  const fresh = freshPage.getElementById("live");
  if (freshPage.body.dataset.signedIn !== document.body.dataset.signedIn) {
    location.reload(); // Somebody has signed in in another tab: the menu and the stream of changes are other ones.
    return true;
  }
  await loadHtmx();
  if (!fresh || isBusy()) return false;
  shownIndex = Number(fresh.dataset.index);
  keepPlaces(fresh);
  await htmx.swap({ text: fresh.innerHTML, target: live, sourceElement: live, swap: "innerMorph" });
  return true;
}

async function refresh() {
  if (isRefreshing || !isOutdated || isSignedOut || isBusy()) return;
  const wait = lastRefresh + REFRESH_PAUSE_MS - Date.now();
  if (wait > 0) {
    setTimeout(refresh, wait);
    return;
  }
  isRefreshing = true;
  isOutdated = false;
  lastRefresh = Date.now();
  try {
    const knownIndex = newestIndex;
    const reply = await fetch(location.href, { headers: { "wharf-refresh": knownIndex }, credentials: "same-origin" });
    if (new URL(reply.url).pathname === SIGN_IN) {
      saySignedOut();
      return;
    }
    if (reply.status === 429) say(LIMITED_TEXT);
    if (reply.status >= 500 || reply.status === 429) {
      isOutdated = true; // The server is starting, overloaded or limits requests. What is shown is better than its message.
      return;
    }
    // Another process than that of the stream may not know the change yet.
    if (!(await show(await reply.text())) || (shownIndex > 0 && shownIndex < knownIndex)) isOutdated = true;
  } catch {
    isOutdated = true; // The server is away. The stream says when it is back.
  } finally {
    isRefreshing = false;
    if (isOutdated) setTimeout(refresh, REFRESH_PAUSE_MS);
  }
}

// While the pointer or the keyboard is in a list, its rows keep their places: rows change, but new ones wait and old ones stay.
function keepPlaces(fresh) {
  let waiting = 0;
  const freshLists = fresh.querySelectorAll("tbody");
  live.querySelectorAll("tbody").forEach((list, place) => {
    const ids = [...list.rows].map((row) => row.id);
    if (!freshLists[place] || !list.matches(":hover, :focus-within") || !ids.every(Boolean)) return;
    const freshRows = new Map([...freshLists[place].rows].map((row) => [row.id, row]));
    const freshIds = [...freshRows.keys()];
    if (freshIds.join(" ") === ids.join(" ")) return;
    waiting += freshIds.filter((id) => !ids.includes(id)).length;
    freshLists[place].replaceChildren(...[...list.rows].map((row) => freshRows.get(row.id) ?? row.cloneNode(true)));
    list.addEventListener("pointerleave", showWaiting);
    list.addEventListener("focusout", showWaiting);
  });
  if (document.getElementById("live-state").dataset.connected === "no") return; // It says so.
  say(waiting ? `New rows: ${waiting}. They are shown when the pointer leaves the list.` : "");
}

function showWaiting(event) {
  event.currentTarget.removeEventListener("pointerleave", showWaiting);
  event.currentTarget.removeEventListener("focusout", showWaiting);
  isOutdated = true;
  setTimeout(refresh, 0);
}

// htmx is loaded before the first update: without it, a page is painted earlier.
let htmxLoading = null;
function loadHtmx() {
  htmxLoading ??= loadScript(document.body.dataset.htmx).catch((error) => {
    htmxLoading = null;
    throw error;
  });
  return htmxLoading;
}

function loadScript(address) {
  return new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = address;
    script.onload = done;
    script.onerror = failed;
    document.head.append(script);
  });
}

function say(text) {
  const place = document.getElementById("live-state");
  if (place && place.textContent !== text) place.textContent = text;
}

function saySignedOut() {
  isSignedOut = true;
  const link = document.createElement("a");
  link.href = `${SIGN_IN}?next=${encodeURIComponent(location.pathname + location.search)}`;
  link.textContent = "Sign in again";
  document.getElementById("live-state").replaceChildren("You are signed out, so this page is no longer updated. ", link);
}

const LIMITED_TEXT = "Your requests are limited now, so this page is not kept up to date. It tries again by itself.";

// Returns what a person reads about the stream of changes: why there is none, if that is known.
function describeState({ isConnected, haveRightsChanged, status }) {
  if (isConnected) return "";
  if (haveRightsChanged) return "Your session has ended, or what you may see has changed. The page is being updated.";
  if (status === 429) return LIMITED_TEXT;
  if (status === 401 || status === 403) return "The server sends you no changes: you are signed out, or your token may not see them.";
  return "The connection to the server is lost. The page may be out of date.";
}

function onMessage(message) {
  if (isSignedOut) return;
  if (message.kind === "state") {
    document.getElementById("live-state").dataset.connected = message.isConnected ? "yes" : "no";
    say(describeState(message));
    if (!message.isConnected) isOutdated = true;
    if (message.isRefused || message.haveRightsChanged) refresh(); // The session may have ended.
    return;
  }
  newestIndex = message.index;
  // A stream that begins after the page was built may lack changes in between.
  if (message.kind === "start" ? message.index > shownIndex : message.changes.some(concerns)) isOutdated = true;
  if (isOutdated) refresh();
}

// All tabs share one stream: a browser opens at most six connections to a server. Before and after a sign-in they are two, because
// a stream keeps the rights with which it was opened. The server ends it if somebody else signs in.
function connect() {
  const address = document.body.dataset.worker;
  let worker = null;
  const connectWorker = () => {
    worker = new SharedWorker(address, document.body.dataset.signedIn === "yes" ? "wharf signed in" : "wharf");
    worker.port.onmessage = (event) => onMessage(event.data);
    worker.onerror = () => setTimeout(connectWorker, WORKER_RETRY_MS); // The server was away when its script was loaded.
  };
  if (window.SharedWorker) {
    connectWorker();
    addEventListener("pagehide", () => worker.port.postMessage("bye"));
    // A page that comes back from the browser's cache is as old as it was.
    addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  } else {
    loadScript(address).then(() => globalThis.wharfStream(onMessage));
  }
}

if (live && topics.length > 0) {
  setTimeout(connect, CONNECT_PAUSE_MS);
  document.addEventListener("visibilitychange", refresh);
  document.addEventListener("focusout", () => setTimeout(refresh, 0));
  document.addEventListener("selectionchange", () => { if (isOutdated) setTimeout(refresh, REFRESH_PAUSE_MS); });
}

// -- ages and remaining times move while a page is open

const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
const TICK_MS = 1000;

// The same text as the server writes: the two largest units, such as "2m5s".
function describeSeconds(seconds) {
  let left = Math.max(0, Math.floor(seconds));
  const parts = [];
  for (const [name, size] of UNITS) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count > 0) parts.push(`${count}${name}`);
    else if (parts.length > 0) break;
    if (parts.length === 2) break;
  }
  return parts.join("") || "0s";
}

// The clock of the browser may be wrong: only its differences count, from the time at which the server built the page.
const builtMs = Number(document.body.dataset.now);
const loadedMs = performance.now();

function moveTimes() {
  if (document.hidden || !builtMs) return;
  const nowS = Math.floor((builtMs + performance.now() - loadedMs) / 1000);
  for (const each of document.querySelectorAll("time[data-age], time[data-left]")) {
    const atS = Math.floor(Date.parse(each.dateTime) / 1000);
    const text = describeSeconds("left" in each.dataset ? Math.max(1, atS - nowS) : nowS - atS);
    if (each.textContent !== text) each.textContent = text;
  }
}

setInterval(moveTimes, TICK_MS);
document.addEventListener("visibilitychange", moveTimes);

// -- forms that end something ask first

document.addEventListener("submit", (event) => {
  const question = event.target.dataset?.confirm;
  if (!question) return;
  if (!confirm(question)) {
    event.preventDefault();
    return;
  }
  const confirmed = document.createElement("input"); // Otherwise the server asks, with a page of its own.
  confirmed.type = "hidden";
  confirmed.name = "confirmed";
  confirmed.value = "yes";
  event.target.append(confirmed);
});

// -- copying

for (const button of document.querySelectorAll("button.copy")) {
  if (!navigator.clipboard) break;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  });
}

// -- keys: an element with `data-key` is followed or focused; `j` and `k` go through the rows

let firstKey = "";

function activate(element) {
  if (element.matches("input")) element.focus();
  else element.click();
}

function moveInRows(step) {
  const links = [...document.querySelectorAll("[data-row] th a")];
  if (links.length === 0) return;
  const place = links.indexOf(document.activeElement);
  links[Math.min(links.length - 1, Math.max(0, place + step))].focus();
}

function showKeys() {
  const dialog = document.getElementById("keys");
  const list = dialog.querySelector("dl");
  list.replaceChildren();
  const known = [...document.querySelectorAll("[data-key]")].map((each) => [
    each.dataset.key, each.getAttribute("aria-label") || each.textContent.trim(),
  ]);
  for (const [key, text] of [...known, ["j, k", "Next and previous row"], ["?", "Show the keys"]]) {
    const term = document.createElement("dt");
    const meaning = document.createElement("dd");
    term.textContent = key;
    meaning.textContent = text;
    list.append(term, meaning);
  }
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey && event.key === "k") {
    event.preventDefault();
    document.querySelector(".find input")?.focus();
    return;
  }
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, textarea, select")) return;
  if (event.key === "?") {
    event.preventDefault();
    showKeys();
    return;
  }
  if (firstKey === "" && (event.key === "j" || event.key === "k")) {
    moveInRows(event.key === "j" ? 1 : -1);
    return;
  }
  const pressed = firstKey ? `${firstKey} ${event.key}` : event.key;
  firstKey = "";
  const element = document.querySelector(`[data-key="${CSS.escape(pressed)}"]`);
  if (element) {
    event.preventDefault();
    activate(element);
  } else if (event.key === "g") {
    firstKey = "g";
  }
});
