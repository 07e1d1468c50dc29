// Hides the fields of “Limit something” that the choices do not need. Without JavaScript all fields are shown.
"use strict";

(() => {
  const form = document.querySelector("[data-limit-form]");
  if (!form) return;
  const show = () => {
    const data = new FormData(form);
    const chosen = new Set([data.get("what"), data.get("who")]);
    for (const row of form.querySelectorAll("[data-for]")) row.hidden = !chosen.has(row.dataset.for);
  };
  form.addEventListener("change", show);
  show();
})();
