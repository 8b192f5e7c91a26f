// Sends requests of Cline and Roo Code, which are extensions of an editor, with openai-node, which both extensions use.
// The requests have the fields that the extensions' OpenAI-compatible providers set (src/core/api/providers/openai.ts
// and src/api/providers/openai.ts).
// Usage: node editors.mjs BASE_URL MODEL

import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const tools = [{
  type: "function",
  function: {
    name: "get_weather", description: "Returns the weather of a city.", strict: true,
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false },
  },
}];
const cached = { cache_control: { type: "ephemeral" } };
const history = (parts) => [
  { role: "user", content: [{ type: "text", text: "What is the weather in Paris?", ...parts }] },
  { role: "assistant", content: "", tool_calls: [
    { id: "call_1", type: "function", function: { name: "get_weather", arguments: '{"city":"Paris"}' } }] },
  { role: "tool", tool_call_id: "call_1", content: "21 °C" },
];
const requests = {
  Cline: (messages) => ({
    messages: [{ role: "system", content: "You are Cline." }, ...messages], temperature: 0, max_tokens: undefined,
    reasoning_effort: undefined, tools,
  }),
  "Cline with a reasoning model": (messages) => ({
    messages: [{ role: "developer", content: "You are Cline." }, ...messages], reasoning_effort: "medium", tools,
  }),
  "Roo Code": (messages) => ({
    messages: [{ role: "system", content: [{ type: "text", text: "You are Roo.", ...cached }] }, ...messages],
    temperature: 0, max_completion_tokens: 512, tools, tool_choice: "auto", parallel_tool_calls: false,
  }),
};
for (const [name, request] of Object.entries(requests)) {
  const asked = history(name === "Roo Code" ? cached : {});
  const calls = {};
  let text = "", usage;
  for (const messages of [asked.slice(0, 1), asked]) {
    const stream = await client.chat.completions.create({
      model, stream: true, stream_options: { include_usage: true }, ...request(messages),
    });
    for await (const chunk of stream) {
      const delta = chunk.choices[0]?.delta;
      text += delta?.content ?? "";
      for (const { index, id, function: part } of delta?.tool_calls ?? []) {
        calls[index] ??= { id, name: part.name, arguments: "" };
        calls[index].arguments += part.arguments ?? "";
      }
      usage = chunk.usage ?? usage;
    }
  }
  assert.equal(calls[0].name, "get_weather");
  assert(calls[0].id);
  assert.deepEqual(JSON.parse(calls[0].arguments), { city: "Paris" });
  assert.equal(text, "It is 21 °C in Paris.");
  assert(usage.completion_tokens > 0);
  console.log(`PASS ${name} (its requests): a call, and the answer to its result, streamed`);
}
