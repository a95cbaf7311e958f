// Elements, text that cannot hide, numbers in words, and requests to the server.

// h("a.chip", { href }, "text", child): an element with classes, attributes, listeners (onclick) and children.
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag.split(".")[0]), tag, attributes, children);
}

export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag.split(".")[0]), tag, attributes, children);
}

function fill(element, tag, attributes, children) {
  const classes = tag.split(".").slice(1);
  if (classes.length) element.classList.add(...classes);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...present(children));
  return element;
}

const present = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

// Replace what an element holds.
export function put(element, ...children) {
  element.replaceChildren(...present(children));
}

// Characters that steer or hide: control, format (with bidi), surrogates, line and paragraph separators, blanks of another kind.
const HIDING = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]|[^\S \n\t]/gu;
const SHOWN = new Set(["\u200c", "\u200d", "\n", "\t"]);

function spelled(char) {
  const code = char.codePointAt(0);
  if (code < 0x100) return "\\x" + code.toString(16).padStart(2, "0");
  return code < 0x10000 ? "\\u" + code.toString(16).padStart(4, "0") : "\\U" + code.toString(16).padStart(8, "0");
}

// Text of the data as nodes, with every character that hides spelled out in red.
export function visible(text) {
  const nodes = [];
  let done = 0;
  for (const found of text.matchAll(HIDING)) {
    if (SHOWN.has(found[0])) continue;
    if (found.index > done) nodes.push(text.slice(done, found.index));
    const last = nodes.at(-1);
    if (last instanceof Element) last.append(spelled(found[0]));
    else nodes.push(h("s", {}, spelled(found[0])));
    done = found.index + found[0].length;
  }
  if (done < text.length) nodes.push(text.slice(done));
  return nodes;
}

// The same with every place marked where a text stands that was searched for, whatever its case.
export function highlighted(text, wanted) {
  const found = hits(text, wanted);
  if (!found.length) return visible(text);
  const nodes = [];
  let done = 0;
  for (const [start, stop] of found) {
    nodes.push(visible(text.slice(done, start)), h("mark", {}, visible(text.slice(start, stop))));
    done = stop;
  }
  return [...nodes, visible(text.slice(done))];
}

// Where a text is found in another, as [start, stop].
export function hits(text, wanted) {
  if (!wanted) return [];
  const folded = text.toLowerCase(), looked = wanted.toLowerCase(), found = [];
  if (folded.length !== text.length) return found; // places would differ, as after "İ"
  for (let place = folded.indexOf(looked); place >= 0 && found.length < 1000; place = folded.indexOf(looked, place + looked.length)) found.push([place, place + looked.length]);
  return found;
}

// The same as a string, for titles and options.
export const plain = (text) => text.replaceAll(HIDING, (char) => (SHOWN.has(char) ? char : spelled(char)));

// A name or a short text of the data, in its own direction.
export function data(text, most = 240) {
  return h("bdi", {}, visible(text.length > most ? text.slice(0, most - 1) + "…" : text));
}

export const comma = (number) => Math.round(number).toLocaleString("en");

export function short(number) {
  for (const [unit, amount] of [["T", 1e12], ["B", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (number >= amount * 10 || (unit !== "k" && number >= amount)) return `${(number / amount).toPrecision(3)} ${unit}`;
  }
  return number === Math.round(number) || number >= 1000 ? comma(number) : number.toPrecision(3);
}

// A number that was measured, of any size, such as a loss or a learning rate.
export function measured(number) {
  const size = Math.abs(number);
  if (size > 0 && (size < 1e-3 || size >= 1e9)) return String(Number(number.toPrecision(3)).toExponential());
  return Number(number.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 });
}

export function percent(part, whole = 1) {
  if (!whole) return "–";
  const share = (100 * part) / whole;
  if (part > 0 && share < 0.1) return "< 0.1 %";
  if (part < whole && share > 99.9) return "> 99.9 %";
  return `${share.toFixed(1).replace(/\.0$/, "")} %`;
}

export function duration(seconds) {
  const units = [["day", 86400], ["h", 3600], ["min", 60]], found = units.findIndex(([, size]) => seconds >= size);
  if (found < 0) return `${Math.ceil(seconds)} s`;
  const [unit, size] = units[found], whole = Math.floor(seconds / size), [small, part] = units[found + 1] ?? ["s", 1];
  const rest = Math.floor((seconds - whole * size) / part);
  return `${unit === "day" ? plural(whole, unit) : `${whole} ${unit}`}${rest && whole < 10 ? ` ${rest} ${small}` : ""}`;
}

export const plural = (number, word) => `${comma(number)} ${word}${number === 1 ? "" : "s"}`;

export const colour = (source) => (source < 7 ? `c${source}` : "cx");

export function swatch(kind) {
  return s("svg", { width: 10, height: 10, "aria-hidden": "true" }, s(`rect.${kind}`, { width: 10, height: 10, rx: 3 }));
}

// Run `work` after each call; of several that overlap, only the last one counts.  Its signal ends the others.
export function latest(work, report) {
  let control = null;
  const run = async (...parameters) => {
    control?.abort();
    const own = (control = new AbortController());
    try {
      await work(own.signal, ...parameters);
    } catch (error) {
      if (error.name !== "AbortError" && !own.signal.aborted) report(error);
    }
  };
  run.stop = () => control?.abort();
  return run;
}

export const pause = (milliseconds, signal) => new Promise((done, fail) => {
  const timer = setTimeout(done, milliseconds);
  signal?.addEventListener("abort", () => { clearTimeout(timer); fail(new DOMException("", "AbortError")); });
});

export const problem = (error) => h("p.problem", { role: "alert" }, data(error.message, 2000));

export function copyButton(text) {
  const button = h("button", { type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select the line and copy it";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  } }, "Copy");
  return button;
}

export function progress(state, what) {
  const share = state.of ? state.done / state.of : 0;
  return h("p.progress", { role: "status" }, `${what}: ${percent(state.done, state.of || 1)}`,
    h("progress", { max: 1, value: share, "aria-label": what }));
}
