// Keeps the bars of an explanation up to date while somebody looks, and finds entities while one types.
"use strict";

(() => {
  const EVERY = 2000;

  const explanation = document.getElementById("limits-explanation");

  // All that is said besides the parts that move: which limits hold, where they come from, and whether they bind.
  const shape = (root) => {
    const copy = root.cloneNode(true);
    copy.querySelectorAll("[data-part]").forEach((part) => part.replaceWith(part.id));
    return copy.innerHTML.trim();
  };

  const replaceAll = (fresh) => {
    const focused = explanation.contains(document.activeElement) ? document.activeElement.href : null;
    explanation.replaceChildren(...fresh.childNodes);
    if (focused) [...explanation.querySelectorAll("a")].find((link) => link.href === focused)?.focus();
  };

  // Replace only the changed figures, to keep the scroll position; the whole page if the structure differs.
  const show = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html").body;
    if (shape(fresh) !== shape(explanation)) {
      replaceAll(fresh);
      return;
    }
    fresh.querySelectorAll("[data-part]").forEach((part) => {
      const old = document.getElementById(part.id);
      if (!old.isEqualNode(part)) old.replaceWith(part);
    });
  };

  const stale = document.getElementById("limits-stale");
  let asking = false;

  const heard = async (address) => {
    const answer = await fetch(address, { headers: { Accept: "text/html" }, redirect: "error" });
    if (!answer.ok) throw new Error(answer.statusText);
    return answer.text();
  };

  const refresh = async () => {
    if (asking || document.hidden) return;
    asking = true;
    const address = new URL(location.href);
    address.searchParams.set("fragment", "1");
    const text = await heard(address).catch(() => null);
    asking = false;
    stale.hidden = text !== null;
    if (text !== null) show(text);
  };

  if (explanation) setInterval(refresh, EVERY);

  const entity = document.getElementById("limits-entity");
  const found = document.getElementById("limits-entities");
  let asked = "";

  const find = async () => {
    const term = entity.value.trim();
    if (!term || term === asked) return;
    asked = term;
    const query = new URLSearchParams({ app_label: "limits_app", model_name: "policy", field_name: "entity", term });
    const answer = await fetch(`${entity.dataset.url}?${query}`);
    if (!answer.ok || asked !== term) return;
    const { results } = await answer.json();
    found.replaceChildren(...results.map(({ text }) => new Option("", text)));
  };

  let waiting;
  entity.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => find().catch(() => {}), 250);
  });
})();
