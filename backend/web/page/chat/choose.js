/** The dialog for a new chat. */
import { attempt, campaigns, characters, control, dialog, finder, h, personas, t } from "../core.js";
import { face } from "../library/faces.js";
import { play } from "../library/start.js";

/**
 * Ask for the characters and the persona of a new chat. A campaign's chat may have no character.
 */
export async function choose(campaign_id) {
  const [people, own] = await Promise.all([characters.all(), personas.all()]);
  dialog(t("chats.new"), () => {
    const find = finder(t("library.search"));
    find.items = people.map((item) => {
      const box = h("input", { type: "checkbox", value: item.id });
      const label = h("label.row", box, face(item, { small: true }), h("span.grow.clip", item.name));
      return [h("li", label), item.name];
    });
    const options = [[null, t("chats.persona_standard")], ...own.map((each) => [each.id, each.name])];
    const persona = control({ name: "persona", kind: "select", label: t("chats.persona"), options });
    const onclick = () => attempt(async () => {
      await play(chosen(), { persona_id: persona.read(), campaign_id });
      if (campaign_id) campaigns.changed();
    });
    const start = h("button.primary", { type: "submit", disabled: !campaign_id, onclick }, t("chats.start"));
    const list = h("ul.casting", find.items.map(([element]) => element));
    const chosen = () => [...list.querySelectorAll(":checked")].map((box) => box.value);
    list.onchange = () => (start.disabled = !campaign_id && !chosen().length);
    const help = t(campaign_id ? "campaign.cast_help" : "chats.group_help");
    const foot = h("footer", h("small.soft.grow", help), start);
    const stay = (event) => event.preventDefault();
    return h("form.stack", { onsubmit: stay }, people.length > 0 && [find.input, list], own.length > 0 && persona.element, foot);
  });
}
