// Requests to the control API: the document that the page polls, the event stream, and commands.

/** Interval between two documents, ms: as often as the server makes one, and less often while nobody looks. */
const POLL_MS = 500;
const POLL_HIDDEN_MS = 5_000;
/** Longest wait for an answer, ms. */
const ANSWER_MS = 8_000;
/** Shortest and longest wait before the next try after a failure, ms. */
const RETRY_MS = 500;
const RETRY_MAX_MS = 10_000;
/** Most characters of an event that is not complete. */
const EVENT_MAX = 1 << 18;
const KEY_NAME = "tiercel-key";

/** An answer with an error, as the server words it. */
export class Refused extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

let key = sessionStorage.getItem(KEY_NAME);

export const hasKey = () => key !== null;

/** Keeps a key in this tab, or forgets the one that is kept. */
export function useKey(next) {
  key = next;
  if (next === null) sessionStorage.removeItem(KEY_NAME);
  else sessionStorage.setItem(KEY_NAME, next);
}

function headers(more = {}) {
  return key === null ? more : { ...more, Authorization: `Bearer ${key}` };
}

/** Asks the control API; throws `Refused` for an answer with an error. */
async function ask(path, options = {}) {
  // A browser sends no other characters, and would tell of them as of a lost connection.
  if (key !== null && !/^[\x21-\x7e]+$/.test(key)) throw new Refused(401, "a key may have visible ASCII characters only", "invalid_api_key");
  const answer = await fetch(`control/v1/${path}`, {
    cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(ANSWER_MS), ...options,
    headers: headers(options.headers),
  });
  const body = await answer.json().catch(noJson);
  if (!answer.ok || body === null) throw refused(answer, body);
  return body;
}

/** Returns null for a body that is no JSON, such as a page of a proxy; any other error goes on. */
function noJson(error) {
  if (error instanceof SyntaxError) return null;
  throw error;
}

/** Returns the error of an answer from the answer's body. */
function refused(answer, body) {
  return new Refused(answer.status, body?.error?.message ?? `status ${answer.status}`, body?.error?.code);
}

/** Gives a command for the request with an id of a response, which no other request has. */
export function command(id, verb, body = {}) {
  return ask(`requests/${encodeURIComponent(id)}/${verb}`, {
    method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" },
  });
}

/** A wait that can be cut short. A call of `wake()` before the wait begins ends the wait at once. */
class Nap {
  constructor() {
    this.end = null;
    this.woken = false;
  }

  sleep(ms) {
    if (this.woken) {
      this.woken = false;
      return Promise.resolve();
    }
    return new Promise((wake) => {
      const timer = setTimeout(() => this.end(), ms);
      this.end = () => {
        clearTimeout(timer);
        this.end = null;
        wake();
      };
    });
  }

  wake() {
    if (this.end) this.end();
    else this.woken = true;
  }
}

/** Polls documents until the page is closed. `seen(document)` gets each; `failed(error, retryMs)` each failure. */
export class Poll {
  constructor(seen, failed) {
    this.seen = seen;
    this.failed = failed;
    this.nap = new Nap();
    document.addEventListener("visibilitychange", () => this.now());
  }

  /** Asks for the next document at once, or, while the page waits for an answer, as soon as the answer has come. */
  now() { this.nap.wake(); }

  /** Passes a document on. A mistake of the page is no failure of the connection, so the browser's console tells of it. */
  show(live) {
    try {
      this.seen(live);
    } catch (error) {
      reportError(error);
    }
  }

  async run() {
    for (let failures = 0; ; ) {
      let wait = document.hidden ? POLL_HIDDEN_MS : POLL_MS;
      try {
        const live = await ask("live");
        failures = 0;
        this.show(live);
      } catch (error) {
        failures += 1;
        // Spread the tries of many pages, so that they do not come together.
        wait = Math.min(RETRY_MAX_MS, RETRY_MS * 1.6 ** (failures - 1)) * (0.8 + 0.4 * Math.random());
        this.failed(error, wait);
      }
      await this.nap.sleep(wait);
    }
  }
}

/** Listens to events until `stop()`; ends when the stream ends, and throws `Refused` if the server gives no stream.
 * `heard(event)` gets each. */
export class Listener {
  constructor(heard) {
    this.heard = heard;
    this.accepted = false;
    this.abort = new AbortController();
  }

  stop() { this.abort.abort(); }

  async run() {
    const answer = await fetch("control/v1/events", {
      headers: headers(), cache: "no-store", credentials: "omit", signal: this.abort.signal,
    });
    if (!answer.ok) throw refused(answer, await answer.json().catch(noJson));
    this.accepted = true;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ; ) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (text + value).split("\n\n");
      text = parts.pop().slice(-EVENT_MAX);
      for (const part of parts) {
        const data = part.split("\n").find((line) => line.startsWith("data: "));
        if (data) this.heard(JSON.parse(data.slice(6)));
      }
    }
  }
}
