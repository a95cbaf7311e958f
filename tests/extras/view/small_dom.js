// A small DOM, enough to run an exported page without a browser: node small_dom.js FILE HASH prints the links and the text of a view.
const fs = require("fs");
const page = fs.readFileSync(process.argv[2], "utf8");
const script = page.match(/<script>([\s\S]*?)<\/script>/)[1];
const answers = page.match(/<script type="application\/json" id="answers">(.*?)<\/script>/)[1];
class Element {
  constructor(tag) { this.tagName = tag.toUpperCase(); this.kids = []; this.attrs = {}; this.dataset = {}; this.style = {}; this.listeners = {};
    const set = new Set(); this.classList = { add: (...c) => c.forEach((x) => set.add(x)), contains: (c) => set.has(c), toggle: (c, on) => (on ? set.add(c) : set.delete(c)) }; this.set = set; this.clientHeight = 600; this.scrollTop = 0; this.elements = new Proxy({}, { get: (t, n) => this.all().find((e) => e.attrs?.name === n) }); }
  all() { return this.kids.flatMap((k) => (k instanceof Element ? [k, ...k.all()] : [])); }
  append(...k) { for (const x of k) { if (x instanceof Element) x.parentElement = this; this.kids.push(x); } }
  replaceChildren(...k) { this.kids = []; this.append(...k); }
  setAttribute(n, v) { this.attrs[n] = String(v); if (n.startsWith("data-")) this.dataset[n.slice(5)] = String(v); }
  removeAttribute(n) { delete this.attrs[n]; }
  addEventListener(n, f) { this.listeners[n] = f; }
  get textContent() { return this.kids.map((k) => (k instanceof Element ? k.textContent : String(k))).join(""); }
  set textContent(t) { this.kids = [t]; }
  querySelector(q) { return this.all()[0]?.constructor ? new Element("x") : null; }
  querySelectorAll() { return this.all(); }
  closest() { return null; } focus() {} remove() {} replaceWith() {} getBoundingClientRect() { return { left: 0, width: 100 }; } scrollIntoView() {}
}
const ids = {};
for (const id of ["main", "title", "theme", "help", "keys"]) ids[id] = new Element("div");
ids.answers = { textContent: answers };
const nav = ["samples", "run", "what-if", "live", "data"].map((n) => { const e = new Element("a"); e.dataset.view = n; return e; });
global.Element = Element;
global.document = { getElementById: (i) => ids[i], createElement: (t) => new Element(t), createElementNS: (_, t) => new Element(t), querySelectorAll: () => nav, querySelector: () => new Element("a"), addEventListener() {}, documentElement: new Element("html"), activeElement: null };
global.location = { hash: process.argv[3] ?? "" }; global.history = { pushState: (_, __, t) => { location.hash = t; }, replaceState: (_, __, t) => { location.hash = t; } };
global.localStorage = { getItem: () => null, setItem() {} };
global.addEventListener = () => {}; global.innerWidth = 1200; global.ResizeObserver = class { observe() {} disconnect() {} };
global.FormData = class { *[Symbol.iterator]() {} };
(0, eval)(script);
setTimeout(() => {
  const links = nav.filter((link) => !link.hidden).map((link) => link.dataset.view);
  console.log(JSON.stringify({ links, text: ids.main.textContent }));
  process.exit(0);
}, 500);
