// Runs once for all tabs of a browser: holds the stream of changes, and passes them to the tabs.
"use strict";

const STREAM = "/ui/changes";

const STREAM_RETRY_MS = 2000;
const MAX_STREAM_RETRY_MS = 30000;

// Returns the status with which the server refuses the stream, which an `EventSource` does not reveal; 0 if it cannot be reached.
async function readStatus() {
  const leaving = new AbortController();
  try {
    return (await fetch(STREAM, { signal: leaving.signal, credentials: "same-origin" })).status;
  } catch {
    return 0;
  } finally {
    leaving.abort();
  }
}

// Opens the stream and calls `send` with each message. After a lost connection, the browser connects again by itself. After a
// refusal (the session has ended, or the server is still starting) it does not, so this is done here.
function wharfStream(send) {
  let source = null;
  let timer = 0;
  let retryMs = STREAM_RETRY_MS;
  let isClosed = false;
  let haveRightsChanged = false; // The server has ended the stream for this reason: the connection is not lost.
  const open = () => {
    source = new EventSource(STREAM);
    source.addEventListener("open", () => {
      retryMs = STREAM_RETRY_MS;
      send({ kind: "state", isConnected: true });
    });
    source.addEventListener("ended", () => {
      haveRightsChanged = true;
      send({ kind: "state", isConnected: false, haveRightsChanged });
    });
    source.addEventListener("error", async () => {
      if (source.readyState !== EventSource.CLOSED) {
        if (!haveRightsChanged) send({ kind: "state", isConnected: false });
        haveRightsChanged = false;
        return;
      }
      const status = await readStatus();
      if (isClosed) return;
      send({ kind: "state", isConnected: false, isRefused: true, status });
      timer = setTimeout(open, retryMs);
      retryMs = Math.min(2 * retryMs, MAX_STREAM_RETRY_MS);
    });
    source.addEventListener("start", (event) => send({ kind: "start", index: JSON.parse(event.data).Index }));
    source.addEventListener("changes", (event) => {
      const line = JSON.parse(event.data);
      send({ kind: "changes", changes: line.Changes, index: line.Index });
    });
  };
  open();
  return {
    close: () => {
      isClosed = true;
      clearTimeout(timer);
      source.close();
    },
  };
}

if (typeof SharedWorkerGlobalScope !== "undefined" && self instanceof SharedWorkerGlobalScope) {
  const ports = new Set();
  let source = null;
  let state = null; // The last message about the connection.
  let index = 0; // Of the newest change that was passed to the tabs.
  const sendToAll = (message) => {
    if (message.kind === "state") state = message;
    else index = message.index;
    for (const port of ports) port.postMessage(message);
  };
  const addTab = (port) => {
    ports.add(port);
    if (source === null) {
      source = wharfStream(sendToAll);
      return;
    }
    if (state !== null) port.postMessage(state);
    // The tab compares this with the state that its page shows: it misses the changes in between.
    if (index > 0) port.postMessage({ kind: "start", index });
  };
  const removeTab = (port) => {
    ports.delete(port);
    if (ports.size > 0 || source === null) return;
    source.close();
    source = state = null;
    index = 0;
  };
  self.onconnect = (event) => {
    const port = event.ports[0];
    addTab(port);
    port.onmessage = ({ data }) => {
      if (data === "bye") removeTab(port);
    };
  };
} else {
  globalThis.wharfStream = wharfStream;
}
