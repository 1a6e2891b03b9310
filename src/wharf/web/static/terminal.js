// The page of a terminal: connects xterm.js to a command in a task. Nothing connects without a press of a button.
"use strict";

async function startTerminal(box) {
  const [{ Terminal }, { FitAddon }] = await Promise.all(box.dataset.modules.split(" ").map((address) => import(address)));
  const CHUNK_BYTES = 2048; // Input of one message.
  const MAX_PASTE_CHARS = 262144;
  const READ_REPORT_CHARS = 32768; // After so much output, the server learns what has been shown, and sends more.
  const HEARTBEAT_MS = 10000; // An idle connection is not closed.
  const SCROLLBACK_LINES = 5000;

  const find = (name) => document.getElementById(`terminal-${name}`);
  const form = find("form");
  const connectButton = find("connect");
  const endButton = find("end");
  const copyButton = find("copy");
  const state = find("state");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const encoder = new TextEncoder();
  let socket = null;
  let begun = false; // Whether the command has begun.
  let exitCode = null;
  let isLeaving = false; // Whether the person ends the connection.
  let shownChars = 0;
  let reportedChars = 0;
  let heartbeat = 0;

  const rootStyle = getComputedStyle(document.documentElement);
  const terminal = new Terminal({
    allowProposedApi: false,
    cursorBlink: false,
    disableStdin: true,
    fontFamily: 'ui-monospace, "Cascadia Mono", "DejaVu Sans Mono", Menlo, monospace',
    fontSize: Math.round(0.875 * parseFloat(rootStyle.fontSize)),
    linkHandler: { activate() {} }, // Links of programs lead nowhere.
    minimumContrastRatio: 4.5,
    scrollback: SCROLLBACK_LINES,
    theme: readTheme(),
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);

  function readTheme() {
    const color = (name) => rootStyle.getPropertyValue(`--${name}`).trim();
    return {
      background: color("raised"), foreground: color("text"), cursor: color("text"), cursorAccent: color("raised"),
      selectionBackground: color("accent"), selectionForeground: "#ffffff",
    };
  }

  // -- the connection

  function splitCommand(text) {
    return [...text.matchAll(/"([^"]*)"|'([^']*)'|(\S+)/g)].map((found) => found[1] ?? found[2] ?? found[3]);
  }

  function connect() {
    const command = splitCommand(find("command").value);
    if (socket !== null || command.length === 0) return;
    const address = new URL(box.dataset.socket, location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    address.searchParams.set("task", find("task").value);
    address.searchParams.set("command", JSON.stringify(command));
    begun = false;
    exitCode = null;
    isLeaving = false;
    shownChars = reportedChars = 0;
    terminal.reset();
    box.hidden = find("keys").hidden = copyButton.hidden = endButton.hidden = false;
    connectButton.hidden = true;
    fit.fit();
    state.textContent = "Connecting";
    state.className = "";
    socket = new WebSocket(address);
    socket.addEventListener("open", () => {
      sendSize(terminal);
      heartbeat = setInterval(() => send({}), HEARTBEAT_MS);
    });
    socket.addEventListener("message", (event) => onMessage(event.data));
    socket.addEventListener("close", onClose);
  }

  function send(message) {
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
  }

  function sendSize(size) {
    send({ tty_size: { height: size.rows, width: size.cols } });
  }

  function sendInput(bytes) {
    for (let begin = 0; begin < bytes.length; begin += CHUNK_BYTES) {
      const part = bytes.subarray(begin, begin + CHUNK_BYTES);
      send({ stdin: { data: btoa(String.fromCharCode(...part)) } });
    }
  }

  function onMessage(text) {
    const message = JSON.parse(text);
    if (!begun) {
      begun = true;
      state.textContent = "Connected";
      terminal.options.disableStdin = false;
      terminal.focus();
      sendSize(terminal);
    }
    if (message.exited) exitCode = message.result?.exit_code ?? 0;
    const data = message.stdout?.data || message.stderr?.data || "";
    terminal.write(Uint8Array.from(atob(data), (character) => character.charCodeAt(0)), () => {
      shownChars += text.length;
      if (shownChars - reportedChars >= READ_REPORT_CHARS) {
        reportedChars = shownChars;
        send({ read: shownChars });
      }
    });
  }

  function onClose(event) {
    clearInterval(heartbeat);
    socket = null;
    terminal.options.disableStdin = true;
    endButton.hidden = true;
    connectButton.hidden = false;
    connectButton.textContent = "Connect again";
    const text = describeEnd(event);
    state.className = exitCode === 0 || isLeaving ? "" : "error";
    state.textContent = text;
    terminal.write(`\r\n\x1b[0m[${text}]\r\n`);
    connectButton.focus();
  }

  function describeEnd(event) {
    if (exitCode !== null) return `The command ended with exit code ${exitCode}.`;
    if (isLeaving) return "You ended the connection. The command was stopped.";
    if (event.reason) {
      const advice = event.reason === "Permission denied" ? ` ${box.dataset.advice}` : "";
      return `The server ended the connection: ${event.reason}.${advice}`;
    }
    if (!begun) return "The server refused the connection. Load the page again: you may be signed out.";
    return "The connection is lost. The command was stopped; a new connection starts it again from the beginning.";
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    connect();
  });
  endButton.addEventListener("click", () => {
    isLeaving = true;
    socket?.close(1000);
  });
  addEventListener("beforeunload", (event) => {
    if (socket !== null && begun) event.preventDefault(); // Ctrl-W deletes a word in shells, and closes tabs.
  });

  // -- keys, copying and pasting

  terminal.onData((data) => sendInput(encoder.encode(data)));
  terminal.onBinary((data) => sendInput(Uint8Array.from(data, (character) => character.charCodeAt(0))));
  terminal.onResize(sendSize);
  terminal.attachCustomKeyEventHandler((event) => {
    if (!event.ctrlKey || !event.shiftKey || event.altKey || event.metaKey) return true;
    if (event.code === "KeyV") return false; // The browser pastes.
    if (event.code !== "KeyC" && event.code !== "KeyL") return true;
    event.preventDefault();
    if (event.type === "keydown") {
      if (event.code === "KeyC") copy(terminal.getSelection());
      else (endButton.hidden ? connectButton : endButton).focus();
    }
    return false;
  });
  box.addEventListener("keydown", (event) => event.stopPropagation()); // They are no keys of the page.

  async function copy(text) {
    if (text === "") return;
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
    } else {
      document.execCommand("copy"); // Over plain http there is no other way. The terminal copies its selection.
    }
    copyButton.textContent = "Copied";
    setTimeout(() => { copyButton.textContent = "Copy"; }, 2000);
  }

  function readAll() {
    const buffer = terminal.buffer.active;
    const lines = Array.from({ length: buffer.length }, (_, row) => buffer.getLine(row).translateToString(true));
    return lines.join("\n").trimEnd();
  }

  copyButton.addEventListener("click", () => {
    if (!terminal.hasSelection() && !navigator.clipboard) terminal.selectAll();
    copy(terminal.getSelection() || readAll());
  });

  // Lines of a pasted text run at once in programs that do not tell pasted text from typed text.
  box.addEventListener("paste", (event) => {
    event.preventDefault();
    event.stopPropagation();
    const pasted = event.clipboardData?.getData("text/plain") ?? "";
    const text = pasted.replace(/[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]/g, ""); // Keys that text must not press.
    if (text.length > MAX_PASTE_CHARS) {
      state.textContent = `Nothing was pasted: the text is longer than ${MAX_PASTE_CHARS.toLocaleString("en")} characters.`;
      return;
    }
    const isSafe = terminal.modes.bracketedPasteMode || !/[\r\n]/.test(text);
    if (socket !== null && (isSafe || confirm(`Paste ${text.split(/\r\n|\r|\n/).length} lines? They may run at once.`))) {
      terminal.paste(text);
    }
  }, true);

  find("reader").addEventListener("change", (event) => {
    terminal.options.screenReaderMode = event.target.checked;
    terminal.focus();
  });

  dark.addEventListener("change", () => { terminal.options.theme = readTheme(); });
  form.hidden = false;
  box.hidden = false;
  terminal.open(box);
  box.hidden = true;
  new ResizeObserver(() => { if (!box.hidden) fit.fit(); }).observe(box);
  connectButton.focus();
}

const terminalBox = document.getElementById("terminal");
if (terminalBox) startTerminal(terminalBox);
