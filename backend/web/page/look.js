/**
 * The appearance and language of the page. This is a classic script, because a module would run after the first
 * paint. core/store.js sends the event "look" with new values.
 */
{
  const root = document.documentElement;

  /** Apply `{ theme, font, font_percent, width, style, language }`. Absent values are the defaults. */
  const apply = ({ theme = "auto", font = "serif", font_percent = 100, width = "medium", style = "book", language = "" }) => {
    Object.assign(root.dataset, { theme, font, width, style, language });
    root.style.setProperty("--reading", font_percent / 100);
    // The browser's own bars use the theme's colour.
    for (const meta of document.querySelectorAll("meta[data-theme]")) {
      const own = meta.dataset.theme;
      meta.media = theme === "auto" && own.match(/light|dark/) ? `(prefers-color-scheme: ${own})` : own === theme ? "all" : "not all";
    }
  };
  const read = () => {
    try {
      return JSON.parse(localStorage.getItem("talekeeper.look")) ?? {};
    } catch {
      return {};
    }
  };
  apply(read());
  addEventListener("look", ({ detail }) => apply(detail));
  // Another tab has changed it.
  addEventListener("storage", ({ key }) => key === "talekeeper.look" && apply(read()));
}
