/** The layers of a campaign's prompt, and the blocks that the campaign added for a reply. */
import { api, attempt, fill, h, number, t } from "../core.js";

/**
 * A section for prompts with layers.
 *
 * @param {string} [message] The reply that was written with the prompt, if any.
 * @returns {{element, show}} `show(view)` shows the layers of a context, or hides the section.
 */
export function layers(message, signal) {
  const list = h("dl.layers");
  const text = h("div.text", { tabindex: 0 });
  const open = ({ target }) => target.open && attempt(async () => {
    const { injected_context: injected } = await api.get(`/messages/${message}`, { signal });
    text.textContent = injected ?? t("context.not_injected");
  });
  const injected = message && h("details.injected", { ontoggle: open }, h("summary", t("context.injected")), text);
  const element = h("details.group", { open: true, hidden: true },
    h("summary", t("context.layers_title")), list, injected);
  const row = ([name, tokens], all) => [
    h("dt", t(`context.layers.${name}`), h("small.soft", t(`context.layers_help.${name}`))),
    h("dd.figure", { label: t("common.tokens", { count: tokens }) }, number(tokens)),
    h("dd", { "aria-hidden": "true", vars: { n: all ? tokens / all : 0 } }),
  ];
  return {
    element,
    show({ layers: found }) {
      element.hidden = !found;
      if (!found) return;
      const all = Math.max(...Object.values(found));
      fill(list, Object.entries(found).map((each) => h("div", row(each, all))));
    },
  };
}
