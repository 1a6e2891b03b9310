// Draws the picture of the fleet: a cell for each node, filled with a dot for each of its allocations.
"use strict";

(() => {
  const place = document.getElementById("fleet");
  if (!place) return;
  const GAP = 2; // Between two cells, in CSS pixels.
  const MAX_CELL = 72;
  const MIN_CELL = 5;
  const MAX_DOTS = 64; // A node with more allocations shows a sample of them.
  let chosen = -1;
  let layout = null; // How the cells lie: columns, size of a cell, number of nodes.

  const canvas = () => document.getElementById("fleet-picture");
  const data = (name) => place.dataset[name];

  function readColors() {
    const colors = {};
    for (const each of document.querySelectorAll("[data-letter]")) colors[each.dataset.letter] = getComputedStyle(each).fill;
    return colors;
  }

  function chooseLayout(count, width, height) {
    let size = MAX_CELL;
    while (size > MIN_CELL && Math.ceil(count / Math.floor(width / size)) * size > height) size -= 1;
    return { size, columns: Math.max(1, Math.floor(width / size)), count };
  }

  function draw() {
    observer.disconnect();
    const picture = canvas();
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const cells = data("cells").split(",");
    const states = data("states");
    picture.hidden = false;
    const width = place.clientWidth;
    layout = chooseLayout(cells.length, width, Math.max(300, innerHeight * 0.7));
    const { size, columns } = layout;
    const height = Math.ceil(cells.length / columns) * size;
    const ratio = devicePixelRatio || 1;
    picture.width = width * ratio;
    picture.height = height * ratio;
    const context = picture.getContext("2d");
    context.scale(ratio, ratio);
    const colors = readColors();
    const inner = size - GAP;
    const isWhole = data("whole") === "yes";
    const ground = color("--line");
    const away = color("--bad");
    const waits = color("--wait");
    for (let node = 0; node < cells.length; node += 1) {
      const left = (node % columns) * size;
      const top = Math.floor(node / columns) * size;
      const letters = cells[node];
      context.fillStyle = isWhole && letters ? colors[letters] : ground;
      context.fillRect(left, top, inner, inner);
      if (!isWhole) drawDots(context, letters, left, top, inner, colors);
      if (states[node] !== "r") {
        context.strokeStyle = states[node] === "a" ? away : waits;
        context.lineWidth = Math.max(1, size / 12);
        context.strokeRect(left + 0.5, top + 0.5, inner - 1, inner - 1);
      }
    }
    if (chosen >= 0 && chosen < cells.length) {
      context.strokeStyle = color("--text");
      context.lineWidth = 2;
      context.strokeRect((chosen % columns) * size - 1, Math.floor(chosen / columns) * size - 1, inner + 2, inner + 2);
    }
    observer.observe(place, { attributes: true, subtree: true });
  }

  // Fills a cell from its lower end, as a glass: so a full node looks full in all sizes.
  function drawDots(context, letters, left, top, inner, colors) {
    const count = Math.min(letters.length, MAX_DOTS);
    if (count === 0) return;
    const perRow = Math.max(1, Math.ceil(Math.sqrt(count)));
    const dot = inner / perRow;
    const space = dot > 4 ? 1 : 0;
    for (let position = 0; position < count; position += 1) {
      context.fillStyle = colors[letters[Math.floor((position * letters.length) / count)]];
      const row = Math.floor(position / perRow);
      context.fillRect(left + (position % perRow) * dot, top + inner - (row + 1) * dot, dot - space, dot - space);
    }
  }

  function describe(node) {
    const names = data("names").split("\n");
    if (node < 0 || node >= names.length) return "";
    const [cpu, memory] = data("use").split(",")[node].split(".");
    const words = { r: "ready", i: "ineligible", d: "draining", a: "away", n: "initializing" };
    return `${names[node]}: ${words[data("states")[node]]}, CPU ${cpu} % and memory ${memory} % requested`;
  }

  function choose(node) {
    const next = Math.min(Math.max(node, 0), layout.count - 1);
    if (next === chosen) return;
    chosen = next;
    draw();
    document.getElementById("fleet-node").textContent = describe(chosen);
  }

  function find(event) {
    const box = canvas().getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / layout.size);
    const row = Math.floor((event.clientY - box.top) / layout.size);
    const node = row * layout.columns + column;
    return column >= 0 && column < layout.columns && node >= 0 && node < layout.count ? node : -1;
  }

  function open(node) {
    if (node < 0) return;
    location.href = `/ui/nodes/${encodeURIComponent(data("names").split("\n")[node])}`;
  }

  const observer = new MutationObserver(draw);
  const steps = { ArrowLeft: () => -1, ArrowRight: () => 1, ArrowUp: () => -layout.columns, ArrowDown: () => layout.columns };
  place.addEventListener("pointermove", (event) => {
    const node = event.target === canvas() ? find(event) : -1;
    if (node >= 0) choose(node);
  });
  place.addEventListener("click", (event) => { if (event.target === canvas()) open(find(event)); });
  place.addEventListener("keydown", (event) => {
    if (event.key in steps) {
      event.preventDefault();
      choose(chosen + steps[event.key]());
    } else if (event.key === "Enter") {
      open(chosen);
    }
  });
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
