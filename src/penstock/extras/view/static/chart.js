// Charts: axes with ticks and units around a frame, and lines, areas and bars in it.  Every plot of every page is one of these.
//
// A frame is as wide as its page: shapes are drawn in units of the data and stretched, ticks and grid lines are placed in percent.

import { comma, h, percent, s, short } from "./dom.js";

export const HEIGHT = 96; // pixels of a frame

// Round values from `least` to `most`, about `count` of them.
export function ticks(least, most, count = 4) {
  const span = most - least;
  if (!(span > 0)) return [least];
  const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const values = [];
  for (let number = Math.ceil(least / step - 1e-9); number * step <= most + step * 1e-6; number += 1) values.push(number * step + 0); // + 0: no −0
  return values;
}

// The same of things that are counted: whole numbers only.
const countTicks = (least, most, count) => [...new Set(ticks(least, most, count).map(Math.round))];

// Steps as ticks: whole numbers.
const wholeTicks = (first, last) => [...new Set(ticks(first, last, Math.max(2, Math.min(8, Math.floor(innerWidth / 160)))).map(Math.round))].filter((step) => step >= first && step <= last);

// Put axes around a frame.  y: { least, most, words, isCount, unit }; x: { first, span, unit } of whole steps, or { labels: [[share, text], …], unit }.
export function withAxes(frame, { height = HEIGHT, y, x }) {
  const share = (value) => (100 * (y.most - value)) / (y.most - y.least || 1);
  const values = (y.isCount ? countTicks : ticks)(y.least, y.most, height < 80 ? 2 : 4).filter((value) => share(value) > -0.5 && share(value) < 100.5);
  const places = x.labels ?? wholeTicks(x.first, x.first + x.span - 1).map((step) => [(step + 0.5 - x.first) / x.span, comma(step)]);
  frame.style.height = `${height}px`;
  for (const value of values) {
    const line = h("span.grid-line", { "aria-hidden": "true" });
    line.style.top = `${share(value)}%`;
    frame.append(line);
  }
  const left = h("div.y-axis", { "aria-hidden": "true" }, values.map((value) => {
    const tick = h("span", {}, y.words(value));
    tick.style.top = `${share(value)}%`;
    return tick;
  }));
  left.style.height = `${height}px`;
  const below = h("div.x-axis", { "aria-hidden": "true" }, places.map(([place, text]) => {
    const kind = place < 0.03 ? "span.at-start" : place > 0.97 ? "span.at-end" : "span";
    const tick = h(kind, {}, text);
    tick.style.left = `${100 * place}%`;
    return tick;
  }), x.unit && h("em", {}, x.unit));
  return h("div.chart", {}, y.unit && h("span.y-unit", {}, y.unit), left, h("div.chart-area", {}, frame, below));
}

