// The HTTP JSON API with the session's cookie and Django's CSRF token.

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

function csrfToken() {
  const tag = document.querySelector("meta[name=csrf-token]")?.content;
  return tag || document.cookie.match(/(?:^|;\s*)csrftoken=([^;]+)/)?.[1] || "";
}

/** JSON out, JSON in (null for an empty answer). ApiError for any status but 2xx, status 0 when there is no answer. */
export async function api(method, path, body) {
  let response;
  try {
    response = await fetch(path, {
      method,
      credentials: "same-origin",
      headers: {
        Accept: "application/json",
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...(method === "GET" ? {} : { "X-CSRFToken": csrfToken() }),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new ApiError(0, "offline", "");
  }
  const text = await response.text();
  let data = null;
  try {
    data = text ? JSON.parse(text) : null;
  } catch {
    // An HTML page where JSON was asked for: a proxy's error, or a login page.
  }
  if (response.ok) return data;
  const error = data?.error ?? data ?? {};
  throw new ApiError(response.status, error.code ?? "internal", error.message ?? "");
}
