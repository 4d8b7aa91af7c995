/** The on-screen keyboard of phones. */

const LEAST = 100; // pixels; bars of the browser are smaller

/**
 * Keep the page above the keyboard in browsers that lay it over the page. Others make the page
 * smaller, as the viewport of index.html asks them to.
 */
export function stayAboveKeyboard() {
  const { visualViewport: seen, document } = window;
  const fit = () => {
    const hidden = Math.round(innerHeight - seen.height);
    // A zoomed page is smaller as well.
    const isCovered = hidden > LEAST && Math.abs(seen.scale - 1) < 0.01;
    document.documentElement.style.setProperty("--covered", `${isCovered ? hidden : 0}px`);
    // The browser has scrolled the page to show the field.
    if (isCovered) scrollTo(0, 0);
  };
  seen?.addEventListener("resize", fit);
}
