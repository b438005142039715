// Sets the theme that was chosen last before anything is painted. A file opened from disk may have no storage.
(function () {
  "use strict";
  try {
    const chosen = localStorage.getItem("staleness-audit-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch (error) { /* no storage: automatic */ }
})();
