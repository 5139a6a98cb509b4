// Tests the dashboard in Chromium, in both themes and on a wide and a narrow screen. Prints a line
// for each failure. If there is a failure, the exit code is 1.
//
// After the test prints "stop" or "start", it waits for a line of input. The caller sends the line
// once the scheduler has stopped or started.
//
//   node dashboard.mjs MODULES BASE TOKEN AGENT SITE BATCH FAILED-BATCH OPEN-BATCH SCREENSHOTS
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const [modules, base, token, agent, site, batch, failedBatch, openBatch, shots] = process.argv.slice(2);
const { chromium } = createRequire(join(modules, "x.js"))("playwright-core");
const axe = readFileSync(join(modules, "axe-core", "axe.min.js"), "utf8");
const MAX_WEIGHT = 500_000;
const MAX_FIRST_PAINT_MS = 1_000;
// Time limit of every wait.
const PATIENCE_MS = 120_000;

let wrong = 0;
const report = (text) => { wrong += 1; console.log(text); };
const expect = (holds, text) => { if (!holds) report(text); };
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const ask = async (text) => { console.log(text); await lines.next(); };

const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  timeout: PATIENCE_MS,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync"],
});

// The cookies of a person who has signed in.
let session;
const open = async (width) => {
  const context = await browser.newContext({ colorScheme: "light", viewport: { width, height: 900 }, storageState: session });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  const where = () => `${width} px, ${page.url()}`;
  page.on("console", (message) => {
    // Ignore the errors that the test causes, by a wrong token and by a stopped scheduler.
    if (message.type() === "error" && !/401|ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED/.test(message.text())) report(`${where()}: console: ${message.text()}`);
  });
  page.on("pageerror", (error) => report(`${where()}: ${error.message}`));
  page.on("request", (request) => {
    if (!request.url().startsWith(base)) report(`${where()}: asked ${request.url()}`);
  });
  return { context, page, where };
};

const signIn = async (page) => {
  await page.goto(`${base}/fleet`);
  expect(page.url().startsWith(`${base}/sign-in`), `a guest sees ${page.url()}`);
  await page.fill("#token", "a guess");
  await page.click("main button");
  expect((await page.textContent("[role=alert]")) === "the operator token is wrong", "a wrong token is not refused");
  await page.fill("#token", token);
  await page.click("main button");
  expect(page.url() === `${base}/fleet`, `after signing in: ${page.url()}`);
};

const named = (path, name) => path + encodeURIComponent(name);
const paths = ["/", "/map", "/map?view=globe", "/fleet", named("/agents/", agent), "/batches", named("/batches/", batch),
  named("/site?name=", site), "/trends"];

// Themes differ only in colours, so the dark theme is audited only by the rules about colours.
const COLOUR_RULES = { runOnly: { type: "rule", values: ["color-contrast", "link-in-text-block"] } };
for (const width of [1200, 390]) {
  const { context, page, where } = await open(width);
  if (!session) {
    await signIn(page);
    session = await context.storageState();
  }
  for (const path of paths) {
    const answer = await page.goto(base + path);
    expect(answer.status() === 200, `${where()}: status ${answer.status()}`);
    expect((await answer.body()).length <= MAX_WEIGHT, `${where()}: weighs ${(await answer.body()).length}`);
    const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    expect(over <= 0, `${where()}: ${over} px wider than the screen`);
    // The page's Content-Security-Policy blocks an added script element, so the debugger loads axe.
    await page.evaluate(axe);
    for (const [scheme, rules] of [["light", {}], ["dark", COLOUR_RULES]]) {
      await page.emulateMedia({ colorScheme: scheme });
      const found = await page.evaluate(async (rules) => {
        const { violations } = await globalThis.axe.run(rules);
        return violations.filter(({ impact }) => impact === "serious" || impact === "critical")
          .map(({ id, nodes }) => `${id}: ${nodes[0].html.slice(0, 160)}`);
      }, rules);
      found.forEach((violation) => report(`${scheme}, ${where()}: ${violation}`));
      if (shots) await page.screenshot({ path: join(shots, `${paths.indexOf(path)}-${scheme}-${width}.png`), fullPage: true });
    }
    await page.emulateMedia({ colorScheme: "light" });
  }
  await context.close();
}

