/** A warning when the account's own limit of the month is near or reached. */
import { api, h, kept, money, pageSettings, t, toast } from "../core.js";

/** Shares of the limit at which a warning is shown, the largest first. */
const STEPS = [1, 0.8];

/** Warn once at each step. Without a limit, nothing is asked. */
export async function warnOfLimit(signal) {
  const { monthly_limit: limit } = pageSettings.get();
  if (!limit) return;
  const { month, cost } = await api.get("/usage/month", { signal });
  const spent = cost?.amount ?? 0;
  const step = STEPS.find((each) => spent >= each * limit);
  const warning = `${month} ${limit} ${step}`;
  if (!step || kept.get("warned") === warning) return;
  kept.set("warned", warning);
  const words = t(step < 1 ? "chat.limit_near" : "chat.limit_over", { spent: money(spent), limit: money(limit) });
  toast([h("span", words), " ", h("a", { href: "#/account" }, t("chat.limit_open"))], { kind: "error" });
}
