// Tests openai-node: `parse`, and the helpers for streams and tools. Usage: node openai_node.mjs BASE_URL MODEL

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const { version } = JSON.parse(readFileSync(new URL("node_modules/openai/package.json", import.meta.url)));
const passed = (what) => console.log(`PASS openai-node ${version}: ${what}`);
const user = (content) => [{ role: "user", content }];

const person = zodResponseFormat(z.object({ name: z.string(), age: z.number().int() }), "person");
const ann = { name: "Ann", age: 41 };
const parsed = await client.chat.completions.parse({
  model, messages: user("JSON: Ann is 41 years old."), response_format: person,
});
assert.deepEqual(parsed.choices[0].message.parsed, ann);
const stream = client.chat.completions.stream({
  model, messages: user("JSON: Ann is 41 years old."), response_format: person,
});
let parts = 0;
stream.on("content.delta", () => (parts += 1));
const final = await stream.finalChatCompletion();
assert.deepEqual(final.choices[0].message.parsed, ann);
assert(parts > 1);
passed("parse and stream of a zod schema");

const asked = [];
const weather = zodFunction({
  name: "get_weather",
  parameters: z.object({ city: z.string() }),
  function: ({ city }) => (asked.push(city), "21 °C"),
});
const called = await client.chat.completions.parse({
  model, messages: user("What is the weather in Paris?"), tools: [weather],
});
assert.deepEqual(called.choices[0].message.tool_calls[0].function.parsed_arguments, { city: "Paris" });
for (const streamed of [false, true]) {
  const runner = client.chat.completions.runTools({
    model, stream: streamed, messages: user("What is the weather in Paris?"), tools: [weather],
  });
  assert.equal(await runner.finalContent(), "It is 21 °C in Paris.");
  assert.equal(asked.pop(), "Paris");
}
passed("parsed tool calls, and runTools whole and streamed");