// An SVG over a whole frame, in units of the data: `wide` by `height`.
export function canvas(wide, height, label, shapes) {
  return s("svg.over", { width: "100%", height, viewBox: `0 0 ${wide} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, shapes);
}

const placeOf = ({ least, most }, height) => (value) => height - (height * (Math.min(Math.max(value, least), most) - least)) / (most - least || 1);

// A filled area of one value for each bin.
export function area(values, y, height) {
  const place = placeOf(y, height);
  const points = values.map((value, bin) => `${bin} ${place(value)}H${bin + 1}`).join("V").replaceAll(/V(\d+) /g, "L$1 ");
  return s("path.area", { d: `M0 ${height}L${points}L${values.length} ${height}Z` });
}

// A line through the points [x, y] that have a value.
export function line(points, y, height, kind) {
  const place = placeOf(y, height);
  const known = points.filter(([, value]) => value !== null && value !== undefined);
  const path = known.map(([x, value], number) => `${number ? "L" : "M"}${x} ${place(value).toFixed(2)}${number ? "" : "h0"}`).join("");
  return s(`path.curve.${kind}`, { d: path, "vector-effect": "non-scaling-stroke" });
}

// The range of an axis for these values: from 0 if they come near it, with a little room above.
export function range(values, { fromZero = false } = {}) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  if (!known.length) return { least: 0, most: 1 };
  const low = known.reduce((one, other) => Math.min(one, other)), high = known.reduce((one, other) => Math.max(one, other));
  const least = fromZero || low < (high - low) / 2 ? Math.min(0, low) : low - (high - low) * 0.05;
  const most = high + (high - least) * 0.05;
  return { least, most: most > least ? most : least + 1 };
}

// A histogram: bars of `counts` with a label at the start of each; the bars of `lost` are red.
export function histogram({ title, note, labels, counts, lost = [], unit = "", counted = "" }) {
  const total = counts.reduce((sum, count) => sum + count, 0), y = { ...range(counts, { fromZero: true }), words: short, isCount: true, unit: counted };
  const said = (bar) => `${labels[bar]}: ${comma(counts[bar])} (${percent(counts[bar], total)})`;
  const bars = counts.map((count, bar) => {
    const tall = (HEIGHT * count) / (y.most - y.least);
    return s(`rect.${lost[bar] ? "lost" : "fill"}`, { x: bar + 0.06, y: HEIGHT - tall, width: 0.88, height: tall }, s("title", {}, said(bar)));
  });
  const room = innerWidth < 500 ? 3 : 5; // labels that fit next to each other
  const every = Math.max(1, Math.ceil(labels.length / room)), shown = labels.map((text, bar) => [(bar + 0.5) / labels.length, text]).filter((_, bar) => bar % every === 0);
  const frame = h("div.frame.still.histogram", {}, canvas(counts.length, HEIGHT, `${title}: ${note}`, bars));
  const numbers = h("details", {}, h("summary", {}, "The numbers"), h("div.scroll", {}, h("table", {},
    h("tbody", {}, counts.map((count, bar) => h("tr", {}, h("td", {}, labels[bar]), h("td.n", {}, comma(count)), h("td.n", {}, percent(count, total))))))));
  return h("figure", {}, h("figcaption", {}, title, h("span.soft", {}, ` ${note}`)), withAxes(frame, { y, x: { labels: shown, unit } }), numbers);
}

// Lines over steps: series [{ name, kind, points: [[step, value], …] }].  A click on the plot calls pick(step) with the nearest step of a point.
export function lines({ title, note, series, words, unit = "step", pick = null, height = 150, legend = null }) {
  const all = series.flatMap(({ points }) => points).filter(([, value]) => value !== null && Number.isFinite(value));
  if (!all.length) return h("p.note", {}, `${title}: nothing is recorded yet.`);
  const first = all.reduce((least, [step]) => Math.min(least, step), Infinity), last = all.reduce((most, [step]) => Math.max(most, step), -Infinity);
  const span = last - first + 1, y = { ...range(all.map(([, value]) => value)), words };
  const shapes = series.map(({ kind, points }) => line(points.map(([step, value]) => [step + 0.5 - first, value]), y, height, kind));
  const said = h("span.frame-said");
  const frame = h(pick ? "div.frame.open" : "div.frame.open.still", { tabindex: pick ? 0 : null, role: pick ? "slider" : null, "aria-label": pick ? `${title}: step` : null,
    "aria-valuemin": pick ? first : null, "aria-valuemax": pick ? last : null, "aria-valuenow": pick ? first : null }, canvas(span, height, `${title}, ${note}`, shapes), said);
  const nearest = (step) => all.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best));
  const stepAt = (event) => {
    const box = frame.getBoundingClientRect();
    return nearest(first + (span * (event.clientX - box.left)) / box.width - 0.5)[0];
  };
  const say = (step) => {
    const values = series.map(({ name, points }) => [name, points.find(([other]) => other === step)?.[1]]).filter(([, value]) => value !== undefined && value !== null);
    said.textContent = `${unit} ${comma(step)}: ${values.map(([name, value]) => (series.length > 1 ? `${name} ${words(value)}` : words(value))).join(", ")}`;
  };
  frame.addEventListener("pointermove", (event) => say(stepAt(event)));
  frame.addEventListener("pointerleave", () => { said.textContent = ""; });
  if (pick) {
    let at = first;
    frame.addEventListener("click", (event) => pick(stepAt(event)));
    frame.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by !== undefined) {
        const steps = [...new Set(all.map(([step]) => step))].sort((one, other) => one - other);
        at = steps[Math.min(Math.max(steps.indexOf(at) + by, 0), steps.length - 1)];
        frame.setAttribute("aria-valuenow", at);
        say(at);
      } else if (event.key === "Enter") pick(at);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }
  return h("figure", {}, h("figcaption", {}, title, h("span.soft", {}, ` ${note}`)), withAxes(frame, { height, y, x: { first, span, unit } }), legend);
}
