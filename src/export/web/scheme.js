// Choices on the page are kept for later visits, unless the browser blocks storage; also sets the colours, before anything is drawn.
globalThis.remembered = {
  get(name) {
    try {
      return localStorage.getItem(name);
    } catch {
      return null;
    }
  },
  /** Keeps a choice; without a value it is forgotten. */
  set(name, value) {
    try {
      if (value) localStorage.setItem(name, value);
      else localStorage.removeItem(name);
    } catch {
      /* It holds until the page is closed. */
    }
  },
};
{
  const chosen = remembered.get("scheme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.scheme = chosen;
}
