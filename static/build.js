// Bundles static/src into static/dist (git-ignored, one of STATICFILES_DIRS). `--watch` rebuilds on change.
import { copyFileSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const outdir = join(here, "dist");

const options = {
  entryPoints: {
    theme: join(here, "src/theme.js"),
    shell: join(here, "src/shell.js"),
    chat: join(here, "src/chat/main.jsx"),
    scheduler: join(here, "src/scheduler/main.jsx"),
    admin: join(here, "src/admin.js"),
    docs_api: join(here, "src/docs/api.js"),
    docs_websocket: join(here, "src/docs/websocket.js"),
    app: join(here, "src/styles/app.css"),
    docs: join(here, "src/styles/docs.css"),
  },
  outdir,
  bundle: true,
  minify: true,
  sourcemap: false,
  format: "iife",
  target: ["es2022", "chrome110", "firefox115", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  logLevel: "warning",
};

if (process.argv.includes("--watch")) {
  const context = await esbuild.context({ ...options, logLevel: "info" });
  await context.watch();
} else {
  rmSync(outdir, { recursive: true, force: true });
  await esbuild.build(options);
  copyFileSync(join(here, "src/icon.svg"), join(outdir, "icon.svg"));
}
