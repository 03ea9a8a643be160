// Hooks for dredd: put what the test has prepared, and what earlier answers have told, in the place of words.
// HOOKS is a file: {"words": {word: value}, "keep": {title: {word: member}}, "left_out": [title],
// "key": the private key of the terminal that is enrolled, as PEM}.
const crypto = require('crypto');
const fs = require('fs');
const hooks = require('hooks');

const { words, keep, left_out: leftOut, key } = JSON.parse(fs.readFileSync(process.env.HOOKS));
const WORD = /\b[A-Z][A-Z0-9_]+\b/g;

const fill = (text, shape = (value) => value) =>
  text.replace(WORD, (word) => (Object.hasOwn(words, word) ? shape(words[word]) : word));
const inJson = (value) => JSON.stringify(String(value)).slice(1, -1);
// "group > title > …"
const titleOf = (transaction) => transaction.name.split(' > ')[2];

const sha256 = (text) => crypto.createHash('sha256').update(text).digest();
const numberOf = (value) => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(BigInt(value));
  return bytes;
};

// The proof of a terminal: a signature over values that each have their length in front.
const prove = (headers, request, path) => {
  const time = Date.now() * 1000;
  const nonce = crypto.randomBytes(16);
  const operation = `${request.method} ${path}`;
  const digest = sha256(request.body);
  const values = ['landbridge/1 proof', words.TERMINAL, operation, numberOf(time), nonce, digest];
  const signed = values.flatMap((value) => {
    const bytes = Buffer.from(value);
    const size = Buffer.alloc(4);
    size.writeUInt32BE(bytes.length);
    return [size, bytes];
  });
  headers['Landbridge-Timestamp'] = String(time);
  headers['Landbridge-Nonce'] = nonce.toString('base64');
  headers['Landbridge-Proof'] = crypto.sign(null, Buffer.concat(signed), key).toString('base64');
  headers['Content-Digest'] = `sha-256=:${digest.toString('base64')}:`;
};

hooks.beforeEach((transaction, done) => {
  if (leftOut.includes(titleOf(transaction))) {
    transaction.skip = true;
    done();
    return;
  }
  const { request } = transaction;
  transaction.fullPath = fill(transaction.fullPath, encodeURIComponent);
  request.body = fill(request.body, inJson);
  for (const name of Object.keys(request.headers)) request.headers[name] = fill(request.headers[name]);
  if ('Landbridge-Proof' in request.headers) prove(request.headers, request, transaction.fullPath.replace('/registry', ''));
  done();
});

hooks.afterEach((transaction, done) => {
  const kept = keep[titleOf(transaction)];
  if (kept && transaction.real && transaction.real.body) {
    const answer = JSON.parse(transaction.real.body);
    for (const [word, member] of Object.entries(kept)) {
      words[word] = member.split('.').reduce((value, name) => value && value[name], answer);
    }
  }
  done();
});
