(() => {
  const root = document.documentElement, key = "underpass-theme";
  const set = theme => { root.dataset.theme = theme };
  // #dark and #light choose for one visit; the button's choice is remembered where it can be.
  const asked = { "#dark": "dark", "#light": "light" }[location.hash];
  let kept = null;
  try { kept = localStorage.getItem(key) } catch { /* files may have no storage */ }
  if (asked || kept === "dark" || kept === "light") set(asked || kept);
  addEventListener("DOMContentLoaded", () => {
    if (matchMedia("(max-width: 60rem)").matches) document.querySelector("nav details").open = false;
    document.getElementById("theme").addEventListener("click", () => {
      const dark = root.dataset.theme
        ? root.dataset.theme === "dark"
        : matchMedia("(prefers-color-scheme: dark)").matches;
      set(dark ? "light" : "dark");
      try { localStorage.setItem(key, root.dataset.theme) } catch { /* as above */ }
    });
  });
})();
