// Tests Vercel's AI SDK with its OpenAI-compatible provider: text and objects, tools in steps, and reasoning, whole and
// streamed.
// Usage: node ai_sdk.mjs BASE_URL MODEL

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, name] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "tiercel", baseURL, apiKey: "none", supportsStructuredOutputs: true });
const model = provider(name);
const { version } = JSON.parse(readFileSync(new URL("node_modules/ai/package.json", import.meta.url)));
const passed = (what) => console.log(`PASS ai ${version}: ${what}`);
const asked = [];
const tools = {
  get_weather: tool({
    description: "Returns the weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => (asked.push(city), "21 °C"),
  }),
};
const question = { model, tools, stopWhen: stepCountIs(3), prompt: "What is the weather in Paris?", maxRetries: 0 };

const whole = await generateText(question);
assert.equal(whole.text, "It is 21 °C in Paris.");
const stream = streamText(question);
let parts = 0;
for await (const part of stream.textStream) parts += part.length > 0;
assert.equal(await stream.text, "It is 21 °C in Paris.");
assert(parts > 1);
assert.deepEqual(asked, ["Paris", "Paris"]);
passed("generateText and streamText with a tool");

const output = Output.object({ schema: z.object({ name: z.string(), age: z.number().int() }) });
const extract = { model, output, prompt: "JSON: Ann is 41 years old.", maxRetries: 0 };
assert.deepEqual((await generateText(extract)).output, { name: "Ann", age: 41 });
const partial = streamText(extract);
let last;
for await (const one of partial.partialOutputStream) last = one;
assert.deepEqual(last, { name: "Ann", age: 41 });
passed("Output.object, whole and streamed");

const thought = streamText({ model, prompt: "Think: how much is 2 + 2?", maxRetries: 0 });
assert.equal(await thought.text, "4");
assert.equal(await thought.reasoningText, "Two and two are four.");
passed("reasoning apart from the text");
