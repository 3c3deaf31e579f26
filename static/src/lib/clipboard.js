/** Copies text; false where the browser does not allow it (the clipboard needs https or localhost). */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "sr-only";
  document.body.append(area);
  const focused = document.activeElement;
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus?.();
  return copied;
}
