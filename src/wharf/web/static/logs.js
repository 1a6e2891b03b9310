// Pages of logs: follows the logs, and shows how many new lines there are while the reader looks at earlier ones.
"use strict";

const MAX_LOG_LINES = 20000; // Older lines leave the page; the server still has them.
const LOG_BLOCK_LINES = 500;
const LOG_RETRY_MS = 2000;
const MAX_LOG_RETRY_MS = 60000;

const logBox = document.getElementById("log");

function startLog() {
  const followButton = document.getElementById("log-follow");
  const endButton = document.getElementById("log-end");
  const wrapButton = document.getElementById("log-wrap");
  const state = document.getElementById("log-state");
  let after = logBox.dataset.after;
  let source = null;
  let isFollowing = logBox.dataset.follow !== "";
  let newLines = 0;
  let retryMs = LOG_RETRY_MS;

  const isAtEnd = () => logBox.scrollHeight - logBox.scrollTop - logBox.clientHeight < 40;

  function goToEnd() {
    logBox.scrollTop = logBox.scrollHeight;
    showNew(0);
  }

  function showNew(count) {
    newLines = count;
    endButton.textContent = count > 0 ? `${count.toLocaleString("en")} new, to the end` : "To the end";
    endButton.classList.toggle("main", count > 0);
  }

  function append(html, count) {
    const wasAtEnd = isAtEnd();
    let block = logBox.lastElementChild;
    if (!block || block.childElementCount >= LOG_BLOCK_LINES) {
      block = document.createElement("div");
      block.className = "block";
      logBox.append(block);
    }
    block.insertAdjacentHTML("beforeend", html);
    while (wasAtEnd && logBox.childElementCount > 1 && logBox.querySelectorAll(".line").length > MAX_LOG_LINES) {
      logBox.firstElementChild.remove();
    }
    if (wasAtEnd) goToEnd();
    else showNew(newLines + count);
  }

  function close() {
    source?.close();
    source = null;
  }

  function open() {
    if (source !== null || !isFollowing || document.hidden) return;
    const address = new URL(logBox.dataset.follow, location.href);
    address.searchParams.set("after", after);
    source = new EventSource(address);
    source.addEventListener("lines", (event) => {
      const part = JSON.parse(event.data);
      after = part.after;
      append(part.html, part.count);
    });
    source.addEventListener("end", () => {
      close();
      isFollowing = false;
      followButton.hidden = true;
      state.textContent = "These tasks print nothing more. Load the page again for newer allocations.";
    });
    source.addEventListener("open", () => {
      state.textContent = "Following";
      retryMs = LOG_RETRY_MS;
    });
    source.addEventListener("error", () => {
      close(); // Opened again here, at the position after the last line, and not by the browser at the old address.
      state.textContent = "The connection is lost. Trying again.";
      setTimeout(open, retryMs);
      retryMs = Math.min(2 * retryMs, MAX_LOG_RETRY_MS);
    });
  }

  if (isFollowing) {
    followButton.hidden = false;
    followButton.addEventListener("click", () => {
      isFollowing = !isFollowing;
      followButton.textContent = isFollowing ? "Stop following" : "Follow";
      state.textContent = "";
      if (isFollowing) open();
      else close();
    });
    document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else open(); });
  }
  wrapButton.hidden = false;
  wrapButton.addEventListener("click", () => {
    wrapButton.textContent = logBox.classList.toggle("wrap") ? "Do not wrap lines" : "Wrap lines";
  });
  endButton.hidden = false;
  endButton.addEventListener("click", goToEnd);
  logBox.addEventListener("scroll", () => { if (newLines > 0 && isAtEnd()) showNew(0); });
  const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
  if (target && logBox.contains(target)) target.scrollIntoView({ block: "center" });
  else if (logBox.dataset.start !== "top") goToEnd();
  open();
}

if (logBox) startLog();
