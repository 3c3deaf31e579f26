// Starts the chat page: mounts the view, loads the list, opens the conversation in the address.
import { render } from "preact";
import { Chat } from "./view.jsx";
import * as conversations from "./conversations.js";
import { follow } from "./session.js";

render(<Chat />, document.getElementById("chat"));

function openAddressed() {
  const id = conversations.idInAddress();
  if (id) void conversations.open(id, follow, { address: false });
  else conversations.openNew({ address: false });
}

addEventListener("popstate", openAddressed);
void conversations.loadList();
openAddressed();
