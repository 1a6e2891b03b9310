// The page of a job file: a dropped file becomes its text, and a mistake leads to its line.
"use strict";

const jobFile = document.getElementById("source");

jobFile?.addEventListener("dragover", (event) => event.preventDefault());
jobFile?.addEventListener("drop", async (event) => {
  const file = event.dataTransfer?.files[0];
  if (!file) return; // A dropped text: the browser inserts it.
  event.preventDefault();
  jobFile.value = await file.text();
});

for (const link of document.querySelectorAll("a[data-line]")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    const area = document.querySelector(link.getAttribute("href"));
    const lines = area.value.split("\n");
    const line = Number(link.dataset.line) - 1;
    const start = lines.slice(0, line).reduce((sum, text) => sum + text.length + 1, 0);
    area.focus();
    area.setSelectionRange(start + Number(link.dataset.column) - 1, start + (lines[line] ?? "").length);
    area.scrollTop = (area.scrollHeight / lines.length) * Math.max(0, line - 3);
  });
}
