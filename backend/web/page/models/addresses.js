/** Refused addresses of providers: possible remedies, and the list of allowed addresses. */
import { act, api, attempt, fill, h, pend, sendform, sendLater, session, t, toast } from "../core.js";
import { m } from "./picker.js";

const ALLOWED = "/admin/provider-addresses";

const shown = ({ host, port }) => `${host.includes(":") ? `[${host}]` : host}:${port}`;

/** Return an address with another host. */
function moved(url, host) {
  const made = new URL(url);
  made.hostname = host;
  return made.href.replace(/\/$/, "");
}

/**
 * Buttons for a refused address: replace its host, or allow it as an administrator.
 *
 * @param {object} [address] `address` of a problem: `host`, `port`, `can_be_allowed`, `instead`.
 * @param {object} does `again()` is called after it was allowed, `use(url)` after `url` was
 *   changed.
 */
export function remedies(address, { url, use, again }) {
  if (!address) return null;
  const { instead, can_be_allowed: open, host, port } = address;
  const better = use && instead && moved(url, instead);
  const allow = () => attempt(async () => {
    await api.post(ALLOWED, { host, port });
    toast(m("addresses.is_allowed", { address: shown(address) }));
    await again();
  });
  return h("div.row",
    better && h("button", { onclick: () => use(better) }, m("addresses.use", { address: better })),
    open && session.user.is_administrator &&
      h("button", { onclick: allow }, m("addresses.allow", { address: shown(address) })));
}

/** The allowed addresses, for administrators. */
export async function allowed(signal) {
  const list = h("ul.list", { label: m("addresses.title") });
  const none = h("p.soft", m("addresses.none"));
  const read = async () => {
    const { items, networks_are_set: isSet } = await api.get(ALLOWED, { signal });
    none.hidden = items.length > 0;
    fill(list, items.map(line));
    return isSet;
  };
  const line = (item) => {
    const name = shown(item);
    const path = `${ALLOWED}/${item.id}`;
    const remove = () => sendLater(t("common.deleted", { name }), path, { then: () => signal.aborted || read() });
    return pend(h("li", h("div.grow", name), act("delete", m("addresses.refuse", { address: name }), remove, "quiet")), path);
  };
  const send = async (values) => {
    await api.post(ALLOWED, values);
    for (const each of controls.values()) each.write("");
    await read();
  };
  const { element, controls } = sendform({
    fields: [
      { name: "host", label: m("addresses.host"), placeholder: "192.168.1.20", most: 253, required: true },
      { name: "port", label: m("addresses.port"), kind: "number", min: 1, max: 65535, step: 1, required: true },
    ],
    submit: m("addresses.add"),
    send,
  });
  const isSet = await read();
  return h("section.stack",
    h("h2", m("addresses.title")),
    h("p.soft", m(isSet ? "addresses.set" : "addresses.help")),
    !isSet && [none, list, element]);
}
