// Start: read the model's facts, wire the form to its views, follow the address.

import { AskView } from "./ask.js";
import { json } from "./api.js";
import { Comparison } from "./compare.js";
import { fitForm, readForm, writeForm } from "./compose.js";
import { ConceptBrowser } from "./concepts.js";
import { announce, byId, counted, el, whole } from "./dom.js";
import { readHash } from "./permalink.js";
import { problemBox } from "./problem.js";
import { asHtml, asJson, download } from "./save.js";
import { Steering } from "./steering.js";
import { startTheme } from "./theme.js";

startTheme();
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address belongs to the views
  byId("main").focus();
});
start();

async function start() {
  let served;
  try {
    served = (await json("v1/models")).data[0];
  } catch (error) {
    byId("problem").replaceChildren(problemBox(error, () => location.reload()));
    byId("write").disabled = true;
    return;
  }
  const model = served.vitrail;
  fitForm(model);
  showFacts(served.id, model);

  const steering = new Steering(
    { list: byId("steers"), empty: byId("no-steers"), input: byId("steer-find"), options: byId("steer-options") },
    () => tellSteers(),
  );
  steering.most = model.limits?.max_steers ?? 16;
  byId("steering").hidden = model.calibration === null;
  document.body.dataset.steering = model.calibration ? "on" : "none";
  byId("unit").textContent = model.calibration ? String(model.calibration.target) : "";

  const turn = (concept) => {
    if (!steering.add(concept)) return;
    byId("steering").open = true;
    byId("turned").textContent = `${concept.name} is in the steering list above.`;
  };
  const view = new AskView(model, turn);
  const comparison = new Comparison(byId("comparison"), {
    onOpen: (ask, answer) => view.take(ask, answer),
    onBusy: (isBusy) => (byId("stop-compare").hidden = !isBusy),
  });
  const browser = new ConceptBrowser((concept) => {
    turn(concept);
    location.hash = "#ask";
    byId("steering").scrollIntoView({ block: "center" });
    byId("steering").querySelector("summary").focus();
  });

  function tellSteers() {
    const count = steering.value.length;
    byId("compare").hidden = count === 0;
    byId("steer-count").textContent = count ? counted(count, "concept") : "";
    byId("turned").textContent = "";
  }

  view.onBusy = (isBusy) => (byId("stop").hidden = !isBusy);

  const ask = () => readForm(steering.value);
  byId("ask-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const asked = ask();
    if (asked) view.run(asked);
  });
  byId("ask-prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("ask-form").requestSubmit();
  });
  byId("stop").addEventListener("click", () => view.stop());
  byId("compare").addEventListener("click", () => {
    const asked = ask();
    if (!asked) return;
    if (byId("ask-seed").value === "") asked.seed = view.seedOf(asked) ?? asked.seed;
    comparison.run(asked);
    view.compare(asked);
    byId("comparison").scrollIntoView({ block: "start" });
  });
  byId("stop-compare").addEventListener("click", () => comparison.stop());
  wireKeeping(view);
  byId("copy-compared").addEventListener("click", (event) => copyLink(view.addressOf(comparison.ask), event.target));

  function route() {
    const address = readHash(location.hash);
    const isAsk = address.view === "ask" || address.view === "unreadable";
    byId("view-ask").hidden = !isAsk;
    byId("view-concepts").hidden = isAsk;
    for (const link of document.querySelectorAll("[data-view]")) {
      if ((link.dataset.view === "ask") === isAsk) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (address.view === "concepts") browser.showList();
    if (address.view === "concept") browser.showOne(address.head, address.id);
    if (isAsk) document.title = "vitrail";
    if (address.view === "unreadable") tellUnreadable(address.why);
    else if (isAsk) byId("link-problem").replaceChildren();
    if (address.isCompared && !comparison.isHere(address.ask)) {
      view.compared = address.ask;
      comparison.run(address.ask);
    }
    if (address.ask && view.isHere(address.ask)) view.choose(address.place);
    else if (address.ask) {
      writeForm(address.ask);
      steering.set(address.ask.steer);
      view.run(address.ask, address.place);
    }
  }
  addEventListener("hashchange", route);
  for (const link of document.querySelectorAll('.top a[href="#ask"]')) {
    link.addEventListener("click", (event) => {
      if (!view.address) return;
      event.preventDefault(); // back to the answer that is here, with its own address
      location.hash = new URL(view.address).hash;
    });
  }
  tellSteers();
  route();
  document.body.dataset.ready = "true";
}

function tellUnreadable(why) {
  byId("link-problem").replaceChildren(
    el(
      "div",
      { class: "problem", role: "alert" },
      el("p", {}, el("b", {}, why), " Ask whoever sent it for a new one, or write a prompt below."),
      el("a", { class: "plain", href: "#ask" }, "Dismiss"),
    ),
  );
}

function wireKeeping(view) {
  const stem = () => `vitrail-${view.current.answer.seed}`;
  byId("save-json").addEventListener("click", () =>
    download(`${stem()}.json`, asJson(view.current), "application/json"),
  );
  byId("save-html").addEventListener("click", () =>
    download(`${stem()}.html`, asHtml(view.current, view.nave.picture), "text/html"),
  );
  byId("copy-link").addEventListener("click", (event) => copyLink(view.address, event.target));
}

async function copyLink(address, button) {
  const shown = byId("link-text");
  try {
    await navigator.clipboard.writeText(address);
    announce("Link copied");
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy link"), 2500);
  } catch {
    button.after(shown);
    shown.hidden = false;
    shown.value = address;
    shown.select();
    announce("The browser does not let us copy; the link is selected, copy it by hand");
  }
}

function showFacts(name, model) {
  const facts = [
    ["model", name],
    ["parameters", whole(model.parameters)],
    ["known concepts", whole(model.num_known)],
    ["discovered concepts", whole(model.num_discovered)],
    ["context", counted(model.context_tokens, "token")],
    ["block", counted(model.block_tokens, "token")],
    ["arithmetic", model.dtype],
    ["training passages", model.index ? whole(model.index.num_passages) : "no index"],
    ["weights", model.model_id.slice(0, 12)],
  ];
  byId("facts").replaceChildren(
    ...facts.map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd", {}, value))),
  );
  byId("report-link").hidden = !model.report;
  byId("model-name").textContent = `${name} · ${short(model.parameters)} parameters`;
}

const short = (count) => new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(count);
