/** The modules of core/ that most views use, so that a view needs one import. */
export * from "./core/api.js";
export * from "./core/dialogs.js";
export * from "./core/dom.js";
export * from "./core/form.js";
export * from "./core/parts.js";
export * from "./core/store.js";
export * from "./core/words.js";
