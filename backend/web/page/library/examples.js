/** The examples of a lorebook and of a campaign. They belong to the example character's world. */
import { act, api, asset, attempt, campaigns, lorebooks, t } from "../core.js";

async function book() {
  const response = await fetch(asset("example-lorebook.json"));
  const { lorebook } = await api.upload("/lorebooks/import", await response.blob());
  lorebooks.changed();
  location.hash = `#/lorebooks/${lorebook.id}`;
}

/** Create the campaign, and its items one after the other: some refer to earlier ones as "@name". */
async function world() {
  const { campaign, items } = await (await fetch(asset("example-campaign.json"))).json();
  const { id } = await api.post("/campaigns", campaign);
  const made = {};
  for (const { as: name, path, body } of items) {
    const values = Object.entries(body).map(([key, value]) => [key, made[value] ?? value]);
    const item = await api.post(`/campaigns/${id}/${path}`, Object.fromEntries(values));
    if (name) made[`@${name}`] = item.id;
  }
  campaigns.changed();
  location.hash = `#/campaigns/${id}`;
}

export const exampleBook = () => act("spark", t("lore.example"), () => attempt(book));
export const exampleCampaign = () => act("spark", t("campaign.example"), () => attempt(world));
