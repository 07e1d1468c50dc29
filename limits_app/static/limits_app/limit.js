// The form of a limit: shows the fields that the choices need, and what the limit does while one types.
// Without JavaScript all fields are shown, and a button shows what the limit does.
"use strict";

(() => {
  const PAUSE = 300;
  const form = document.querySelector("[data-limit-form]");
  if (!form) return;
  let timer = 0;
  let latest = 0;

  const show = () => {
    const data = new FormData(form);
    const periods = [...data].filter(([name]) => name.startsWith("per_")).map(([, value]) => value);
    const chosen = [data.get("who"), data.get("ends"), ...periods];
    for (const part of form.querySelectorAll("[data-for]")) {
      part.hidden = !part.dataset.for.split(" ").some((choice) => chosen.includes(choice));
    }
  };

  const describe = async () => {
    const number = ++latest;
    const data = new FormData(form);
    data.set("_effect", "1");
    const response = await fetch(location.href, { method: "POST", body: data });
    if (!response.ok || response.redirected || number !== latest) return;
    const live = new DOMParser().parseFromString(await response.text(), "text/html");
    if (number !== latest) return;
    for (const part of live.querySelectorAll("[id]")) {
      const shown = document.getElementById(part.id);
      if (shown && shown.innerHTML !== part.innerHTML) shown.replaceChildren(...part.childNodes);
    }
  };

  const follow = () => {
    show();
    clearTimeout(timer);
    timer = setTimeout(() => describe().catch(() => {}), PAUSE);
  };

  form.addEventListener("input", follow);
  form.addEventListener("change", follow);
  show();
  if (form.dataset.limitForm === "filled") follow();
})();
