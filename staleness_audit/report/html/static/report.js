// Draws the figures, follows the theme, filters tables, opens what a link points to. Text is only ever set as text.
(function () {
  "use strict";
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const drawn = new Map();
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const narrow = matchMedia("(max-width: 640px)");

  // ------------------------------------------------------------------------------------------------------ figures

  // Colours are written as names of CSS variables; Plotly needs their values.
  function resolved(value, styles) {
    if (typeof value === "string") {
      return value.includes("var(--")
        ? value.replace(/var\((--[\w-]+)\)/g, (_, name) => styles.getPropertyValue(name).trim())
        : value;
    }
    if (Array.isArray(value)) {
      return typeof value[0] === "number" ? value : value.map((item) => resolved(item, styles));
    }
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolved(item, styles)]));
    }
    return value;
  }

  const CONFIG = {
    responsive: true,
    displaylogo: false,
    displayModeBar: false,
    showTips: false,
    doubleClick: "reset",
  };

  function draw(place) {
    const { data, layout } = resolved(spec(place), getComputedStyle(root));
    if (narrow.matches) layout.legend = { ...layout.legend, font: { size: 11 } };
    // A finger that scrolls the page must not get caught in a figure.
    if (narrow.matches) layout.dragmode = false;
    if (drawn.has(place)) keepView(place, layout);
    return Plotly.react(place, data, layout, CONFIG).then(() => {
      if (!drawn.has(place)) {
        drawn.set(place, true);
        place.on("plotly_click", (event) => follow(event.points[0]));
        place.dataset.drawn = "yes";
      }
    });
  }

  // Drawing anew, in another theme, keeps what is looked at.
  function keepView(place, layout) {
    if (!spec(place).views.length) return;
    for (const axis of ["xaxis", "yaxis"]) layout[axis] = { ...layout[axis], range: [...place._fullLayout[axis].range] };
  }
  const spec = (place) => figures[place.dataset.figure];

  function follow(point) {
    const target = point && point.customdata;
    if (typeof target === "string" && target && document.getElementById(target)) location.hash = target;
  }

  const places = [...document.querySelectorAll(".plot")];
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watcher.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "600px" });
  places.forEach((place) => watcher.observe(place));
  const all = () => Promise.all(places.filter((place) => !drawn.has(place)).map(draw));
  const again = () => [...drawn.keys()].forEach(draw);
  addEventListener("beforeprint", all);

  document.querySelectorAll("[data-view]").forEach((button) => {
    button.addEventListener("click", () => {
      const place = document.getElementById(button.dataset.plot);
      button.parentElement.querySelectorAll("[data-view]").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      Plotly.relayout(place, spec(place).views[Number(button.dataset.view)]);
    });
  });

  // What a mouse does by dragging and a wheel, for keyboards and fingers: scale, shift along, shift down.
  document.querySelectorAll("[data-move]").forEach((button) => {
    const [scale, along, down = 0] = button.dataset.move.split(",").map(Number);
    button.addEventListener("click", () => {
      const place = document.getElementById(button.dataset.plot);
      const moved = ([low, high], shift) => {
        const middle = (low + high) / 2 + (high - low) * shift;
        return [middle - ((high - low) * scale) / 2, middle + ((high - low) * scale) / 2];
      };
      Plotly.relayout(place, {
        "xaxis.range": moved(place._fullLayout.xaxis.range, along),
        "yaxis.range": moved(place._fullLayout.yaxis.range, down),
      });
    });
  });

  // -------------------------------------------------------------------------------------------------------- theme

  const toggle = document.getElementById("theme");
  const THEMES = ["automatic", "light", "dark"];
  function setTheme(name) {
    if (name === "automatic") delete root.dataset.theme;
    else root.dataset.theme = name;
    try {
      if (name === "automatic") localStorage.removeItem("staleness-audit-theme");
      else localStorage.setItem("staleness-audit-theme", name);
    } catch (error) { /* no storage: until the page is closed */ }
    toggle.textContent = "Theme: " + name;
    again();
  }
  toggle.textContent = "Theme: " + (root.dataset.theme || "automatic");
  toggle.addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(root.dataset.theme || "automatic") + 1) % 3]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);

  // ------------------------------------------------------------------------------------------------------- tables

  document.querySelectorAll("[data-filter-for]").forEach((box) => {
    const rows = [...document.getElementById(box.dataset.filterFor).tBodies[0].rows];
    const input = box.querySelector("input");
    const count = box.querySelector(".filter-count");
    const chips = [...box.querySelectorAll("[data-choice]")];
    const texts = rows.map((row) => row.textContent.toLowerCase());
    function apply() {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const chosen = chips.filter((chip) => chip.getAttribute("aria-pressed") === "true").map((chip) => chip.dataset.choice);
      let shown = 0;
      rows.forEach((row, index) => {
        const fits = words.every((word) => texts[index].includes(word)) &&
          (!chosen.length || chosen.some((choice) => [...row.cells].some((cell) => cell.textContent.trim() === choice)));
        row.hidden = !fits;
        shown += fits;
      });
      count.textContent = shown === rows.length ? `${rows.length.toLocaleString("en")} ${rows.length === 1 ? "row" : "rows"}` : `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`;
    }
    input.addEventListener("input", apply);
    chips.forEach((chip) => chip.addEventListener("click", () => {
      chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
      apply();
    }));
    apply();
  });

  // -------------------------------------------------------------------------------------------------------- links

  // A link into something folded unfolds it.
  function reveal() {
    let target = null;
    try {
      target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    } catch (error) { /* not an address of this page */ }
    if (!target) return;
    if (target.hidden) target.hidden = false;
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    document.querySelectorAll(".target").forEach((old) => old.classList.remove("target"));
    target.classList.add("target");
    target.scrollIntoView({ behavior: calm.matches ? "auto" : "smooth", block: "start" });
  }
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();

  document.querySelectorAll("[data-copy]").forEach((button) => {
    button.addEventListener("click", async (event) => {
      event.preventDefault();
      event.stopPropagation();
      const address = location.href.split("#")[0] + "#" + button.dataset.copy;
      history.replaceState(null, "", "#" + button.dataset.copy);
      try {
        await navigator.clipboard.writeText(address);
        button.textContent = "Copied";
      } catch (error) {
        button.textContent = "In the address bar";
      }
      setTimeout(() => { button.textContent = "Copy link"; }, 2000);
    });
  });

  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((fold) => {
    if (!fold.open && !fold.classList.contains("numbers")) { fold.open = true; fold.dataset.printed = "yes"; }
  }));
  addEventListener("afterprint", () => document.querySelectorAll("[data-printed]").forEach((fold) => {
    fold.open = false;
    delete fold.dataset.printed;
  }));
})();
