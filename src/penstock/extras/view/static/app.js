// The frame of the page: which view is shown, the theme, the keys.  The address after # says everything that is shown.

import { ask } from "./answers.js";
import { data, h, pause, plain, problem, put } from "./dom.js";
import { Data } from "./data.js";
import { Live } from "./live.js";
import { LossPage } from "./losses.js";
import { Run } from "./run.js";
import { Samples } from "./samples.js";
import { WhatIf } from "./what_if.js";

const VIEWS = { samples: Samples, run: Run, "what-if": WhatIf, live: Live, losses: LossPage, data: Data };
const OF_SERVERS = ["what-if", "live", "losses"]; // views that one file does not have
const main = document.getElementById("main");

const isHere = (name) => !(context.overview?.exported && OF_SERVERS.includes(name));

// Addresses: #/view?name=value

function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: Object.hasOwn(VIEWS, path) && isHere(path) ? path : context.overview?.exported ? "data" : "samples", parameters: Object.fromEntries(new URLSearchParams(query)) };
}

function address(name, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(given).toString();
  return `#/${name}${query ? `?${query}` : ""}`;
}

function go(name, parameters, { replace = false } = {}) {
  const target = address(name, parameters);
  if (target === location.hash) return;
  history[replace ? "replaceState" : "pushState"](null, "", target);
  show();
}

let current = null;

function show() {
  if (!context.overview) return; // the address was changed while the page began
  const { name, parameters } = here();
  if (current?.name !== name) {
    current?.view.close?.();
    main.replaceChildren();
    main.className = name;
    current = { name, view: new VIEWS[name](main, context) };
    for (const link of document.querySelectorAll(".bar nav a")) {
      if (link.dataset.view === name) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    }
    document.title = `${name} – ${plain(context.overview.title) || "penstock view"}`;
  }
  current.view.update(parameters);
}

const context = { overview: null, go, address };

// The theme: the system's, unless the reader chooses one.

const theme = document.getElementById("theme"), themes = ["system", "light", "dark"];

function wear(name) {
  if (name === "system") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = name;
  theme.textContent = `Theme: ${name}`;
  theme.dataset.now = name;
}

let kept = null;
try { kept = localStorage.getItem("penstock-theme"); } catch { /* a browser may keep nothing */ }
wear(themes.includes(kept) ? kept : "system");
theme.addEventListener("click", () => {
  const next = themes[(themes.indexOf(theme.dataset.now) + 1) % themes.length];
  wear(next);
  try { localStorage.setItem("penstock-theme", next); } catch { /* as above */ }
});

// The keys.

const KEYS = [
  ["1 2 3 4 5 6", "Samples, Run, What if, Live, Losses, Data"], ["/", "search"], ["g", "go to a record or a step"],
  ["j k ↓ ↑", "next and previous sample; in a plot ← →, one step"], ["t x r", "a sample as tokens, text, raw record"],
  ["Esc", "back to the list"], ["?", "these keys"],
];
const help = document.getElementById("help");
help.append(h("h2", { id: "help-title" }, "Keys"),
  h("table", {}, KEYS.map(([key, meaning]) => h("tr", {}, h("td", {}, h("kbd", {}, key)), h("td", {}, meaning)))),
  h("form", { method: "dialog" }, h("button", {}, "Close")));
document.getElementById("keys").addEventListener("click", () => help.showModal());
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open || event.target.closest("input, select, textarea")) return;
  const view = Object.keys(VIEWS)[Number(event.key) - 1];
  if (event.key === "?") help.showModal();
  else if (view && isHere(view)) go(view, {});
  else if (!current?.view.key?.(event)) return;
  event.preventDefault();
});

// The beginning.

addEventListener("hashchange", show);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });

async function begin() {
  try {
    context.overview = await ask("overview");
  } catch (error) {
    put(main, problem(error));
    return;
  }
  for (const link of document.querySelectorAll(".bar nav a")) link.hidden = !isHere(link.dataset.view);
  put(document.getElementById("title"), data(context.overview.title));
  show();
  while (context.overview.facts && !context.overview.facts.over) { // tokens are counted in the background
    await pause(500);
    Object.assign(context.overview, await ask("overview").catch(() => ({ facts: null })));
    if (context.overview.facts?.over) current.view.refresh?.();
  }
}

begin();
