"use strict";
(() => {
  // The theme: the system's, unless the reader chooses one.
  const root = document.documentElement, theme = document.getElementById("theme");
  const order = ["system", "light", "dark"];
  const kept = { get: () => { try { return localStorage.getItem("penstock-theme"); } catch { return null; } },
                 set: (name) => { try { localStorage.setItem("penstock-theme", name); } catch { /* a file may not keep anything */ } } };
  const wear = (name) => {
    if (name === "system") delete root.dataset.theme; else root.dataset.theme = name;
    theme.textContent = "Theme: " + name;
    theme.dataset.now = name;
  };
  wear(order.includes(kept.get()) ? kept.get() : "system");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const next = order[(order.indexOf(theme.dataset.now) + 1) % order.length];
    wear(next);
    kept.set(next);
  });

  // Where the reader is.
  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
  const watch = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      if (!isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(target.id).setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const part of document.querySelectorAll("main > section")) watch.observe(part);

  // The samples: one at a time.
  const browser = document.querySelector(".browser");
  if (!browser) return;
  const picks = [...browser.querySelectorAll("nav a")], articles = [...browser.querySelectorAll("article")];
  const search = document.getElementById("search"), said = document.getElementById("token");
  let now = 0;
  const show = (number, focus) => {
    now = number;
    articles.forEach((article, place) => { article.hidden = place !== number; });
    picks.forEach((pick, place) => {
      if (place === number) pick.setAttribute("aria-current", "true"); else pick.removeAttribute("aria-current");
    });
    said.textContent = "";
    if (focus) picks[number].scrollIntoView({ block: "nearest" });
  };
  const move = (by) => {
    const listed = picks.map((_, place) => place).filter((place) => !picks[place].parentElement.hidden);
    if (!listed.length) return;
    const at = listed.indexOf(now);
    show(listed[(at + by + listed.length) % listed.length], true);
  };
  picks.forEach((pick, place) => pick.addEventListener("click", (event) => { event.preventDefault(); show(place, false); }));
  document.getElementById("before").addEventListener("click", () => move(-1));
  document.getElementById("after").addEventListener("click", () => move(1));
  browser.querySelector("nav").addEventListener("keydown", (event) => {
    if (event.target === search) return;
    if (event.key === "ArrowDown" || event.key === "ArrowRight") { event.preventDefault(); move(1); }
    if (event.key === "ArrowUp" || event.key === "ArrowLeft") { event.preventDefault(); move(-1); }
  });
  search.addEventListener("input", () => {
    const wanted = search.value.toLowerCase();
    picks.forEach((pick, place) => {
      pick.parentElement.hidden = !(pick.textContent + articles[place].textContent).toLowerCase().includes(wanted);
    });
    if (picks[now].parentElement.hidden) move(1);
  });
  browser.addEventListener("pointerover", (event) => {
    const token = event.target.closest(".text > b, .text > i");
    if (!token) return;
    const home = token.parentElement, place = [...home.querySelectorAll(":scope > b, :scope > i")].indexOf(token);
    const head = Number(home.dataset.head), number = place < head ? place : place - head + Number(home.dataset.tail);
    const kind = (token.classList.contains("sp") ? "special, " : "") + (token.tagName === "B" ? "trained" : "not trained");
    said.textContent = "token " + number.toLocaleString("en") + ", id " + home.dataset.ids.split(" ")[place] + ", " + kind;
  });
  if (picks.length) {
    browser.classList.add("one");
    browser.querySelector(".search").hidden = false;
    const asked = articles.findIndex((article) => "#" + article.id === location.hash);
    show(Math.max(asked, 0), false);
  }
})();
