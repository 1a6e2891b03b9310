// Functions for tests of pages in a browser. Loaded into each page before its own scripts.
"use strict";

// What does not fit: how many pixels the page is wider than the window, and elements that cut their text off.
globalThis.findOverflow = () => {
  const root = document.documentElement;
  const cut = [...document.querySelectorAll("#content *, .top *, .bottom *")].filter((each) => {
    const style = getComputedStyle(each);
    const isClipped = style.overflowX === "hidden" || style.overflowX === "clip";
    return isClipped && !each.matches(".hidden") && each.scrollWidth > each.clientWidth + 1;
  });
  const overhang = root.scrollWidth - root.clientWidth;
  const found = cut.map((each) => `cut off: ${describeElement(each)}`);
  if (overhang > 0) found.push(`${overhang} pixels too wide`);
  return found;
};

// Tables that are wider than the page, so that their last columns are hidden until somebody scrolls.
globalThis.listWideTables = () =>
  [...document.querySelectorAll(".scroll")].filter((each) => each.scrollWidth > each.clientWidth + 1).map(describeElement);

globalThis.findOverflowOfLargeText = () => {
  document.documentElement.style.fontSize = "200%";
  const found = findOverflow();
  document.documentElement.style.fontSize = "";
  return found;
};

globalThis.describeElement = (element) =>
  `${element.tagName.toLowerCase()}${element.id ? "#" + element.id : ""} ${(element.getAttribute("aria-label") ?? element.textContent).trim().slice(0, 40)}`;

const FOCUSABLE = 'a[href], button, input:not([type="hidden"]), select, textarea, summary, [tabindex="0"]';

// Shows another page with the style of this one. Its scripts do not run.
globalThis.showPage = (html) => {
  const page = new DOMParser().parseFromString(html, "text/html");
  document.title = page.title;
  document.body.replaceWith(page.body);
};

// The controls that a person sees, in their order.
globalThis.listControls = () =>
  [...document.querySelectorAll(FOCUSABLE)].filter((each) => !each.disabled && each.checkVisibility({ visibilityProperty: true }));

const showsFocus = (element) => {
  const style = getComputedStyle(element);
  return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 && element.getBoundingClientRect().width > 0;
};

// The controls of the content that cannot be reached in the order of the page, or that look the same with the focus.
globalThis.findHiddenFocus = () =>
  listControls().filter((each) => {
    if (each.closest(".top")) return false; // The same on each page.
    each.focus({ focusVisible: true });
    return each.tabIndex !== 0 || document.activeElement !== each || !showsFocus(each);
  }).map(describeElement);

// Records which elements get the focus, and whether it is visible.
globalThis.recordFocus = () => {
  globalThis.focusedElements = new Set();
  globalThis.invisibleFocus = [];
  document.addEventListener("focusin", (event) => {
    focusedElements.add(event.target);
    if (!showsFocus(event.target)) invisibleFocus.push(describeElement(event.target));
  });
};

globalThis.listUnreached = () => listControls().filter((each) => !focusedElements.has(each)).map(describeElement);

// The rules that a page breaks, with the first element of each.
globalThis.findAxeViolations = async (context) => {
  const { violations } = await axe.run(context ?? document, { resultTypes: ["violations"], preload: false });
  return violations.map((each) => `${each.id}: ${each.nodes[0].html.slice(0, 160)} (${each.nodes.length})`);
};