// Test the actions, the live updates, the map and the keyboard.
const { context, page } = await open(1200);
await page.goto(`${base}/fleet`);
const second = await context.newPage();
await second.goto(`${base}/fleet`);
page.on("dialog", (dialog) => dialog.accept());
// Each action, and what another open tab must then show without a reload.
const agentRow = (state) => [`/fleet`, `tr:has-text(${JSON.stringify(agent)})`, state];
const actions = [
  [named("/agents/", agent), "Drain", agentRow(/drain/)],
  [named("/agents/", agent), "Resume", agentRow(/ready|quarantined/)],
  [named("/agents/", agent), "Trust", agentRow(/ready|quarantined/)],
  [named("/batches/", failedBatch), "Retry failed sites", [named("/batches/", failedBatch), "ul.progress li", /./]],
  [named("/batches/", openBatch), "Cancel", [named("/batches/", openBatch), "ul.progress li", /^cancelled/]],
];
for (const [path, button, [seenAt, element, state]] of actions) {
  await second.goto(base + seenAt);
  await page.goto(base + path);
  await Promise.all([page.waitForNavigation(), page.click(`button:text-is("${button}")`)]);
  expect((await page.textContent(".done")).includes(button.toLowerCase()), `${button} was not confirmed`);
  const seen = second.locator(`#live ${element}`);
  const changed = seen.filter({ hasText: state }).first().waitFor();
  await changed.catch(async () => report(`after ${button} the other tab still shows: ${await seen.allTextContents()}`));
}
await page.goto(`${base}/map`);
const painted = await page.waitForFunction(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
const paint = await painted.jsonValue();
console.error(`first paint of the map: ${Math.round(paint)} ms`);
expect(paint <= MAX_FIRST_PAINT_MS, `first paint of the map after ${paint} ms`);
const mark = page.locator("a[data-agent] circle.agent").first();
await mark.hover();
expect(await page.locator("svg.map.some").count() === 1, "an agent's sites are not lit");
// Opens the overview, and waits until its stream of updates is open.
const overview = (tab) => Promise.all([
  tab.waitForResponse((response) => response.url() === `${base}/live?page=%2F`),
  tab.goto(`${base}/`),
]);
await overview(page);
await page.keyboard.press("Tab");
expect(await page.evaluate(() => document.activeElement.textContent) === "Skip to content", "the first stop skips to the content");

// The page must show that the scheduler is lost, and must update itself once the scheduler is back.
await overview(second);
await second.locator("#lost").waitFor({ state: "hidden" });
await ask("stop");
const lost = second.locator("#lost").waitFor({ state: "visible" });
await lost.catch(() => report("a lost scheduler does not show as lost"));
const drawn = await second.textContent("footer");
await ask("start");
const back = second.locator("#lost").waitFor({ state: "hidden" });
await back.catch(() => report("a page does not notice that the scheduler is back"));
const renewed = second.waitForFunction((drawn) => document.querySelector("footer").textContent !== drawn, drawn);
await renewed.catch(() => report("a page is not updated after the scheduler is back"));

await page.fill("input[type=search]", site);
await Promise.all([page.waitForNavigation(), page.keyboard.press("Enter")]);
expect((await page.textContent("h1")) === site, `the search shows ${await page.textContent("h1")}`);
await Promise.all([page.waitForNavigation(), page.click("text=Sign out")]);
await page.goto(`${base}/`);
expect(page.url().startsWith(`${base}/sign-in`), `after signing out: ${page.url()}`);

await browser.close();
process.exit(wrong > 0 ? 1 : 0);
