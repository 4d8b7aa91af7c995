/** Every text of the page, in one language. A translation is another file of this form. */

export const LANGUAGE = "en";

export const texts = {
  common: {
    add: "Add",
    back: "Back",
    cancel: "Cancel",
    close: "Close",
    copied: "Copied",
    copy: "Copy",
    delete: "Delete",
    dismiss: "Dismiss",
    done: "Done",
    edit: "Edit",
    export: "Export",
    import: "Import",
    loading: "Loading…",
    more: "More",
    name: "Name",
    new: "New",
    open: "Open",
    retry: "Try again",
    save: "Save",
    search: "Search",
    tokens: { one: "{count} token", other: "{count} tokens" },
    undo: "Undo",
  },
  time: { now: "just now" },
  form: {
    commas: "with commas between",
    saved: "Saved",
    saving: "Saving…",
    tokens: { one: "{count} token", other: "{count} tokens" },
  },
  errors: {
    nowhere: "There is nothing at this address.",
    offline: "The server does not answer. What you wrote is kept here; try again in a moment.",
    page: "Something went wrong in the page. Reload it; nothing that was saved is lost.",
    signed_out: "You are signed out. Sign in again to go on.",
    strange: "The server answered in a way the page does not understand",
  },
  // Problems of the API that the page can explain better, by the last part of their type.
  problems: {
    "precondition-failed": "This was changed somewhere else meanwhile. Reload to see it; what you typed is still here to copy.",
  },
  shell: {
    account: "Account",
    activity: "Activity",
    characters: "Characters",
    chats: "Chats",
    lorebooks: "Lore",
    memory: "Memory",
    places: "Places",
    recent: "Latest chats",
    skip: "Skip to the content",
  },
  // The door and the account.
  account: {},
  // Characters and personas.
  library: {},
  // The list of chats.
  chats: {
    untitled: "Untitled chat",
  },
  // One chat: its messages, its turns, what is typed.
  chat: {},
  // What can be done with a message, and the chat's own settings.
  message: {},
  settings: {},
  // Finding and jumping in a chat.
  find: {},
  // The context inspector.
  context: {},
  // Lorebooks.
  lore: {},
  // Search, chronicles, runs.
  memory: {},
  // Jobs and health.
  activity: {},
};
