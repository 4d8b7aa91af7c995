/** The line that says that the server cannot be reached, and that the page tries again. */
import { api } from "./api.js";
import { fill, h, icon, on, pause } from "./dom.js";
import { t } from "./words.js";

const FIRST = 1_000;
const LONGEST = 20_000;

/**
 * The line. api.js sends the event "unreachable" when a request gets no response. Once the server
 * responds, the event "reconnected" follows, and forms save again.
 */
export function connection() {
  const line = h("p.connection", { role: "status" });
  let isTrying = false;
  const retry = async () => {
    if (isTrying) return;
    isTrying = true;
    fill(line, icon("alert"), t("errors.trying"));
    let wait = FIRST;
    do {
      await pause(wait);
      wait = Math.min(2 * wait, LONGEST);
    } while (!(await api.get("/instance").then(() => true, (error) => !error.isOffline)));
    isTrying = false;
    fill(line);
    dispatchEvent(new Event("reconnected"));
  };
  on(window, "unreachable", retry);
  on(window, "offline", retry);
  return line;
}
