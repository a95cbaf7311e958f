// One sample: where it is, its media, and its record as tokens, as text and raw; and every step in which it is trained.

import { ask } from "./answers.js";
import { colour, comma, data, h, latest, pause, percent, plural, problem, progress, put, swatch, visible } from "./dom.js";

const TABS = [["tokens", "Tokens"], ["text", "Text"], ["raw", "Record"]];

export class Sample {
  constructor({ overview, choose, step, back }) {
    this.overview = overview;
    this.choose = choose;
    this.step = step;
    this.back = back;
    this.element = h("div.sample", {}, h("p.note", {}, "Choose a row."));
    this.load = latest((signal, row) => this.read(signal, row), (error) => put(this.element, this.bar(), problem(error)));
    this.find = latest((signal, row, epoch) => this.readPositions(signal, row, epoch), (error) => put(this.places, problem(error)));
  }

  update(parameters) {
    const tab = TABS.some(([name]) => name === parameters.tab) ? parameters.tab : "tokens";
    const row = parameters.row;
    if (row === undefined) {
      this.row = undefined;
      this.load.stop();
      this.find.stop();
      put(this.element, h("p.note", {}, "Choose a row."));
    } else if (row !== this.row) {
      this.row = row;
      this.tab = tab;
      this.load(row);
    } else if (tab !== this.tab) {
      this.tab = tab;
      if (this.found) this.drawBody();
    }
  }

  async read(signal, row) {
    this.find.stop(); // it would write below the sample that comes now
    const waiting = setTimeout(() => put(this.element, this.bar(), h("p.note", { role: "status" }, `Reading row ${row} …`)), 300);
    const found = await ask("sample", { row }, signal).finally(() => clearTimeout(waiting));
    this.found = found;
    this.places = h("div.places");
    this.body = h("div.sample-body");
    put(this.element, this.bar(), this.head(found), this.media(found), this.tabs(), this.body, this.places);
    this.element.parentElement.scrollTop = 0;
    this.drawBody();
    if (this.overview.prepared && found.length) this.find(row, 0);
  }

  bar() {
    return h("div.sample-bar", {},
      h("button.back", { type: "button", onclick: () => this.back() }, "← Rows"),
      h("button", { type: "button", onclick: () => this.step(-1), "aria-label": "Previous sample" }, "↑"),
      h("button", { type: "button", onclick: () => this.step(1), "aria-label": "Next sample" }, "↓"));
  }

  head(found) {
    const facts = found.length
      ? `${plural(found.length, "token")}, ${comma(found.targets)} trained (${percent(found.targets, found.length)})`
      : `No tokens${found.reason ? `: dropped as ${found.reason}` : ""}`;
    const source = this.overview.sources[found.source].name;
    return h("header", {}, h("h3", {}, data(found.where, 400)),
      h("p.chips", {}, h("span.chip", {}, swatch(colour(found.source)), " ", data(source, 60)), h("span.chip", {}, `row ${comma(found.own)}`),
        found.sequences.length > 1 && h("span.chip", {}, `sequences of ${found.sequences.map(comma).join(" + ")} tokens`)),
      h("p", {}, facts, found.outcome && h("span.soft", {}, ". ", data(found.outcome))));
  }

  media(found) {
    if (!found.pictures.length) return null;
    return h("ul.media", {}, found.pictures.map((picture, place) => h("li", {},
      picture.url && h("img", { src: picture.url, width: picture.width, height: picture.height, alt: "" }),
      picture.kind !== "image" && !this.overview.exported && this.player(picture.kind, `media/${found.row}/${place}`),
      h("span", {}, data(picture.line), picture.problem && h("em", {}, " ", data(picture.problem))))));
  }

  player(kind, src) {
    const player = h(kind, { controls: true, preload: "metadata", "aria-label": kind, src, onerror: async () => {
      const answer = await fetch(src, { headers: { range: "bytes=0-0" } }).catch(() => null), value = await answer?.json().catch(() => null);
      player.replaceWith(problem(new Error(value?.error ?? "This browser cannot play it.")));
    } });
    return player;
  }

  tabs() {
    this.tabButtons = TABS.map(([name, label]) => h("button", { type: "button", role: "tab", "data-tab": name,
      onclick: () => this.choose({ tab: name }) }, label));
    return h("div.tabs", { role: "tablist" }, this.tabButtons);
  }

  drawBody() {
    for (const button of this.tabButtons) button.setAttribute("aria-selected", String(button.dataset.tab === this.tab));
    const found = this.found;
    if (this.tab === "raw") put(this.body, textBlock(found.raw, found.raw_size, "The record as it is in the data"));
    else if (!found.length) put(this.body, h("p.note", {}, "This record gave no sample, so it has no text and no tokens."));
    else if (this.tab === "text") {
      const what = found.is_chat ? "As the chat template renders it" : "As its tokens read";
      put(this.body, h("p.note", {}, `${what}.`), textBlock(found.rendered, found.rendered_size, what));
    } else this.drawTokens(found);
  }

