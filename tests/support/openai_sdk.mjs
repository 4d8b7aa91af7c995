// Sends requests with the npm package `openai`, and prints the results as JSON.
//
// The standard input is {"url", "key", "calls": [{"route", "method", "arguments", "headers"}]}.
import OpenAI from "openai";

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const { url, key, calls } = JSON.parse(Buffer.concat(chunks).toString());
const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });

async function run({ route, method, arguments: values, headers }) {
  const resource = route.split(".").reduce((found, name) => found[name], client);
  const parts = [];
  try {
    const { data, response } = await resource[method](...values, { headers }).withResponse();
    const found = Object.fromEntries(response.headers);
    if (typeof data[Symbol.asyncIterator] !== "function" || data.data) {
      return { value: { ...data }, headers: found };
    }
    for await (const part of data) parts.push(part);
    return { parts, headers: found };
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    const { status, code, type, param, message } = error;
    return { parts, error: { kind: error.constructor.name, status, code, type, param, message } };
  }
}

const results = [];
for (const call of calls) results.push(await run(call));
console.log(JSON.stringify(results, (name, value) => (name === "options" ? undefined : value)));
