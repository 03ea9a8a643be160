// The stock client of JavaScript, as a program that outlives its terminal: publishes, follows the log by offset,
// and consumes a group. Prints what it has seen as JSON.
import { io } from "socket.io-client";

const [url, token, count, all, transport] = process.argv.slice(2);
const often = { reconnectionDelay: 50, reconnectionDelayMax: 200 };
const options = { ...often, auth: (give) => give({ token }), forceNew: true, transports: transport.split("+") };
const publisher = io(url, { ...options, retries: 10_000, ackTimeout: 5000 });
const follower = io(url, options);
const consumer = io(url, options);
const stored = {}, seen = [], consumed = [];
let next = 0, log, connects = 0;

for (const socket of [publisher, follower, consumer]) {
  socket.on("connect", () => connects++);
  socket.on("connect_error", (error) => {
    if (error.data?.status >= 429) setTimeout(() => socket.connect(), 100);
  });
}
const wanted = (list) => new Set(list.map(([text]) => text)).size >= Number(all);
await new Promise((resolve) => {
  const check = () => Object.keys(stored).length >= Number(count) && wanted(seen) && wanted(consumed) && resolve();
  follower.on("connect", async () => {
    const begun = await follower.emitWithAck("subscribe", { topic: "orders", from: next, log });
    if (!begun.problem) log = begun.log;
  });
  follower.on("message", (message) => {
    next = message.offset + 1;
    seen.push([message.text, message.offset]);
    check();
  });
  consumer.on("connect", () =>
    consumer.emitWithAck("subscribe", { topic: "orders", group: "js", from: "earliest", credit: 20 }));
  consumer.on("message", (message, settle) => {
    consumed.push([message.text, message.offset, message.attempt]);
    settle("ack");
    check();
  });
  for (let n = 0; n < Number(count); n++) {
    const order = { topic: "orders", text: `js:${n}`, idempotency_key: `js:${n}` };
    publisher.emitWithAck("publish", order).then((answer) => {
      if (answer.problem) throw new Error(answer.problem.detail);
      stored[order.text] = answer.offset;
      check();
    });
  }
  process.stderr.write("ready\n");
});
for (const socket of [publisher, follower, consumer]) socket.close();
console.log(JSON.stringify({ stored, seen, consumed, connects }));