  drawTokens(found) {
    const said = h("output.token-said", { "aria-live": "polite" }, "Point at a token.");
    const tokens = h("div.tokens.text", { tabindex: 0, role: "region", "aria-label": "Tokens" });
    const ids = h("input", { type: "checkbox", onchange: () => tokens.classList.toggle("with-ids", ids.checked) });
    const state = { message: null, place: found.first, borders: found.sequences.length > 1 ? found.sequences.map((_, at, all) => all.slice(0, at).reduce((sum, size) => sum + size, 0)) : [] };
    appendTokens(tokens, found, state);
    tokens.addEventListener("pointerover", (event) => {
      const token = event.target.closest("[data-id]");
      if (!token) return;
      const kind = `${token.classList.contains("sp") ? "special, " : ""}${token.tagName === "B" ? "trained" : "not trained"}`;
      said.textContent = `token ${comma(Number(token.dataset.place))}, id ${token.dataset.id}, ${kind}${token.dataset.role ? `, ${token.dataset.role}` : ""}`;
    });
    const more = h("button", { type: "button", onclick: async () => {
      more.disabled = true;
      try {
        const next = await ask("sample", { row: found.row, from: state.place });
        appendTokens(tokens, next, state);
        this.offerMore(more, found, state);
      } catch (error) {
        more.replaceWith(problem(error));
      }
    } });
    this.offerMore(more, found, state);
    put(this.body, h("p.key.tokens", {}, h("b", {}, "trained"), " ", h("i", {}, "not trained"), " ", h("i.sp", {}, "special"), " ",
      h("s", {}, "\\u200b"), " hidden character", h("label", {}, ids, " ids")), tokens, said, more);
  }

  offerMore(button, found, state) {
    button.hidden = state.place >= found.length;
    button.disabled = false;
    button.textContent = `Show more: ${comma(found.length - state.place)} tokens are left`;
  }

  // Positions

  async readPositions(signal, row, epoch) {
    for (;;) {
      const found = await ask("positions", { row, epoch }, signal);
      if (found.landings) {
        this.drawPositions(row, found);
        return;
      }
      if (found.progress.error) throw new Error(found.progress.error);
      put(this.places, progress(found.progress, `packing epoch ${epoch}, to find its steps`));
      await pause(300, signal);
    }
  }

  drawPositions(row, found) {
    const { epoch, epochs, landings } = found;
    const lines = landings.map((at) => h("li", {}, h("a", { href: `#/run?step=${at.step}&epoch=${at.epoch}` }, `step ${comma(at.step)}`),
      this.overview.skip_steps.includes(at.step) ? " (skipped by the recipe)" : "", `, rank ${at.rank}, row ${at.row}: tokens ${comma(at.start)}–${comma(at.stop - 1)} at ${comma(at.place)} of the row`));
    const others = epochs === null || epochs > 1;
    put(this.places, h("h3", {}, epochs === 1 ? "Where it is trained" : `Where it is trained in epoch ${epoch}`),
      h("p", {}, data(found.outcome)), h("ul.positions", {}, lines),
      others ? h("p", {}, h("button", { type: "button", disabled: epoch === 0, onclick: () => this.find(row, epoch - 1) }, "Epoch before"), " ",
        h("button", { type: "button", disabled: epochs !== null && epoch + 1 >= epochs, onclick: () => this.find(row, epoch + 1) }, "Epoch after"),
        h("span.soft", {}, ` ${epochs === null ? "an endless run" : `${epochs} epochs in the run`}`)) : null);
  }

  close() {
    this.load.stop();
    this.find.stop();
  }
}

function appendTokens(parent, found, state) {
  const special = new Set(found.special), parts = [];
  for (const [id, text, isTrained, message, role, part] of found.tokens) {
    const sequence = state.borders.indexOf(state.place);
    if (sequence >= 0) parts.push(h("span.turn", {}, `sequence ${sequence}`));
    if (role && message !== state.message) {
      state.message = message;
      parts.push(h("span.turn", {}, `${message} ${role}`));
    }
    const token = h(isTrained ? "b" : "i", { "data-id": id, "data-place": state.place, "data-role": role ? `${role} ${part}` : null }, marked(text));
    if (special.has(id)) token.classList.add("sp");
    parts.push(token);
    state.place += 1;
  }
  parent.append(...parts);
}

function marked(text) { // line ends and tabs as marks, before they take effect
  return text.split(/([\n\t])/).map((part) => {
    if (part === "\n") return [h("u", {}, "↵"), "\n"];
    return part === "\t" ? [h("u", {}, "⇥"), "\t"] : visible(part);
  });
}

function textBlock(text, size, label) {
  const rest = size > text.length ? h("em", {}, `\n… ${comma(size - text.length)} more characters are not shown`) : null;
  return h("pre.raw", { tabindex: 0, role: "region", "aria-label": label }, visible(text), rest ?? "");
}
